// SPDX-License-Identifier: Apache-2.0
#pragma once
// The losses of some steps, added up where they are computed.

#include "tessera/engine/engine_ref.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// Adds losses up on their device: only take() waits for it.
class LossMeter {
 public:
  struct Totals {
    double loss = 0; ///< mean over different batches and steps
    double tokens = 0; ///< sum over different batches
  };

  /// @param loss scalar, one of `parts` micro-batches of a step.
  void add(const at::Tensor& loss, int64_t parts, int64_t tokens);

  /// What was added since the last call, which were `steps` steps. Of ranks
  /// that see the same batch one is to add. Collective; blocks.
  /// @param batches different ones that the ranks see at a time.
  Totals take(EngineRef engine, int batches, int64_t steps);

 private:
  at::Tensor sum_; ///< float64
  int64_t tokens_ = 0;
};

} // namespace tessera
