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

/// Work that a pool was given. Dropping it does not stop the work.
class PoolJob {
 public:
  /// Work that is done.
  PoolJob() = default;

  bool done() const;
  /// Blocks until all tasks have run; throws the first exception of one.
  void wait() const;

 private:
  friend class ThreadPool;
  struct State;
  std::shared_ptr<State> state_;
};

/// A job is a number of tasks, which the threads take one after the other, in
/// the order of jobs. Thread-safe. With two jobs in the queue no thread waits
/// for the end of the first.
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
  /// Runs what is queued, then ends the threads.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const {
    return static_cast<int>(workers_.size());
  }

  /// Queues task(0) ... task(tasks - 1); returns at once. The task's captures
  /// live until the last one has run, and end on a thread of the pool.
  PoolJob submit(int64_t tasks, Task task);

  /// Runs the tasks before everything that is queued, and blocks. On the
  /// calling thread where that is one of the pool's, or where the pool has no
  /// more than one.
  /// @throws what a task throws, the first one.
  void run(int64_t tasks, const Task& task);

 private:
  using Job = std::shared_ptr<PoolJob::State>;

  void work(int index, const CpuPlacement& placement);
  PoolJob enqueue(int64_t tasks, Task task, bool urgent);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_; ///< jobs with tasks that nobody has taken
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
