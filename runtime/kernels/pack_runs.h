// SPDX-License-Identifier: Apache-2.0
#pragma once
// Many small copies into a flat buffer at once: converted, scaled, padded.

#include <ATen/core/Tensor.h>

#include <span>

namespace tessera {

struct PackRun {
  /// Where to; of any shape and strides.
  at::Tensor target;
  /// What, of the target's shape; undefined for zeros.
  at::Tensor source;
};

/// For every run target = source * factor, rounded to the target's type. The
/// targets are on one device, of one floating-point type, and do not overlap.
///
/// On CUDA all runs whose source lies in memory as its target does, and all
/// zeros, are one launch per hundred or so; the others are an operator each.
/// Runs on the current stream; does not synchronise.
/// @throws tessera::Error when runs differ in device or type, or shapes differ.
void pack_runs_(std::span<const PackRun> runs, double factor = 1);

} // namespace tessera
