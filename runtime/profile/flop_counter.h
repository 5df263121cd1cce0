// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FlopCounter` counts the floating-point operations that a model needs.

#include "tessera/runtime/profile/operator_flops.h"
#include "tessera/runtime/profile/operator_observer.h"
#include "tessera/runtime/threads/by_thread.h"

#include <atomic>
#include <vector>

namespace tessera::runtime {

/// Follows a thread's calls of operators within operators, so that each
/// operation counts once: an operator that is made of other counted ones, such
/// as a product of DTensors, counts as these.
class FlopFrames {
 public:
  void begin(const at::RecordFunction& call);
  /// @return the operations of the operator that ends, without those that were
  ///   returned for the ones it called.
  OperatorFlops end();

 private:
  struct Frame {
    OperatorFlops flops;
    bool counts_inside = false; ///< operators that it called have counted
  };

  std::vector<Frame> frames_;
};

/// Counts matrix products, convolutions and attention (operator_flops()) of
/// forwards and backwards while it lives, as they are executed on this rank.
///
/// What is computed again does not count: operators that run in a backward with
/// gradients enabled, which are those of checkpointed blocks, and the scores of
/// fused attention.
class FlopCounter : public OperatorObserver {
 public:
  double flops() const {
    return flops_;
  }

  void on_begin(const at::RecordFunction& call) override;
  void on_end(const at::RecordFunction& call) override;

 private:
  ByThread<FlopFrames> frames_;
  std::atomic<double> flops_ = 0;
};

/// Whether this thread computes a forward again, in a backward.
bool is_recomputing();

} // namespace tessera::runtime
