// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StepFlops` says how many floating-point operations micro-batches take.

#include "tessera/runtime/profile/flop_counter.h"

#include <cstdint>
#include <map>
#include <optional>

namespace tessera::engine {

/// Counts the model FLOPs of this rank the first time that a micro-batch has a
/// number of tokens (runtime::FlopCounter), and takes those for later ones with
/// as many: operators are observed for that micro-batch only.
class StepFlops {
 public:
  /// Before the forward.
  /// @param tokens of the batch; 0 if that is known at its end only: then the
  ///   first one is counted, and others have their share by tokens.
  void begin(int64_t tokens);
  /// After the backward.
  /// @param tokens of the batch, above 0 and as in begin() if known there.
  void end(int64_t tokens);

  /// The sum since the last call.
  double take();

 private:
  std::map<int64_t, double> counted_; ///< by number of tokens
  std::optional<runtime::FlopCounter> counter_;
  double sum_ = 0;
};

} // namespace tessera::engine
