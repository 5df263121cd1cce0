// SPDX-License-Identifier: Apache-2.0
#pragma once
// `pack_runs_()` copies many small tensors into a flat buffer at once, with
// conversion, scaling and padding.

#include <ATen/core/Tensor.h>

#include <span>

namespace tessera::runtime {

struct PackRun {
  /// Destination, of any shape and strides.
  at::Tensor target;
  /// Source, of the same shape; undefined for zeros.
  at::Tensor source;
};

/// For every run, target = source * factor, rounded to the target's dtype. The
/// targets are on one device, have one floating-point dtype and do not overlap.
/// @throws tessera::Error when runs differ in device or dtype, or shapes
///   differ.
///
/// On CUDA, all runs whose source has the memory layout of its target, and all
/// zeros, are packed with one launch per hundred or so; each other run is one
/// operator. Runs on the current stream; does not synchronize.
void pack_runs_(std::span<const PackRun> runs, double factor = 1);

} // namespace tessera::runtime
