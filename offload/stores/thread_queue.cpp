// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/io_queue.h"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::offload {

namespace {

int64_t perform(const IoOperation& operation) {
  const auto bytes = static_cast<size_t>(operation.bytes);
  ssize_t result = 0;
  do {
    result =
        operation.is_write
            ? ::pwrite(operation.fd, operation.data, bytes, operation.offset)
            : ::pread(operation.fd, operation.data, bytes, operation.offset);
  } while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : result;
}

class ThreadQueue : public IoQueue {
 public:
  explicit ThreadQueue(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { run(); });
    }
  }
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  void submit(const IoOperation& operation, uint64_t tag) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back({operation, tag});
    }
    work_.notify_one();
  }

  Completion wait() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return !completions_.empty(); });
    const Completion completion = completions_.front();
    completions_.pop_front();
    return completion;
  }

 private:
  struct Entry {
    IoOperation operation;
    uint64_t tag;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) {
        return;
      }
      const Entry entry = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const int64_t result = perform(entry.operation);
      lock.lock();
      completions_.push_back({entry.tag, result});
      ended_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable ended_;
  std::deque<Entry> waiting_;
  std::deque<Completion> completions_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

} // namespace

std::unique_ptr<IoQueue> make_thread_queue(unsigned threads) {
  return std::make_unique<ThreadQueue>(threads);
}

} // namespace tessera::offload
