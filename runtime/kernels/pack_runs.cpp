// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/pack_runs.h"

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

std::optional<PackShard> pack_shard(const PackRun& run) {
  const auto type = element_type(
      (run.source.defined() ? run.source : run.target).scalar_type());
  if (!type || !run.target.is_non_overlapping_and_dense()) {
    return std::nullopt;
  }
  if (!run.source.defined()) {
    return PackShard{
        nullptr, run.target.mutable_data_ptr(), run.target.numel(), *type};
  }
  if (run.source.strides() != run.target.strides() ||
      run.source.device() != run.target.device()) {
    return std::nullopt;
  }
  return PackShard{
      run.source.const_data_ptr(),
      run.target.mutable_data_ptr(),
      run.target.numel(),
      *type};
}

void pack_by_operators(const PackRun& run, double factor, PackMode mode) {
  if (mode == PackMode::kAdd) {
    run.target.add_(run.source, factor);
  } else if (!run.source.defined()) {
    run.target.zero_();
  } else if (factor == 1) {
    run.target.copy_(run.source);
  } else {
    // Rounds only once.
    const auto wide = at::promote_types(run.source.scalar_type(), at::kFloat);
    run.target.copy_(run.source.to(wide).mul(factor));
  }
}

} // namespace detail

namespace {

void check(const PackRun& run, const PackRun& first) {
  TESSERA_CHECK(
      run.target.scalar_type() == first.target.scalar_type() &&
          run.target.device() == first.target.device(),
      "pack_runs_: one target is {} on {}, another {} on {}; all must have the same dtype and device.",
      first.target.toString(),
      first.target.device(),
      run.target.toString(),
      run.target.device());
  TESSERA_CHECK(
      !run.source.defined() || run.source.sizes() == run.target.sizes(),
      "pack_runs_: a source of shape {} does not match its target of shape {}.",
      run.source.defined() ? run.source.sizes() : c10::IntArrayRef{},
      run.target.sizes());
}

} // namespace

void pack_runs_(std::span<const PackRun> runs, double factor, PackMode mode) {
  if (runs.empty()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const at::Tensor& target = runs.front().target;
  const auto target_type = detail::element_type(target.scalar_type());
  const bool has_kernel =
      at::isAccelerator(target.device().type()) && target_type.has_value();
  std::vector<PackShard> shards;
  DryKernel kernel("tessera::pack_");
  for (const PackRun& run : runs) {
    check(run, runs.front());
    if (mode == PackMode::kAdd && !run.source.defined()) {
      continue;
    }
    kernel.reads(run.source);
    kernel.reads(mode == PackMode::kAdd ? run.target : at::Tensor());
    kernel.writes(run.target);
    const auto shard = has_kernel ? detail::pack_shard(run) : std::nullopt;
    if (shard) {
      shards.push_back(*shard);
    } else {
      detail::pack_by_operators(run, factor, mode);
    }
  }
  if (!shards.empty()) {
    const c10::DeviceGuard guard(target.device());
    pack_cuda(shards, *target_type, factor, mode);
  }
}

} // namespace tessera::runtime
