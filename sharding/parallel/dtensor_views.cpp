// SPDX-License-Identifier: Apache-2.0
// Rules for operators that rearrange dimensions ([Note: DTensors]).
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/divided_tag.h"
#include "tessera/sharding/parallel/divided_view.h"
#include "tessera/sharding/parallel/dtensor_rules.h"

#include <ATen/InferSize.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/permute.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/select.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/split.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/squeeze.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/t.h>
#include <ATen/ops/transpose.h>
#include <ATen/ops/unbind.h>
#include <ATen/ops/unsqueeze.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

/// Makes a view of a DTensor out of a view of its part.
at::Tensor wrapped(
    const at::Tensor& local,
    std::optional<DividedDim> divided,
    const DTensorImpl& like) {
  const at::Tensor view = make_dtensor(local, std::move(divided), like.how());
  if (like.is_copy()) {
    dtensor(view)->set_copy();
  }
  return view;
}

at::Tensor wrapped(
    const at::Tensor& local,
    int64_t dim,
    const DimSplit& split,
    const DTensorImpl& like) {
  return wrapped(local, DividedDim{dim, split}, like);
}

/// A view of a tensor that is not divided.
at::Tensor undivided(const at::Tensor& view, const at::Tensor& of) {
  const DTensorImpl* wrapper = dtensor(of);
  return wrapper == nullptr ? view : wrapped(view, std::nullopt, *wrapper);
}

/// By the general rule: on the whole.
at::Tensor on_whole(
    const char* name,
    const char* overload,
    torch::jit::Stack arguments) {
  return call_general(name, overload, std::move(arguments))[0].toTensor();
}

/// Views, also of those that are not contiguous in memory: a DTensor says that
/// it is contiguous whatever its part is.
at::Tensor dtensor_view(const at::Tensor& x, at::IntArrayRef sizes) {
  const DTensorImpl* wrapper = dtensor(x);
  const std::vector<int64_t> whole = at::infer_size(sizes, x.numel());
  std::optional<DividedDim> result;
  std::vector<int64_t> own = whole;
  if (wrapper->divided()) {
    result = divided_view(x.sizes(), *wrapper->divided(), whole);
    if (!result) {
      return on_whole("aten::view", "", {x, whole});
    }
    own[static_cast<size_t>(result->dim)] =
        result->split.length(wrapper->group().rank());
  }
  const at::Tensor local = local_of(x);
  const OnParts parts;
  const at::Tensor view = at::reshape(local, own);
  const at::Tensor y = wrapped(view, result, *wrapper);
  if (!view.is_alias_of(local)) {
    dtensor(y)->set_copy();
  }
  return y;
}

at::Tensor view(const at::Tensor& x, at::IntArrayRef sizes) {
  if (is_dtensor(x)) {
    return dtensor_view(x, sizes);
  }
  const OnParts parts;
  return x.view(sizes);
}

at::Tensor unsafe_view(const at::Tensor& x, at::IntArrayRef sizes) {
  if (is_dtensor(x)) {
    return dtensor_view(x, sizes);
  }
  const OnParts parts;
  return at::_unsafe_view(x, sizes);
}

at::Tensor swap_dims(const at::Tensor& x, int64_t dim0, int64_t dim1) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  const at::Tensor local = local_tensor(x);
  const OnParts parts;
  const at::Tensor y = at::transpose(local, dim0, dim1);
  if (wrapper == nullptr) {
    if (x.dim() == 2 && (dim0 - dim1) % 2 != 0) {
      mark_transposed(y, x);
    }
    return undivided(y, x);
  }
  const int64_t a = at::maybe_wrap_dim(dim0, x.dim());
  const int64_t b = at::maybe_wrap_dim(dim1, x.dim());
  const auto& [dim, split] = *wrapper->divided();
  return wrapped(y, dim == a ? b : dim == b ? a : dim, split, *wrapper);
}

at::Tensor t(const at::Tensor& x) {
  if (divided_dtensor(x) != nullptr) {
    return x.dim() < 2 ? x : swap_dims(x, 0, 1);
  }
  const at::Tensor local = local_tensor(x);
  const OnParts parts;
  const at::Tensor y = at::t(local);
  if (x.dim() == 2) {
    mark_transposed(y, x);
  }
  return undivided(y, x);
}

at::Tensor permute(const at::Tensor& x, at::IntArrayRef dims) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  const at::Tensor local = local_tensor(x);
  const OnParts parts;
  const at::Tensor y = at::permute(local, dims);
  if (wrapper == nullptr) {
    return undivided(y, x);
  }
  const auto& [dim, split] = *wrapper->divided();
  for (size_t to = 0; to < dims.size(); ++to) {
    if (at::maybe_wrap_dim(dims[to], x.dim()) == dim) {
      return wrapped(y, static_cast<int64_t>(to), split, *wrapper);
    }
  }
  return y; // at::permute() has refused dims that leave one out
}

at::Tensor unsqueeze(const at::Tensor& x, int64_t dim) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  const at::Tensor local = local_tensor(x);
  const OnParts parts;
  const at::Tensor y = at::unsqueeze(local, dim);
  if (wrapper == nullptr) {
    return undivided(y, x);
  }
  const int64_t at_dim = at::maybe_wrap_dim(dim, x.dim() + 1);
  const auto& [own, split] = *wrapper->divided();
  return wrapped(y, own + (at_dim <= own ? 1 : 0), split, *wrapper);
}

/// Removes those of `dims`, which count from the front, that have one element.
at::Tensor without(const at::Tensor& x, const std::vector<int64_t>& dims) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  std::vector<int64_t> gone;
  for (const int64_t dim : dims) {
    // A part of a dimension of several elements may have one.
    if (x.size(dim) == 1) {
      gone.push_back(dim);
    }
  }
  const at::Tensor local = local_tensor(x);
  const OnParts parts;
  const at::Tensor y = at::squeeze(local, gone);
  if (wrapper == nullptr || wrapper->group().size() == 1) {
    return undivided(y, x);
  }
  const auto& [own, split] = *wrapper->divided();
  const auto before = std::count_if(
      gone.begin(), gone.end(), [&, dim = own](int64_t d) { return d < dim; });
  return wrapped(y, own - before, split, *wrapper);
}

at::Tensor squeeze(const at::Tensor& x) {
  std::vector<int64_t> dims(static_cast<size_t>(x.dim()));
  for (size_t i = 0; i < dims.size(); ++i) {
    dims[i] = static_cast<int64_t>(i);
  }
  return without(x, dims);
}

at::Tensor squeeze_dim(const at::Tensor& x, int64_t dim) {
  return without(x, {at::maybe_wrap_dim(dim, x.dim())});
}

at::Tensor squeeze_dims(const at::Tensor& x, at::IntArrayRef dims) {
  std::vector<int64_t> wrapped_dims;
  for (const int64_t dim : dims) {
    wrapped_dims.push_back(at::maybe_wrap_dim(dim, x.dim()));
  }
  return without(x, wrapped_dims);
}

at::Tensor expand(const at::Tensor& x, at::IntArrayRef sizes, bool implicit) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  const at::Tensor local = local_tensor(x);
  std::vector<int64_t> own = sizes.vec();
  if (wrapper != nullptr && wrapper->group().size() > 1) {
    // The divided dimension keeps its size.
    int64_t& size =
        own.at(own.size() - static_cast<size_t>(-wrapper->dim_from_end()));
    TESSERA_CHECK(
        size == -1 || size == wrapper->divided()->split.size(),
        "expand: dimension {} of a tensor of sizes {} is divided over the ranks of '{}' and cannot become {}; only dimensions of size 1 can be expanded.",
        wrapper->divided()->dim,
        x.sizes(),
        wrapper->group().name(),
        size);
    size = -1;
  }
  const OnParts parts;
  const at::Tensor y = local.expand(own, implicit);
  if (wrapper == nullptr || wrapper->group().size() == 1) {
    return undivided(y, x); // of one rank all elements may be one
  }
  return wrapped(
      y,
      y.dim() + wrapper->dim_from_end(),
      wrapper->divided()->split,
      *wrapper);
}

at::Tensor select(const at::Tensor& x, int64_t dim, int64_t index) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  const int64_t at_dim = at::maybe_wrap_dim(dim, x.dim());
  if (wrapper != nullptr && wrapper->divided()->dim == at_dim) {
    return on_whole("aten::select", "int", {x, dim, index});
  }
  const at::Tensor local = local_tensor(x);
  const OnParts parts;
  const at::Tensor y = at::select(local, dim, index);
  if (wrapper == nullptr) {
    return undivided(y, x);
  }
  const auto& [own, split] = *wrapper->divided();
  return wrapped(y, own - (at_dim < own ? 1 : 0), split, *wrapper);
}

at::Tensor slice(
    const at::Tensor& x,
    int64_t dim,
    std::optional<int64_t> start,
    std::optional<int64_t> end,
    int64_t step) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  if (wrapper != nullptr &&
      wrapper->divided()->dim == at::maybe_wrap_dim(dim, x.dim())) {
    if (start.value_or(0) == 0 && step == 1 &&
        end.value_or(x.size(dim)) >= x.size(dim)) {
      const at::Tensor local = local_of(x);
      const OnParts parts;
      return wrapped(
          at::slice(local, dim),
          wrapper->divided()->dim,
          wrapper->divided()->split,
          *wrapper);
    }
    return on_whole("aten::slice", "Tensor", {x, dim, start, end, step});
  }
  const at::Tensor local = local_tensor(x);
  const OnParts parts;
  const at::Tensor y = at::slice(local, dim, start, end, step);
  return wrapper == nullptr ? undivided(y, x)
                            : wrapped(
                                  y,
                                  wrapper->divided()->dim,
                                  wrapper->divided()->split,
                                  *wrapper);
}

/// Views of `of` along a dimension that is not divided.
/// @param dim the divided dimension of the views.
std::vector<at::Tensor> wrapped_all(
    std::vector<at::Tensor> locals,
    int64_t dim,
    const at::Tensor& of) {
  const DTensorImpl* like = divided_dtensor(of);
  for (at::Tensor& local : locals) {
    local = like == nullptr
                ? undivided(local, of)
                : wrapped(local, dim, like->divided()->split, *like);
  }
  return locals;
}

bool is_across(const DTensorImpl* wrapper, int64_t dim, const at::Tensor& x) {
  return wrapper != nullptr &&
         wrapper->divided()->dim == at::maybe_wrap_dim(dim, x.dim());
}

std::vector<at::Tensor> split(const at::Tensor& x, int64_t size, int64_t dim) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  if (is_across(wrapper, dim, x)) {
    return call_general("aten::split", "Tensor", {x, size, dim})[0]
        .toTensorVector();
  }
  const at::Tensor local = local_tensor(x);
  const OnParts parts;
  return wrapped_all(
      at::split(local, size, dim),
      wrapper == nullptr ? 0 : wrapper->divided()->dim,
      x);
}

std::vector<at::Tensor> split_with_sizes(
    const at::Tensor& x,
    at::IntArrayRef sizes,
    int64_t dim) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  if (is_across(wrapper, dim, x)) {
    return call_general("aten::split_with_sizes", "", {x, sizes.vec(), dim})[0]
        .toTensorVector();
  }
  const at::Tensor local = local_tensor(x);
  const OnParts parts;
  return wrapped_all(
      at::split_with_sizes(local, sizes, dim),
      wrapper == nullptr ? 0 : wrapper->divided()->dim,
      x);
}

std::vector<at::Tensor> unbind(const at::Tensor& x, int64_t dim) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  if (is_across(wrapper, dim, x)) {
    return call_general("aten::unbind", "int", {x, dim})[0].toTensorVector();
  }
  const at::Tensor local = local_tensor(x);
  const int64_t at_dim = at::maybe_wrap_dim(dim, x.dim());
  const OnParts parts;
  return wrapped_all(
      at::unbind(local, dim),
      wrapper == nullptr ? 0
                         : wrapper->divided()->dim -
                               (at_dim < wrapper->divided()->dim ? 1 : 0),
      x);
}

at::Tensor cat(const at::ITensorListRef& list, int64_t dim) {
  std::vector<at::Tensor> tensors;
  const DTensorImpl* like = nullptr;
  for (const at::Tensor& x : list) {
    tensors.push_back(x);
    like = like == nullptr ? divided_dtensor(x) : like;
  }
  if (like == nullptr || is_across(like, dim, tensors[0])) {
    for (at::Tensor& x : tensors) {
      x = full_tensor(x);
    }
    const OnParts parts;
    return at::cat(tensors, dim);
  }
  for (at::Tensor& x : tensors) {
    // torch::cat() ignores empty tensors of one dimension.
    x = x.dim() == like->dim() ? operand(
                                     x,
                                     like->dim_from_end(),
                                     like->divided()->split,
                                     like->group())
                               : full_tensor(x);
  }
  const OnParts parts;
  return wrapped(
      at::cat(tensors, dim),
      like->divided()->dim,
      like->divided()->split,
      *like);
}

at::Tensor stack(at::TensorList list, int64_t dim) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& x : list) {
    tensors.push_back(x.unsqueeze(dim));
  }
  return at::cat(tensors, dim);
}

at::Tensor index_select(
    const at::Tensor& x,
    int64_t dim,
    const at::Tensor& index) {
  check_no_weight(x, "index_select");
  const DTensorImpl* wrapper = divided_dtensor(x);
  const at::Tensor local =
      is_across(wrapper, dim, x) ? full_tensor(x) : local_tensor(x);
  const at::Tensor whole = full_tensor(index);
  const OnParts parts;
  const at::Tensor y = at::index_select(local, dim, whole);
  return wrapper == nullptr || is_across(wrapper, dim, x)
             ? y
             : wrapped(
                   y,
                   wrapper->divided()->dim,
                   wrapper->divided()->split,
                   *wrapper);
}

at::Tensor repeat_interleave(
    const at::Tensor& x,
    int64_t repeats,
    std::optional<int64_t> dim,
    std::optional<int64_t> output_size) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  if (wrapper != nullptr && !dim) {
    return on_whole(
        "aten::repeat_interleave", "self_int", {x, repeats, dim, output_size});
  }
  const at::Tensor local = local_tensor(x);
  const OnParts parts;
  if (wrapper == nullptr) {
    return at::repeat_interleave(local, repeats, dim, output_size);
  }
  const auto& [own, split] = *wrapper->divided();
  const bool across = is_across(wrapper, *dim, x);
  return wrapped(
      at::repeat_interleave(local, repeats, dim),
      own,
      across
          ? DimSplit(
                split.size() * repeats, split.parts(), split.unit() * repeats)
          : split,
      *wrapper);
}

at::Tensor constant_pad_nd(
    const at::Tensor& x,
    at::IntArrayRef pad,
    const at::Scalar& value) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  const bool pads =
      wrapper != nullptr &&
      static_cast<int64_t>(pad.size()) / 2 >= -wrapper->dim_from_end() &&
      (pad[static_cast<size_t>(-2 * wrapper->dim_from_end() - 2)] != 0 ||
       pad[static_cast<size_t>(-2 * wrapper->dim_from_end() - 1)] != 0);
  const at::Tensor local = pads ? full_tensor(x) : local_tensor(x);
  const OnParts parts;
  const at::Tensor y = at::constant_pad_nd(local, pad, value);
  return wrapper == nullptr || pads ? y
                                    : wrapped(
                                          y,
                                          wrapper->divided()->dim,
                                          wrapper->divided()->split,
                                          *wrapper);
}

} // namespace

void register_view_rules(torch::Library& library) {
  library.impl("view", TORCH_FN(view));
  library.impl("_unsafe_view", TORCH_FN(unsafe_view));
  library.impl("t", TORCH_FN(t));
  library.impl("transpose.int", TORCH_FN(swap_dims));
  library.impl("permute", TORCH_FN(permute));
  library.impl("unsqueeze", TORCH_FN(unsqueeze));
  library.impl("squeeze", TORCH_FN(squeeze));
  library.impl("squeeze.dim", TORCH_FN(squeeze_dim));
  library.impl("squeeze.dims", TORCH_FN(squeeze_dims));
  library.impl("expand", TORCH_FN(expand));
  library.impl("select.int", TORCH_FN(select));
  library.impl("slice.Tensor", TORCH_FN(slice));
  library.impl("split.Tensor", TORCH_FN(split));
  library.impl("split_with_sizes", TORCH_FN(split_with_sizes));
  library.impl("unbind.int", TORCH_FN(unbind));
  library.impl("cat", TORCH_FN(cat));
  library.impl("stack", TORCH_FN(stack));
  library.impl("index_select", TORCH_FN(index_select));
  library.impl("repeat_interleave.self_int", TORCH_FN(repeat_interleave));
  library.impl("constant_pad_nd", TORCH_FN(constant_pad_nd));
}

} // namespace tessera::sharding
