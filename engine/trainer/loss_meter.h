// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LossMeter` adds up the losses, tokens and FLOPs of some steps.

#include "tessera/engine/engine.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::engine {

/// Adds up losses on their device; only take() waits for them.
class LossMeter {
 public:
  struct Totals {
    double loss = 0; ///< mean over the different batches and steps
    double tokens = 0; ///< sum over the different batches
    double padding = 0; ///< of the tokens
    double flops = 0; ///< sum over the ranks
  };

  /// @param loss scalar, of one of the `parts` micro-batches of a step.
  /// @param padding of the tokens.
  void add(
      const at::Tensor& loss,
      int64_t parts,
      int64_t tokens,
      int64_t padding);

  /// Returns what was added during the last `steps` steps, since the last call.
  /// Of ranks that see the same batch only one may add losses. Collective;
  /// blocks.
  /// @param batches number of different batches that the ranks see at a time.
  /// @param flops of this rank in these steps.
  Totals take(Engine& engine, int batches, int64_t steps, double flops);

 private:
  at::Tensor sum_; ///< float64
  int64_t tokens_ = 0;
  int64_t padding_ = 0;
};

} // namespace tessera::engine
