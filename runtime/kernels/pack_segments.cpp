// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/pack_segments.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/device_kernels.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <vector>

namespace tessera::runtime {

namespace detail {

std::optional<ElementType> element_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ElementType::kFloat32;
    case at::kDouble:
      return ElementType::kFloat64;
    case at::kHalf:
      return ElementType::kFloat16;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    default:
      return std::nullopt;
  }
}

std::optional<PackShard> pack_shard(const PackSegment& segment) {
  const auto type =
      element_type((segment.source.defined() ? segment.source : segment.target)
                       .scalar_type());
  if (!type || !segment.target.is_non_overlapping_and_dense()) {
    return std::nullopt;
  }
  if (!segment.source.defined()) {
    return PackShard{
        nullptr,
        segment.target.mutable_data_ptr(),
        segment.target.numel(),
        *type};
  }
  if (segment.source.strides() != segment.target.strides() ||
      segment.source.device() != segment.target.device()) {
    return std::nullopt;
  }
  return PackShard{
      segment.source.const_data_ptr(),
      segment.target.mutable_data_ptr(),
      segment.target.numel(),
      *type};
}

void pack_by_operators(
    const PackSegment& segment,
    double factor,
    PackMode mode) {
  if (mode == PackMode::kAdd) {
    segment.target.add_(segment.source, factor);
  } else if (!segment.source.defined()) {
    segment.target.zero_();
  } else if (factor == 1) {
    segment.target.copy_(segment.source);
  } else {
    // Rounds only once.
    const auto wide =
        at::promote_types(segment.source.scalar_type(), at::kFloat);
    segment.target.copy_(segment.source.to(wide).mul(factor));
  }
}

} // namespace detail

namespace {

void check(const PackSegment& segment, const PackSegment& first) {
  TESSERA_CHECK(
      segment.target.scalar_type() == first.target.scalar_type() &&
          segment.target.device() == first.target.device(),
      "pack_segments_: one target is {} on {}, another {} on {}; all must have the same dtype and device.",
      first.target.toString(),
      first.target.device(),
      segment.target.toString(),
      segment.target.device());
  TESSERA_CHECK(
      !segment.source.defined() ||
          segment.source.sizes() == segment.target.sizes(),
      "pack_segments_: a source of shape {} does not match its target of shape {}.",
      segment.source.defined() ? segment.source.sizes() : c10::IntArrayRef{},
      segment.target.sizes());
}

} // namespace

void pack_segments_(
    std::span<const PackSegment> segments,
    double factor,
    PackMode mode) {
  if (segments.empty()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const at::Tensor& target = segments.front().target;
  const auto target_type = detail::element_type(target.scalar_type());
  const bool has_kernel =
      at::isAccelerator(target.device().type()) && target_type.has_value();
  std::vector<PackShard> shards;
  DryKernel kernel("tessera::pack_");
  for (const PackSegment& segment : segments) {
    check(segment, segments.front());
    if (mode == PackMode::kAdd && !segment.source.defined()) {
      continue;
    }
    kernel.reads(segment.source);
    kernel.reads(mode == PackMode::kAdd ? segment.target : at::Tensor());
    kernel.writes(segment.target);
    const auto shard = has_kernel ? detail::pack_shard(segment) : std::nullopt;
    if (shard) {
      shards.push_back(*shard);
    } else {
      detail::pack_by_operators(segment, factor, mode);
    }
  }
  if (!shards.empty()) {
    const c10::DeviceGuard guard(target.device());
    pack_cuda(shards, *target_type, factor, mode);
  }
}

} // namespace tessera::runtime
