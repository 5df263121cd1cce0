// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/collectives/group_operations.h"

#include "tessera/sharding/collectives/check_length.h"
#include "tessera/sharding/collectives/linear_function.h"

#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <vector>

namespace tessera::sharding {

namespace {

at::Tensor unchanged(const at::Tensor& tensor) {
  return tensor;
}

at::Tensor owned(const at::Tensor& tensor) {
  return tensor.clone(at::MemoryFormat::Contiguous);
}

at::Tensor summed(const at::Tensor& tensor, Communicator& group) {
  at::Tensor sum = owned(tensor);
  group.all_reduce_sum(sum, "sum over the group '" + group.name() + "'").wait();
  return sum;
}

/// Returns this rank's part, in memory of its own: autograd accepts no views
/// here.
at::Tensor local_part(
    const at::Tensor& full,
    int64_t dim,
    const DimSplit& split,
    const Communicator& group) {
  const int rank = group.rank();
  return owned(full.narrow(dim, split.begin(rank), split.length(rank)));
}

at::Tensor with_length(const at::Tensor& front, int64_t length) {
  std::vector<int64_t> sizes = front.sizes().vec();
  sizes[0] = length;
  return at::empty(sizes, front.options());
}

/// Concatenates the parts of all ranks along `dim`.
/// Moves dimension 0 to `dim`; contiguous, for otherwise products and norms
/// would each copy it and keep their copies. No view for autograd, which
/// refuses those that a custom function returns where layers add a bias in
/// place.
at::Tensor moved_from_front(const at::Tensor& x, int64_t dim) {
  const at::Tensor moved = x.movedim(0, dim);
  return moved.is_contiguous() ? at::_unsafe_view(x, moved.sizes())
                               : moved.contiguous();
}

at::Tensor gathered(
    const at::Tensor& part,
    int64_t dim,
    const DimSplit& split,
    Communicator& group) {
  // c10d concatenates parts of equal length along the first dimension.
  at::Tensor front = part.movedim(dim, 0).contiguous();
  const int64_t longest = split.longest();
  if (front.size(0) < longest) {
    at::Tensor padded = with_length(front, longest).zero_();
    padded.narrow(0, 0, front.size(0)).copy_(front);
    front = padded;
  }
  at::Tensor all = with_length(front, longest * group.size());
  group.all_gather(all, front, "gather of the group '" + group.name() + "'")
      .wait();
  if (!split.is_even()) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < group.size(); ++rank) {
      parts.push_back(all.narrow(0, rank * longest, split.length(rank)));
    }
    all = at::cat(parts);
  }
  return moved_from_front(all, dim);
}

at::Tensor reduce_scattered(
    const at::Tensor& partial,
    int64_t dim,
    Communicator& group) {
  const at::Tensor front = owned(partial.movedim(dim, 0));
  at::Tensor part = with_length(front, front.size(0) / group.size());
  group
      .reduce_scatter_sum(
          part, front, "reduce-scatter in the group '" + group.name() + "'")
      .wait();
  return moved_from_front(part, dim);
}

} // namespace

at::Tensor copy_to_group(const at::Tensor& full, Communicator& group) {
  if (group.size() == 1) {
    return full;
  }
  return apply_linear(full, unchanged, [&group](const at::Tensor& gradient) {
    return summed(gradient, group);
  });
}

at::Tensor reduce_over_group(const at::Tensor& partial, Communicator& group) {
  if (group.size() == 1) {
    return partial;
  }
  return apply_linear(
      partial,
      [&group](const at::Tensor& tensor) { return summed(tensor, group); },
      unchanged);
}

at::Tensor gather_parts(
    const at::Tensor& part,
    int64_t dim,
    const DimSplit& split,
    Communicator& group) {
  check_length(part, dim, split.length(group.rank()), "gather_parts", group);
  if (group.size() == 1) {
    return part;
  }
  return apply_linear(
      part,
      [&group, dim, split](const at::Tensor& tensor) {
        return gathered(tensor, dim, split, group);
      },
      [&group, dim, split](const at::Tensor& gradient) {
        return local_part(gradient, dim, split, group);
      });
}

at::Tensor take_part(
    const at::Tensor& full,
    int64_t dim,
    const DimSplit& split,
    Communicator& group) {
  check_length(full, dim, split.size(), "take_part", group);
  if (group.size() == 1) {
    return full;
  }
  return apply_linear(
      full,
      [&group, dim, split](const at::Tensor& tensor) {
        return local_part(tensor, dim, split, group);
      },
      [&group, dim, split](const at::Tensor& gradient) {
        return gathered(gradient, dim, split, group);
      });
}

at::Tensor all_gather_parts(
    const at::Tensor& part,
    int64_t dim,
    Communicator& group) {
  if (group.size() == 1) {
    return part;
  }
  const DimSplit split(part.size(dim) * group.size(), group.size());
  return apply_linear(
      part,
      [&group, dim, split](const at::Tensor& tensor) {
        return gathered(tensor, dim, split, group);
      },
      [&group, dim](const at::Tensor& gradient) {
        return reduce_scattered(gradient, dim, group);
      });
}

at::Tensor mean_over_group(const at::Tensor& local, Communicator& group) {
  if (group.size() == 1) {
    return local;
  }
  return apply_linear(
      local,
      [&group](const at::Tensor& tensor) {
        return summed(tensor, group).div_(group.size());
      },
      unchanged);
}

at::Tensor reduce_scatter_parts(
    const at::Tensor& partial,
    int64_t dim,
    Communicator& group) {
  if (group.size() == 1) {
    return partial;
  }
  check_divides(partial, dim, "reduce_scatter_parts", group);
  const DimSplit split(partial.size(dim), group.size());
  return apply_linear(
      partial,
      [&group, dim](const at::Tensor& tensor) {
        return reduce_scattered(tensor, dim, group);
      },
      [&group, dim, split](const at::Tensor& gradient) {
        return gathered(gradient, dim, split, group);
      });
}

} // namespace tessera::sharding
