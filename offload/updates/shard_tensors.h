// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardTensors` are the tensors of one page's shard during an update, and
// `SpanUpdate` is what happens to a stretch of them.

#include "tessera/runtime/kernels/update_segments.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::offload {

/// A stretch of a shard, and where the state of its elements is.
struct StateSpan {
  int64_t shard_offset = 0;
  int64_t state_offset = 0; ///< in each state tensor
  int64_t numel = 0;

  bool operator==(const StateSpan&) const = default;
};

/// The update of a stretch, with the values that change from step to step:
/// equal ones do the same to the same tensors.
struct SpanUpdate : StateSpan {
  int64_t steps = 0;
  double lr = 0;
  double grad_scale = 0;

  bool operator==(const SpanUpdate&) const = default;
};

/// On one device, except for a master and state that are to be streamed to it.
struct ShardTensors {
  at::Tensor master; ///< [shard_numel] float32 or float64; updated
  at::Tensor gradient; ///< [shard_numel] master's dtype, bfloat16 or float16
  /// [shard_numel]; receives the rounded master; undefined if nothing is to be
  /// rounded.
  at::Tensor low_precision;
  std::vector<at::Tensor> state; ///< [state_numel] each, by StateAccess

  /// The views that a kernel call for a stretch takes; state is in the order of
  /// UpdateTensors::states().
  runtime::UpdateTensors views(const StateSpan& span) const;
};

} // namespace tessera::offload
