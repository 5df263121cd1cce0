// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/threads/thread_pool.h"

#include <unistd.h>

#include <exception>
#include <utility>

namespace tessera::runtime {

struct ThreadPool::Job {
  int64_t tasks = 0;
  int64_t next = 0; ///< guarded by the pool's mutex
  const Task* task = nullptr; ///< while some are left

  std::mutex mutex;
  std::condition_variable finished;
  int64_t left = 0;
  std::exception_ptr error;

  void run_one(int64_t index) {
    std::exception_ptr thrown;
    try {
      (*task)(index);
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    if (thrown && !error) {
      error = thrown;
    }
    if (--left == 0) {
      finished.notify_all();
    }
  }

  void wait() {
    std::unique_lock lock(mutex);
    finished.wait(lock, [&] { return left == 0; });
    if (error) {
      std::rethrow_exception(error);
    }
  }
};

namespace {

/// The pool that the calling thread belongs to.
thread_local const ThreadPool* self_pool = nullptr;

} // namespace

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
  self_pool = this;
  placement.bind_calling_thread(index);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    std::shared_ptr<Job> job = queue_.front();
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

void ThreadPool::run(int64_t tasks, const Task& task) {
  if (self_pool == this || threads() <= 1 || tasks <= 1) {
    for (int64_t i = 0; i < tasks; ++i) {
      task(i);
    }
    return;
  }
  const auto job = std::make_shared<Job>();
  job->tasks = tasks;
  job->left = tasks;
  job->task = &task;
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(job);
  }
  wake_.notify_all();
  job->wait();
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

} // namespace tessera::runtime
