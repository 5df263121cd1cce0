// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/collectives/redistribute.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/tensors/placed_dim.h"

#include <ATen/ops/constant_pad_nd.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace {

bool is_shard(const Placement& placement) {
  return std::holds_alternative<Shard>(placement);
}

std::string text_of(const Placements& placements) {
  std::string text;
  for (const Placement& placement : placements) {
    text += (text.empty() ? "" : ", ") + to_string(placement);
  }
  return text;
}

/// A dimension and its division.
struct Parts {
  int64_t dim = 0;
  sharding::DimSplit split;
};

/// Implements [Note: placements] for one axis; `group` has at least two ranks.
class AxisChange {
 public:
  explicit AxisChange(Communicator& group) : group_(group) {}

  at::Tensor from_shard(
      const at::Tensor& x,
      const Parts& parts,
      const Placement& to) const {
    const auto& [dim, split] = parts;
    if (std::holds_alternative<Partial>(to)) {
      // Zeros in place of the other ranks' parts. constant_pad_nd() counts
      // dimensions from the end.
      const int64_t before = split.begin(group_.rank());
      const int64_t after = split.size() - before - x.size(dim);
      std::vector<int64_t> pad(static_cast<size_t>(2 * (x.dim() - dim)), 0);
      pad[pad.size() - 2] = before;
      pad[pad.size() - 1] = after;
      return at::constant_pad_nd(x, pad);
    }
    if (std::holds_alternative<Shared>(to) && split.is_even()) {
      return sharding::all_gather_parts(x, dim, group_);
    }
    return from_full(gather_parts(x, dim, split, group_), to);
  }

  at::Tensor to_shard(
      const at::Tensor& x,
      const Placement& from,
      const Parts& parts) const {
    const auto& [dim, split] = parts;
    if (std::holds_alternative<Shared>(from)) {
      return x.narrow(
          dim, split.begin(group_.rank()), split.length(group_.rank()));
    }
    if (std::holds_alternative<Partial>(from) && split.is_even()) {
      return sharding::reduce_scatter_parts(x, dim, group_);
    }
    return take_part(to_full(x, from), dim, split, group_);
  }

  /// Changes between placements that do not change sizes.
  at::Tensor of_full(
      const at::Tensor& x,
      const Placement& from,
      const Placement& to) const {
    if (std::holds_alternative<Shared>(from) &&
        std::holds_alternative<Partial>(to)) {
      return x * (group_.rank() == 0 ? 1 : 0); // the gradient is masked, too
    }
    return from_full(to_full(x, from), to);
  }

 private:
  /// Changes to Replicate.
  at::Tensor to_full(const at::Tensor& x, const Placement& from) const {
    if (std::holds_alternative<Partial>(from)) {
      return sharding::reduce_over_group(x, group_);
    }
    return std::holds_alternative<Shared>(from)
               ? sharding::reduce_over_group(
                     of_full(x, Shared{}, Partial{}), group_)
               : x;
  }

  /// Changes from Replicate.
  at::Tensor from_full(const at::Tensor& x, const Placement& to) const {
    if (std::holds_alternative<Shared>(to)) {
      return sharding::copy_to_group(x, group_);
    }
    return std::holds_alternative<Partial>(to)
               ? of_full(
                     sharding::copy_to_group(x, group_), Shared{}, Partial{})
               : x;
  }

  Communicator& group_;
};

/// Changes the placement of a tensor axis by axis.
class Redistribution {
 public:
  Redistribution(
      at::Tensor tensor,
      at::IntArrayRef sizes,
      const Placements& from,
      at::ArrayRef<Communicator*> groups)
      : tensor_(std::move(tensor)), sizes_(sizes), now_(from), groups_(groups) {
    const std::vector<int64_t> expected = placed_sizes(sizes, from, groups);
    TESSERA_CHECK(
        tensor_.sizes() == at::IntArrayRef(expected),
        "redistribute: the tensor has sizes {}, but a whole of sizes {} that is placed as {{{}}} has a part of {} on this rank. Pass the sizes of the whole and its current placements.",
        tensor_.sizes(),
        sizes,
        text_of(from),
        at::IntArrayRef(expected));
  }

  at::Tensor to(const Placements& goal) {
    for (size_t axis = groups_.size(); axis-- > 0;) {
      // An inner axis divides what the outer ones leave, so it is gathered
      // before they change.
      if (is_shard(now_[axis]) &&
          (!is_shard(goal[axis]) || in_the_way(axis, goal))) {
        change(axis, is_shard(goal[axis]) ? Replicate{} : goal[axis]);
      }
    }
    for (size_t axis = 0; axis < groups_.size(); ++axis) {
      change(axis, goal[axis]);
    }
    return tensor_;
  }

 private:
  size_t dims() const {
    return sizes_.size();
  }

  /// Returns whether an axis outside of this one divides the same dimension and
  /// changes.
  bool in_the_way(size_t axis, const Placements& goal) const {
    const size_t dim =
        sharding::dim_of(std::get<Shard>(now_[axis]), dims(), axis);
    const auto divides = [&](const Placement& placement, size_t outer) {
      const auto* shard = std::get_if<Shard>(&placement);
      return shard != nullptr && sharding::dim_of(*shard, dims(), outer) == dim;
    };
    for (size_t outer = 0; outer < axis; ++outer) {
      if (now_[outer] != goal[outer] &&
          (divides(now_[outer], outer) || divides(goal[outer], outer))) {
        return true;
      }
    }
    return false;
  }

  /// Returns how this axis divides what the outer axes leave.
  Parts parts_of(size_t axis, const Shard& shard) const {
    const size_t dim = sharding::dim_of(shard, dims(), axis);
    const Placements outer(now_.begin(), now_.begin() + static_cast<int>(axis));
    const int64_t length =
        placed_sizes(sizes_, outer, groups_.slice(0, axis))[dim];
    return {
        static_cast<int64_t>(dim),
        sharding::split_of(shard, length, axis, *groups_[axis])};
  }

  void change(size_t axis, const Placement& goal) {
    const Placement from = std::exchange(now_[axis], goal);
    if (from == goal || groups_[axis]->size() == 1) {
      return;
    }
    const AxisChange change(*groups_[axis]);
    const auto* divided = std::get_if<Shard>(&from);
    const auto* dividing = std::get_if<Shard>(&goal);
    if (divided != nullptr) {
      tensor_ = change.from_shard(
          tensor_,
          parts_of(axis, *divided),
          dividing != nullptr ? Replicate{} : goal);
    }
    if (dividing != nullptr) {
      tensor_ = change.to_shard(
          tensor_,
          divided != nullptr ? Replicate{} : from,
          parts_of(axis, *dividing));
    }
    if (divided == nullptr && dividing == nullptr) {
      tensor_ = change.of_full(tensor_, from, goal);
    }
  }

  at::Tensor tensor_;
  at::IntArrayRef sizes_;
  Placements now_;
  at::ArrayRef<Communicator*> groups_;
};

} // namespace

at::Tensor redistribute(
    const at::Tensor& tensor,
    at::IntArrayRef sizes,
    const Placements& from,
    const Placements& to,
    at::ArrayRef<Communicator*> groups) {
  placed_sizes(sizes, to, groups); // reports errors before communicating
  return Redistribution(tensor, sizes, from, groups).to(to);
}

at::Tensor redistribute(
    const at::Tensor& tensor,
    const Placement& from,
    const Placement& to,
    Communicator& group) {
  if (group.size() == 1 || from == to) {
    return tensor;
  }
  std::vector<int64_t> sizes = tensor.sizes().vec();
  if (const auto* shard = std::get_if<Shard>(&from)) {
    sizes[sharding::dim_of(*shard, sizes.size(), 0)] *= group.size();
  }
  if (const auto* shard = std::get_if<Shard>(&to)) {
    const int64_t length = sizes[sharding::dim_of(*shard, sizes.size(), 0)];
    TESSERA_CHECK(
        length > 0 && length % (shard->unit * group.size()) == 0,
        "redistribute: dimension {} of a tensor of sizes {} is not divisible by the {} ranks of the group '{}'. Pad it to a multiple of their number, like sequences under sequence parallelism, or pass the sizes of the whole.",
        shard->dim,
        at::IntArrayRef(sizes),
        group.size(),
        group.name());
  }
  Communicator* const groups[] = {&group};
  return redistribute(tensor, sizes, {from}, {to}, groups);
}

} // namespace tessera
