// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW whose state rests in host memory and whose arithmetic runs on the CPU.

#include "tessera/runtime/kernels/adamw.h"
#include "tessera/runtime/memory/flat_layout.h"
#include "tessera/runtime/memory/memory_ledger.h"

#include <ATen/core/Tensor.h>

namespace tessera {

/// The optimizer state of one flat shard: master weights and both moments, on
/// the host, in float32 (float64 for float64 weights). Float32 and float64
/// weights that are on the host themselves are their own master weights.
class HostAdamW {
 public:
  /// @param weights [numel], floating point; outlives this object and is
  ///   written by update().
  /// @param ledger where the state is counted.
  HostAdamW(const at::Tensor& weights, MemoryLedger& ledger);

  /// Bytes of state for such weights.
  static int64_t state_bytes(const at::Tensor& weights);

  /// Updates the elements of `span`. Blocks; a gradient that is not on the host
  /// is copied there first.
  /// @param gradient [numel] of the whole shard, averaged over the ranks.
  void update(const at::Tensor& gradient, FlatSpan span, const AdamWStep& step);

  /// Takes the weights over after they were written from outside.
  void reload_master();

 private:
  bool weights_are_master() const;

  at::Tensor weights_;
  at::Tensor master_; ///< [numel]
  at::Tensor exp_avg_; ///< [numel]
  at::Tensor exp_avg_sq_; ///< [numel]
};

} // namespace tessera
