// SPDX-License-Identifier: Apache-2.0
#pragma once
// A `Placement` says what the ranks of a group hold of a tensor.

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tessera {

class Communicator;

/// [Note: placements] Along an axis of a mesh, a tensor has one of four
/// placements, which also determine what a rank's gradient is:
///
/// | placement   | a rank has          | its gradient is         |
/// | Replicate   | the whole           | the whole gradient      |
/// | Shard       | a part of dimension | the part of it          |
/// | Partial     | a summand           | the whole gradient      |
/// | Shared      | the whole           | a summand               |
///
/// Replicate is for tensors that all ranks use in the same way, Shared for
/// tensors that each rank uses in its own way, such as multiplying them with
/// its partition of a weight. A change of placement is linear, and its gradient
/// is another change of placement: a change from Partial to Shard has a
/// gradient that changes from Shard to Shared, i.e. an all-gather.

/// Every rank has the whole tensor and the same gradient.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};

/// Consecutive parts of dimension `dim`, in whole units such as heads; see
/// DimSplit for uneven parts.
struct Shard {
  int64_t dim = 0; ///< counted from the end if negative
  int64_t unit = 1;
  bool operator==(const Shard&) const = default;
};

/// The sum over the ranks is the tensor.
struct Partial {
  bool operator==(const Partial&) const = default;
};

/// Every rank has the whole tensor; the sum of the gradients is the gradient.
struct Shared {
  bool operator==(const Shared&) const = default;
};

using Placement = std::variant<Replicate, Shard, Partial, Shared>;

/// Formats a placement as in code, e.g. "Shard{1}".
std::string to_string(const Placement& placement);

/// One placement per axis, outermost first. Two axes may divide the same
/// dimension: the second then divides what the first leaves.
using Placements = std::vector<Placement>;

/// Returns the sizes of what this rank has of a tensor of `sizes`.
/// @param groups this rank's group on each axis.
/// @throws tessera::Error naming the axis when a dimension does not exist or
///   cannot be divided.
std::vector<int64_t> placed_sizes(
    at::IntArrayRef sizes,
    const Placements& placements,
    at::ArrayRef<Communicator*> groups);

} // namespace tessera
