// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the ranks of a group have of a tensor.

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tessera {

class Communicator;

/// [Note: placements] Along an axis of a mesh, a tensor is placed in one of
/// four ways, which say what a rank's gradient of it is, too:
///
/// | placement   | a rank has          | its gradient is         |
/// | Replicate   | the whole           | the whole gradient      |
/// | Shard       | a part of dimension | the part of it          |
/// | Partial     | a summand           | the whole gradient      |
/// | Shared      | the whole           | a summand               |
///
/// Replicate is for what all ranks go on with in the same way, Shared for what
/// each goes on with in a way of its own, such as multiplying its part of a
/// weight with it. Changing the placement is linear, and its gradient is
/// another change of placement: what goes from Partial to Shard has a gradient
/// that goes from Shard to Shared, which is what one gathers.

/// Every rank has the whole, and the same gradient.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};

/// Consecutive parts of dimension `dim`, of whole units such as heads; see
/// DimSplit for those that are not even.
struct Shard {
  int64_t dim = 0; ///< from the back if negative
  int64_t unit = 1;
  bool operator==(const Shard&) const = default;
};

/// The sum over the ranks is the tensor.
struct Partial {
  bool operator==(const Partial&) const = default;
};

/// Every rank has the whole; the sum of the gradients is the gradient.
struct Shared {
  bool operator==(const Shared&) const = default;
};

using Placement = std::variant<Replicate, Shard, Partial, Shared>;

/// As it is written, e.g. "Shard{1}".
std::string to_string(const Placement& placement);

/// One for each axis, outermost first. Two axes may divide the same dimension:
/// the second then divides what the first has left.
using Placements = std::vector<Placement>;

/// What this rank has of a tensor of `sizes`.
/// @param groups this rank's group on each axis.
/// @throws tessera::Error naming the axis when a dimension does not exist or
///     cannot be divided.
std::vector<int64_t> placed_sizes(
    at::IntArrayRef sizes,
    const Placements& placements,
    at::ArrayRef<Communicator*> groups);

} // namespace tessera
