// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensors/tensor_spec.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensors/placed_dim.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

namespace tessera {

namespace {

/// Calls `visit` with each axis that divides a dimension, the dimension, and
/// how it divides the part of it that the axes before leave; `range` is that
/// part, and becomes this rank's.
template <typename Visit>
void for_each_shard(const TensorSpec& spec, const Visit& visit) {
  std::vector<DimRange> ranges;
  for (size_t d = 0; d < spec.sizes.size(); ++d) {
    ranges.push_back({static_cast<int64_t>(d), 0, spec.sizes[d]});
  }
  for (size_t i = 0; i < spec.axes.size(); ++i) {
    const SpecAxis& axis = spec.axes[i];
    if (const auto* shard = std::get_if<Shard>(&axis.placement)) {
      DimRange& range = ranges[sharding::dim_of(*shard, ranges.size(), i)];
      const sharding::DimSplit split(
          range.end - range.begin, axis.ranks, shard->unit);
      const int64_t begin = range.begin;
      range.end = begin + split.begin(axis.rank + 1);
      range.begin = begin + split.begin(axis.rank);
      visit(axis, range, split);
    }
  }
}

} // namespace

int64_t TensorSpec::numel() const {
  return c10::multiply_integers(sizes);
}

std::vector<int64_t> TensorSpec::local_sizes() const {
  std::vector<int64_t> local = sizes;
  for_each_shard(
      *this, [&](const SpecAxis&, const DimRange& range, const auto&) {
        local[static_cast<size_t>(range.dim)] = range.end - range.begin;
      });
  return local;
}

TensorSlice TensorSpec::part() const {
  TensorSlice part;
  std::vector<std::optional<DimRange>> ranges(sizes.size());
  for_each_shard(
      *this, [&](const SpecAxis&, const DimRange& range, const auto&) {
        ranges[static_cast<size_t>(range.dim)] = range;
      });
  part.numel = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const DimRange all{static_cast<int64_t>(d), 0, sizes[d]};
    const DimRange range = ranges[d].value_or(all);
    part.numel *= range.end - range.begin;
    if (range != all) {
      part.ranges.push_back(range);
    }
  }
  for (const SpecAxis& axis : axes) {
    if (const auto* flat = std::get_if<Flat>(&axis.placement)) {
      const int64_t first = axis.rank * flat->shard_numel - flat->span.begin;
      const int64_t end =
          std::clamp<int64_t>(first + flat->shard_numel, 0, flat->span.numel);
      part.offset = std::clamp<int64_t>(first, 0, flat->span.numel);
      part.numel = end - part.offset;
    }
  }
  return part;
}

std::optional<int64_t> TensorSpec::divided_dim(std::string_view axis) const {
  std::optional<int64_t> dim;
  for_each_shard(
      *this, [&](const SpecAxis& one, const DimRange& range, const auto&) {
        if (one.name == axis) {
          dim = range.dim;
        }
      });
  return dim;
}

sharding::DimSplit TensorSpec::split(std::string_view axis) const {
  std::optional<sharding::DimSplit> found;
  for_each_shard(
      *this, [&](const SpecAxis& one, const DimRange&, const auto& split) {
        if (one.name == axis) {
          found = split;
        }
      });
  TESSERA_CHECK(
      found.has_value(),
      "'{}' is not divided over the axis '{}'.",
      names.empty() ? "" : name(),
      axis);
  return *found;
}

TensorSpec full_spec(
    std::vector<std::string> names,
    std::vector<int64_t> sizes,
    at::ScalarType dtype) {
  return {std::move(names), std::move(sizes), dtype, {}, 0};
}

} // namespace tessera
