// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/group_operations.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using TensorMap = std::function<at::Tensor(const at::Tensor&)>;

/// A linear map and its transpose.
struct LinearPair : torch::CustomClassHolder {
  LinearPair(TensorMap map, TensorMap transpose)
      : map(std::move(map)), transpose(std::move(transpose)) {}
  TensorMap map;
  TensorMap transpose;
};

constexpr const char* kPair = "pair";

at::Tensor apply_linear(
    const at::Tensor& input,
    TensorMap map,
    TensorMap transpose);

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const c10::intrusive_ptr<LinearPair>& pair) {
    context->saved_data[kPair] = c10::IValue::make_capsule(pair);
    return pair->map(input);
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const auto pair = c10::static_intrusive_pointer_cast<LinearPair>(
        context->saved_data[kPair].toCapsule());
    return {
        apply_linear(gradients[0], pair->transpose, pair->map), at::Tensor()};
  }
};

at::Tensor apply_linear(
    const at::Tensor& input,
    TensorMap map,
    TensorMap transpose) {
  return LinearFunction::apply(
      input,
      c10::make_intrusive<LinearPair>(std::move(map), std::move(transpose)));
}

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

/// The own part, of memory of its own: autograd takes no views here.
at::Tensor own_part(
    const at::Tensor& whole,
    int64_t dim,
    const DimSplit& split,
    const Communicator& group) {
  const int rank = group.rank();
  return owned(whole.narrow(dim, split.begin(rank), split.length(rank)));
}

at::Tensor with_length(const at::Tensor& front, int64_t length) {
  std::vector<int64_t> sizes = front.sizes().vec();
  sizes[0] = length;
  return at::empty(sizes, front.options());
}

/// All parts of `dim`, one behind the other.
at::Tensor gathered(
    const at::Tensor& part,
    int64_t dim,
    const DimSplit& split,
    Communicator& group) {
  // c10d joins parts along the first dimension, all of one length.
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
  return all.movedim(0, dim);
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
  return part.movedim(0, dim);
}

at::Tensor exchanged(
    const at::Tensor& part,
    int64_t parts_dim,
    const DimSplit& parts,
    int64_t whole_dim,
    const DimSplit& whole,
    Communicator& group) {
  const int own = group.rank();
  const auto sizes_from = [&](int rank) {
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[static_cast<size_t>(whole_dim)] = whole.length(own);
    sizes[static_cast<size_t>(parts_dim)] = parts.length(rank);
    return sizes;
  };
  AllToAllBlocks blocks;
  std::vector<at::Tensor> sent;
  for (int rank = 0; rank < group.size(); ++rank) {
    sent.push_back(
        part.narrow(whole_dim, whole.begin(rank), whole.length(rank))
            .flatten());
    blocks.sent.push_back(sent.back().numel());
    blocks.taken.push_back(c10::multiply_integers(sizes_from(rank)));
  }
  const at::Tensor input = at::cat(sent);
  const at::Tensor output = at::empty(
      {std::accumulate(blocks.taken.begin(), blocks.taken.end(), int64_t{0})},
      part.options());
  const std::string what = "all-to-all in the group '" + group.name() + "'";
  if (parts.is_even() && whole.is_even()) {
    group.all_to_all(output, input, what).wait();
  } else {
    group.all_to_all(output, input, blocks, what).wait();
  }
  std::vector<at::Tensor> taken = output.split(blocks.taken);
  for (int rank = 0; rank < group.size(); ++rank) {
    at::Tensor& block = taken[static_cast<size_t>(rank)];
    block = block.view(sizes_from(rank));
  }
  return at::cat(taken, parts_dim);
}

void check_length(
    const at::Tensor& tensor,
    int64_t dim,
    int64_t expected,
    const char* function,
    const Communicator& group) {
  TESSERA_CHECK(
      tensor.size(dim) == expected,
      function,
      ": dimension ",
      dim,
      " of a tensor of sizes ",
      tensor.sizes(),
      " should have ",
      expected,
      " elements on rank ",
      group.rank(),
      " of the group '",
      group.name(),
      "'.");
}

} // namespace

at::Tensor copy_to_group(const at::Tensor& whole, Communicator& group) {
  if (group.size() == 1) {
    return whole;
  }
  return apply_linear(whole, unchanged, [&group](const at::Tensor& gradient) {
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
        return own_part(gradient, dim, split, group);
      });
}

at::Tensor take_part(
    const at::Tensor& whole,
    int64_t dim,
    const DimSplit& split,
    Communicator& group) {
  check_length(whole, dim, split.size(), "take_part", group);
  if (group.size() == 1) {
    return whole;
  }
  return apply_linear(
      whole,
      [&group, dim, split](const at::Tensor& tensor) {
        return own_part(tensor, dim, split, group);
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

at::Tensor all_to_all_parts(
    const at::Tensor& part,
    int64_t parts_dim,
    const DimSplit& parts,
    int64_t whole_dim,
    const DimSplit& whole,
    Communicator& group) {
  const char* name = "all_to_all_parts";
  check_length(part, parts_dim, parts.length(group.rank()), name, group);
  check_length(part, whole_dim, whole.size(), name, group);
  if (group.size() == 1) {
    return part;
  }
  const int64_t from = c10::maybe_wrap_dim(parts_dim, part.dim());
  const int64_t to = c10::maybe_wrap_dim(whole_dim, part.dim());
  return apply_linear(
      part,
      [&group, from, parts, to, whole](const at::Tensor& tensor) {
        return exchanged(tensor, from, parts, to, whole, group);
      },
      [&group, from, parts, to, whole](const at::Tensor& gradient) {
        return exchanged(gradient, to, whole, from, parts, group);
      });
}

at::Tensor mean_over_group(const at::Tensor& own, Communicator& group) {
  if (group.size() == 1) {
    return own;
  }
  return apply_linear(
      own,
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
  const int64_t length = partial.size(dim);
  TESSERA_CHECK(
      length > 0 && length % group.size() == 0,
      "reduce_scatter_parts: dimension ",
      dim,
      " of a tensor of sizes ",
      partial.sizes(),
      " is not divided by the ",
      group.size(),
      " ranks of the group '",
      group.name(),
      "'. Under sequence parallelism, pad sequences to a multiple of them.");
  const DimSplit split(length, group.size());
  return apply_linear(
      partial,
      [&group, dim](const at::Tensor& tensor) {
        return reduce_scattered(tensor, dim, group);
      },
      [&group, dim, split](const at::Tensor& gradient) {
        return gathered(gradient, dim, split, group);
      });
}

} // namespace tessera
