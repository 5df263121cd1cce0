// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DeferredScalar` is a number that an accelerator may still be computing, such
// as the norm of all gradients.

#include <ATen/core/Tensor.h>

#include <memory>

namespace tessera {

/// A float64. The host waits for it only where it reads it. Copies share what
/// was read. Not thread-safe.
class DeferredScalar {
 public:
  // Implicit, so that the host's numbers and these are used alike.
  DeferredScalar(double value) : value_(value) {}
  /// @param computed [] float64 on an accelerator; issued to the current
  ///   stream, does not change.
  explicit DeferredScalar(at::Tensor computed);

  /// Blocks until the accelerator has computed it, the first time.
  double value() const;
  operator double() const {
    return value();
  }

  /// Whether an accelerator computes it.
  bool is_deferred() const {
    return computed_ != nullptr;
  }
  /// The value as operators and kernels on the current stream take it, which
  /// waits for it in place of the host: [] float64. Undefined unless
  /// is_deferred().
  at::Tensor on_device() const;

 private:
  struct Computed;

  double value_ = 0; ///< where there is no computed_
  std::shared_ptr<Computed> computed_;
};

} // namespace tessera
