// SPDX-License-Identifier: Apache-2.0
#pragma once
// Threads that stay, each on a core of its own, for work of the host that runs
// beside everything else.

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

/// Threads that take the tasks of a job one after the other, and jobs in the
/// order of calls: with two jobs in the queue no thread waits for the end of
/// the first. Thread-safe.
///
/// [Note: pools and fork] A child process has the memory of the pool and none
/// of its threads: what was queued there never runs. update_pool() makes a new
/// one in the child; a ThreadPool of one's own must not be used across fork().
class ThreadPool {
 public:
  using Task = std::function<void(int64_t task)>;

  /// Starts the threads. One that the system does not let bind itself runs
  /// wherever the system likes; the log says so once.
  explicit ThreadPool(const CpuPlacement& placement);
  /// Not while run() is being called.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const {
    return static_cast<int>(workers_.size());
  }

  /// Runs task(0) ... task(tasks - 1), and blocks. On the calling thread where
  /// that is one of the pool's, or where the pool has no more than one.
  /// @throws what a task throws, the first one.
  void run(int64_t tasks, const Task& task);

 private:
  struct Job;

  void work(int index, const CpuPlacement& placement);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> queue_; ///< with tasks not yet taken
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

/// The pool of this process for updates on the CPU. Made when first asked for,
/// as configure_update_pool() or else place_update_threads({}) says.
ThreadPool& update_pool();

/// Replaces the pool, after it has run what is queued. Not while another thread
/// uses it.
void configure_update_pool(const CpuPlacement& placement);

} // namespace tessera
