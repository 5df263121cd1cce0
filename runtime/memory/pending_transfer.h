// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PendingTransfer` is a copy between memory tiers that may still be in
// progress.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace tessera::runtime {

/// Handle of a copy in progress. It keeps source and destination alive. The
/// destructor waits, and logs an error that wait() has not reported.
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

  /// A transfer that has ended.
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

  /// Blocks the host until all bytes have been copied.
  /// @throws tessera::Error when the copy failed, on the first call only; the
  ///   transfer has then ended.
  void wait();

  /// For copies to and from a device with streams: blocks the host only until
  /// the whole copy is issued. Work issued afterwards to the stream that was
  /// current when the copy began runs after it. On the CPU it is wait().
  /// wait(), release() or the destructor must still follow.
  /// @throws tessera::Error as wait().
  void wait_issued();

  /// After wait_issued(), ends the handle without waiting for the copy. For
  /// memory that outlives it and whose next use is ordered after that stream.
  void release();
  /// wait_issued() and release().
  void release_issued();

 private:
  std::shared_ptr<Work> work_;
};

/// Blocks the host until all of the copies have ended, and forgets them.
/// @throws tessera::Error when one failed, before those after it; call it again
///   for these.
void wait_all(std::vector<PendingTransfer>& transfers);

/// Copies a contiguous tensor into another with the same number of elements and
/// the same dtype. Between the host and a device, the copy is issued to the
/// current stream of the device and does not block the host if the host memory
/// is pinned. On the CPU it is done on return.
PendingTransfer begin_copy(const at::Tensor& into, const at::Tensor& from);

} // namespace tessera::runtime
