// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ThreadPool` runs host work on long-lived threads, each bound to a core of
// its own, in the background of everything else.

#include "tessera/runtime/threads/cpu_placement.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::runtime {

class ThreadPool;

/// A pool of threads that take the tasks of a job one by one, and jobs in the
/// order of calls. Thread-safe.
///
/// [Note: pools and fork] A child process has the memory of the pool but none
/// of its threads: jobs queued there never run. update_pool() makes a new pool
/// in the child; other ThreadPools must not be used across fork().
class ThreadPool {
 public:
  using Task = std::function<void(int64_t task)>;

  /// Starts the threads. If the system refuses to bind a thread, it runs
  /// unbound and a warning is logged once.
  explicit ThreadPool(const CpuPlacement& placement);
  /// Must not run while run() is being called.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const {
    return static_cast<int>(workers_.size());
  }

  /// Runs task(0) ... task(tasks - 1), and blocks. They run on the calling
  /// thread if it belongs to the pool or the pool has at most one thread.
  /// @throws the first exception of a task.
  void run(int64_t tasks, const Task& task);

 private:
  struct Job;

  void work(int index, const CpuPlacement& placement);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> queue_; ///< jobs with tasks not yet taken
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

/// The pool of this process for updates on the CPU. Created on first use,
/// according to configure_update_pool() or else place_update_threads({}).
ThreadPool& update_pool();

/// Replaces the pool after it has run its queued jobs. No other thread may use
/// it meanwhile.
void configure_update_pool(const CpuPlacement& placement);

} // namespace tessera::runtime
