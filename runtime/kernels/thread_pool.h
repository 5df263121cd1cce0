// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ThreadPool` runs host work on long-lived threads, each bound to a core of
// its own, in the background of everything else.

#include "tessera/runtime/kernels/cpu_placement.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

class ThreadPool;

/// A job submitted to a pool. Destroying the handle does not stop the job.
class PoolJob {
 public:
  /// A job that is done.
  PoolJob() = default;

  bool done() const;
  /// Blocks until all tasks have run; throws the first exception of a task.
  void wait() const;

 private:
  friend class ThreadPool;
  struct State;
  std::shared_ptr<State> state_;
};

/// A job consists of tasks, which the threads take one by one, in the order of
/// jobs. Thread-safe. With two jobs in the queue, no thread is idle while the
/// first one ends.
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
  /// Runs the queued jobs, then ends the threads.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const {
    return static_cast<int>(workers_.size());
  }

  /// Queues task(0) ... task(tasks - 1); returns at once. The captures of
  /// `task` live until the last one has run and are destroyed on a thread of
  /// the pool.
  PoolJob submit(int64_t tasks, Task task);

  /// Runs the tasks ahead of queued jobs and blocks. They run on the calling
  /// thread if it belongs to the pool or the pool has at most one thread.
  /// @throws the first exception of a task.
  void run(int64_t tasks, const Task& task);

 private:
  using Job = std::shared_ptr<PoolJob::State>;

  void work(int index, const CpuPlacement& placement);
  PoolJob enqueue(int64_t tasks, Task task, bool urgent);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_; ///< jobs with tasks that have not been taken
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

/// The pool of this process for updates on the CPU. Created on first use,
/// according to configure_update_pool() or else place_update_threads({}).
ThreadPool& update_pool();

/// Replaces the pool after it has run its queued jobs. No other thread may use
/// it meanwhile.
void configure_update_pool(const CpuPlacement& placement);

} // namespace tessera
