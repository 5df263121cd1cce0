// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TensorSpec` describes a tensor of the whole model and how the ranks of a
// mesh divide it; `TensorSlice` is what one of them has.

#include "tessera/runtime/memory/flat_layout.h"
#include "tessera/sharding/tensors/dim_split.h"
#include "tessera/sharding/tensors/placement.h"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

/// Placement of a parameter on the ranks that shard its page (ZeRO): each has
/// the same number of consecutive elements of the page, and so some, all or
/// none of the parameter.
struct Flat {
  runtime::FlatSpan span; ///< of the parameter, in the page
  int64_t shard_numel = 0; ///< elements of the page on each rank
};

/// An axis of the mesh, this rank's place on it, and how the tensor is placed.
struct SpecAxis {
  std::string name; ///< "tensor", "shard"
  int ranks = 1;
  int rank = 0;
  std::variant<Replicate, Shard, Flat> placement;
};

/// The names of axes.
inline constexpr const char* kTensorAxis = "tensor";
inline constexpr const char* kShardAxis = "shard";

/// Indices [begin, end) of a dimension.
struct DimRange {
  int64_t dim = 0;
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const DimRange&) const = default;
};

/// Some elements of a tensor: those whose indices are in `ranges` and, of these
/// in their order, a stretch. The order is that of a contiguous tensor; for a
/// tensor without ranges, that of its memory.
struct TensorSlice {
  /// Ascending by dimension; all indices of the dimensions that are not listed.
  std::vector<DimRange> ranges;
  int64_t offset = 0; ///< of the stretch
  int64_t numel = 0; ///< of the stretch

  bool operator==(const TensorSlice&) const = default;
};

/// [Note: tensor specs] A parameter has the same spec on all ranks, except for
/// the rank's own place on the axes. Which elements are on this rank, in a file
/// or on any other rank follows from it: part() of either, and intersect() of
/// the two. Shard axes divide dimensions one after another, each what the ones
/// before it leave; a Flat axis, the last one, divides what is left by element.
struct TensorSpec {
  /// In the whole model; several if it is tied. Not empty.
  std::vector<std::string> names;
  std::vector<int64_t> sizes; ///< of the whole tensor
  at::ScalarType dtype = at::kFloat;
  std::vector<SpecAxis> axes; ///< outermost first; empty: replicated everywhere
  int pipeline_stage = 0; ///< the first one that has it

  const std::string& name() const {
    return names.front();
  }
  /// Number of elements of the whole tensor.
  int64_t numel() const;

  /// What this rank has.
  /// @throws tessera::Error when a dimension does not exist or cannot be
  ///   divided.
  TensorSlice part() const;
  /// Returns whether part() has some indices only.
  bool is_divided() const {
    return !part().ranges.empty();
  }
  /// The sizes of the tensor on this rank, regardless of Flat axes.
  std::vector<int64_t> local_sizes() const;

  /// The dimension that an axis divides; nothing if it divides none.
  std::optional<int64_t> divided_dim(std::string_view axis) const;
  /// How an axis divides its dimension, also over a single rank.
  /// @throws tessera::Error when it divides none.
  sharding::DimSplit split(std::string_view axis) const;
};

/// Returns the spec of a tensor that is whole on every rank.
TensorSpec full_spec(
    std::vector<std::string> names,
    std::vector<int64_t> sizes,
    at::ScalarType dtype);

} // namespace tessera
