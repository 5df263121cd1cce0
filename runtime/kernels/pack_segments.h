// SPDX-License-Identifier: Apache-2.0
#pragma once
// `pack_segments_()` copies many small tensors into a flat buffer at once, with
// conversion, scaling and padding.

#include "tessera/runtime/kernels/pack_shard.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>

namespace tessera::runtime {

struct PackSegment {
  /// Destination, of any shape and strides.
  at::Tensor target;
  /// Source, of the same shape; undefined for zeros, which kAdd ignores.
  at::Tensor source;
};

/// For every run, target = source * factor or target += source * factor,
/// rounded to the target's dtype. The targets are on one device, have one
/// floating-point dtype and do not overlap.
/// @throws tessera::Error when runs differ in device or dtype, or shapes
///   differ.
///
/// On CUDA, all runs whose source has the memory layout of its target, and all
/// zeros, are packed with one launch per hundred or so; each other run is one
/// operator. Runs on the current stream; does not synchronize.
void pack_segments_(
    std::span<const PackSegment> segments,
    double factor = 1,
    PackMode mode = PackMode::kCopy);

namespace detail {

/// The type as kernels have it, if they have it.
std::optional<ElementType> element_type(at::ScalarType dtype);

/// The run as a kernel argument, if source and target are dense blocks of
/// memory with their elements in the same order.
std::optional<PackShard> pack_shard(const PackSegment& segment);

} // namespace detail

} // namespace tessera::runtime
