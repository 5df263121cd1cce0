// SPDX-License-Identifier: Apache-2.0
#pragma once
// The end of a copy between tiers that may still be under way.

#include <ATen/core/Tensor.h>

#include <memory>

namespace tessera {

/// What begins such a copy returns this. It keeps both sides alive; its
/// destructor waits, and logs an error that nobody has waited for.
class PendingTransfer {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    /// See PendingTransfer::wait_issued().
    virtual void wait_issued() = 0;
    /// See PendingTransfer::wait().
    virtual void wait() = 0;
  };

  /// One that has ended.
  PendingTransfer() = default;
  explicit PendingTransfer(std::shared_ptr<Work> work);
  ~PendingTransfer();
  PendingTransfer(PendingTransfer&& other) noexcept = default;
  PendingTransfer& operator=(PendingTransfer&& other) noexcept;
  PendingTransfer(const PendingTransfer&) = delete;
  PendingTransfer& operator=(const PendingTransfer&) = delete;

  /// True until wait().
  bool pending() const {
    return work_ != nullptr;
  }

  /// Blocks the host until the bytes have arrived.
  /// @throws tessera::Error when the copy failed, once; it has ended then.
  void wait();

  /// For copies to and from a device with streams: blocks the host only until
  /// all of it is issued. What is issued afterwards to the stream that was
  /// current when the copy was begun comes after it. On the CPU it is wait().
  /// wait() or the destructor must still follow.
  /// @throws tessera::Error as wait().
  void wait_issued();

 private:
  std::shared_ptr<Work> work_;
};

/// Copies a contiguous tensor into another of as many elements and the same
/// type. Between the host and a device it is issued to the device's current
/// stream, and the host goes on (if the host's side is pinned); on the CPU it
/// is done at once.
PendingTransfer begin_copy(const at::Tensor& into, const at::Tensor& from);

} // namespace tessera
