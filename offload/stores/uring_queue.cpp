// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/io_queue.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_error.h"

#include <liburing.h>

#include <cerrno>

namespace tessera::offload {

namespace {

class UringQueue : public IoQueue {
 public:
  /// 0, or why there is no ring: an errno.
  int start(unsigned depth, const IoCalls& calls) {
    const int result = calls.make_ring(depth, &ring_);
    started_ = result == 0;
    return -result;
  }
  ~UringQueue() override {
    if (started_) {
      ::io_uring_queue_exit(&ring_);
    }
  }

  void submit(const IoOperation& operation, uint64_t tag) override {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    TESSERA_CHECK(
        entry != nullptr, "io_uring: more operations than the queue is deep");
    const auto bytes = static_cast<unsigned>(operation.bytes);
    const auto offset = static_cast<uint64_t>(operation.offset);
    if (operation.is_write) {
      ::io_uring_prep_write(entry, operation.fd, operation.data, bytes, offset);
    } else {
      ::io_uring_prep_read(entry, operation.fd, operation.data, bytes, offset);
    }
    entry->user_data = tag;
    int result = 0;
    do {
      result = ::io_uring_submit(&ring_);
    } while (result == -EINTR || result == -EAGAIN || result == -EBUSY);
    TESSERA_CHECK(
        result >= 0,
        "io_uring: an operation was not accepted: {}; check the system's log",
        runtime::detail::errno_text(-result));
  }

  Completion wait() override {
    io_uring_cqe* entry = nullptr;
    int result = 0;
    do {
      result = ::io_uring_wait_cqe(&ring_, &entry);
    } while (result == -EINTR);
    TESSERA_CHECK(
        result == 0,
        "io_uring: waiting failed: {}; check the system's log",
        runtime::detail::errno_text(-result));
    const Completion completion{entry->user_data, entry->res};
    ::io_uring_cqe_seen(&ring_, entry);
    return completion;
  }

 private:
  io_uring ring_{};
  bool started_ = false;
};

} // namespace

std::unique_ptr<IoQueue> make_uring_queue(
    unsigned depth,
    const IoCalls& calls,
    std::string& why) {
  auto queue = std::make_unique<UringQueue>();
  if (const int code = queue->start(depth, calls)) {
    why = runtime::detail::errno_text(code);
    return nullptr;
  }
  return queue;
}

} // namespace tessera::offload
