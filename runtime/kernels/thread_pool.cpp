// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/thread_pool.h"

#include <unistd.h>

#include <exception>
#include <utility>

namespace tessera {

struct PoolJob::State {
  int64_t tasks = 0;
  int64_t next = 0; ///< guarded by the pool's mutex
  ThreadPool::Task task;

  mutable std::mutex mutex;
  mutable std::condition_variable finished;
  int64_t left = 0;
  std::exception_ptr error;

  void run_one(int64_t index) {
    std::exception_ptr thrown;
    try {
      task(index);
    } catch (...) {
      thrown = std::current_exception();
    }
    std::unique_lock lock(mutex);
    if (thrown && !error) {
      error = thrown;
    }
    if (left > 1) {
      --left;
      return;
    }
    // The last task: no other thread runs the job any more, and its captures
    // must be destroyed before a waiter continues.
    lock.unlock();
    task = nullptr;
    lock.lock();
    left = 0;
    finished.notify_all();
  }
};

namespace {

/// The pool that the calling thread belongs to.
thread_local const ThreadPool* own_pool = nullptr;

} // namespace

bool PoolJob::done() const {
  if (!state_) {
    return true;
  }
  const std::lock_guard lock(state_->mutex);
  return state_->left == 0;
}

void PoolJob::wait() const {
  if (!state_) {
    return;
  }
  std::unique_lock lock(state_->mutex);
  state_->finished.wait(lock, [&] { return state_->left == 0; });
  if (state_->error) {
    std::rethrow_exception(state_->error);
  }
}

ThreadPool::ThreadPool(const CpuPlacement& placement) {
  for (int i = 0; i < placement.threads(); ++i) {
    workers_.emplace_back([this, i, placement] { work(i, placement); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::work(int index, const CpuPlacement& placement) {
  own_pool = this;
  placement.bind_calling_thread(index);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    Job job = queue_.front();
    const int64_t task = job->next++;
    if (job->next == job->tasks) {
      queue_.pop_front();
    }
    lock.unlock();
    job->run_one(task);
    job.reset();
    lock.lock();
  }
}

PoolJob ThreadPool::enqueue(int64_t tasks, Task task, bool urgent) {
  PoolJob job;
  if (tasks <= 0) {
    return job;
  }
  job.state_ = std::make_shared<PoolJob::State>();
  job.state_->tasks = tasks;
  job.state_->left = tasks;
  job.state_->task = std::move(task);
  {
    const std::lock_guard lock(mutex_);
    urgent ? queue_.push_front(job.state_) : queue_.push_back(job.state_);
  }
  tasks == 1 ? wake_.notify_one() : wake_.notify_all();
  return job;
}

PoolJob ThreadPool::submit(int64_t tasks, Task task) {
  return enqueue(tasks, std::move(task), /*urgent=*/false);
}

void ThreadPool::run(int64_t tasks, const Task& task) {
  if (own_pool == this || threads() <= 1 || tasks == 1) {
    for (int64_t i = 0; i < tasks; ++i) {
      task(i);
    }
    return;
  }
  enqueue(
      tasks, [&task](int64_t i) { task(i); }, /*urgent=*/true)
      .wait();
}

namespace {

/// The pool of the process, and the process in which it was created.
struct ProcessPool {
  std::mutex mutex;
  std::unique_ptr<ThreadPool> pool;
  pid_t owner = 0;

  /// After a fork, the parent's threads do not exist here and its locks may be
  /// held forever, so its memory is not touched.
  void forget_if_forked() {
    if (pool && owner != ::getpid()) {
      (void)pool.release();
    }
  }
  void make(const CpuPlacement& placement) {
    pool = std::make_unique<ThreadPool>(placement);
    owner = ::getpid();
  }
};

ProcessPool& process_pool() {
  static ProcessPool instance;
  return instance;
}

} // namespace

ThreadPool& update_pool() {
  ProcessPool& process = process_pool();
  const std::lock_guard lock(process.mutex);
  process.forget_if_forked();
  if (!process.pool) {
    process.make(place_update_threads({}));
  }
  return *process.pool;
}

void configure_update_pool(const CpuPlacement& placement) {
  ProcessPool& process = process_pool();
  const std::lock_guard lock(process.mutex);
  process.forget_if_forked();
  process.pool.reset();
  process.make(placement);
}

} // namespace tessera
