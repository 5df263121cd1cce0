// SPDX-License-Identifier: Apache-2.0
// Rules for operators that rearrange dimensions ([Note: DTensors]).
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/divided_tag.h"
#include "tessera/sharding/tensor_parallel/divided_view.h"
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"

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
#include <optional>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

/// Makes a view of a DTensor out of a view of its part.
at::Tensor wrapped(
    const at::Tensor& local,
    std::optional<DividedDim> divided,
    const DTensorImpl& like) {
  const at::Tensor view = make_dtensor(local, std::move(divided), like.tp());
  if (like.is_copy()) {
    dtensor(view)->set_copy();
  }
  return view;
}

/// Makes a view of `x` out of a view of what this rank has of it.
/// @param dim where the divided dimension of `x` is in the view, if `x` is
///   divided; nothing: it is gone, which only one rank's can be.
at::Tensor view_of(
    const at::Tensor& x,
    const at::Tensor& local,
    std::optional<int64_t> dim) {
  const DTensorImpl* wrapper = dtensor(x);
  if (wrapper == nullptr) {
    return local;
  }
  std::optional<DividedDim> divided;
  if (wrapper->divided() && dim) {
    divided = {*dim, wrapper->divided()->split};
  }
  return wrapped(local, divided, *wrapper);
}

/// The divided dimension of `x`, counted from the front; -1: not divided.
int64_t divided_dim(const at::Tensor& x) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  return wrapper == nullptr ? -1 : wrapper->divided()->dim;
}

/// Whether `dim` is the divided dimension of `x`.
bool is_across(const at::Tensor& x, int64_t dim) {
  return divided_dtensor(x) != nullptr &&
         divided_dim(x) == at::maybe_wrap_dim(dim, x.dim());
}

/// By the general rule: on the whole.
at::Tensor on_full(
    const char* name,
    const char* overload,
    torch::jit::Stack arguments) {
  return call_general(name, overload, std::move(arguments))[0].toTensor();
}

/// Views, also of those that are not contiguous in memory: a DTensor says that
/// it is contiguous whatever its part is.
at::Tensor dtensor_view(const at::Tensor& x, at::IntArrayRef sizes) {
  const DTensorImpl* wrapper = dtensor(x);
  const std::vector<int64_t> full = at::infer_size(sizes, x.numel());
  std::optional<DividedDim> result;
  std::vector<int64_t> local_sizes = full;
  if (wrapper->divided()) {
    result = divided_view(x.sizes(), *wrapper->divided(), full);
    if (!result) {
      return on_full("aten::view", "", {x, full});
    }
    local_sizes[static_cast<size_t>(result->dim)] =
        result->split.length(wrapper->group().rank());
  }
  const at::Tensor local = local_of(x);
  const DTensorGuard parts;
  const at::Tensor view = at::reshape(local, local_sizes);
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
  const DTensorGuard parts;
  return x.view(sizes);
}

at::Tensor unsafe_view(const at::Tensor& x, at::IntArrayRef sizes) {
  if (is_dtensor(x)) {
    return dtensor_view(x, sizes);
  }
  const DTensorGuard parts;
  return at::_unsafe_view(x, sizes);
}

at::Tensor swap_dims(const at::Tensor& x, int64_t dim0, int64_t dim1) {
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  const at::Tensor y = at::transpose(local, dim0, dim1);
  if (x.dim() == 2 && (dim0 - dim1) % 2 != 0) {
    mark_transposed(y, x);
  }
  const int64_t a = at::maybe_wrap_dim(dim0, x.dim());
  const int64_t b = at::maybe_wrap_dim(dim1, x.dim());
  const int64_t divided_at = divided_dim(x);
  return view_of(x, y, divided_at == a ? b : divided_at == b ? a : divided_at);
}

at::Tensor t(const at::Tensor& x) {
  if (divided_dtensor(x) != nullptr) {
    return x.dim() < 2 ? x : swap_dims(x, 0, 1);
  }
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  const at::Tensor y = at::t(local);
  if (x.dim() == 2) {
    mark_transposed(y, x);
  }
  return view_of(x, y, std::nullopt);
}

at::Tensor permute(const at::Tensor& x, at::IntArrayRef dims) {
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  const at::Tensor y = at::permute(local, dims);
  const auto* to = std::find_if(
      dims.begin(), dims.end(), [&](int64_t dim) { return is_across(x, dim); });
  return view_of(x, y, to - dims.begin());
}

at::Tensor unsqueeze(const at::Tensor& x, int64_t dim) {
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  const at::Tensor y = at::unsqueeze(local, dim);
  const int64_t divided_at = divided_dim(x);
  return view_of(
      x,
      y,
      divided_at +
          (at::maybe_wrap_dim(dim, x.dim() + 1) <= divided_at ? 1 : 0));
}

/// Removes those of `dims`, which count from the front, that have one element.
at::Tensor without(const at::Tensor& x, const std::vector<int64_t>& dims) {
  std::vector<int64_t> gone;
  for (const int64_t dim : dims) {
    // A part of a dimension of several elements may have one.
    if (x.size(dim) == 1) {
      gone.push_back(dim);
    }
  }
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  const at::Tensor y = at::squeeze(local, gone);
  const int64_t divided_at = divided_dim(x);
  if (std::find(gone.begin(), gone.end(), divided_at) != gone.end()) {
    return view_of(x, y, std::nullopt);
  }
  const auto before = std::count_if(
      gone.begin(), gone.end(), [&](int64_t dim) { return dim < divided_at; });
  return view_of(x, y, divided_at - before);
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
  std::vector<int64_t> local_sizes = sizes.vec();
  if (wrapper != nullptr && wrapper->group().size() > 1) {
    // The divided dimension keeps its size.
    int64_t& size = local_sizes.at(
        local_sizes.size() - static_cast<size_t>(-wrapper->dim_from_end()));
    TESSERA_CHECK(
        size == -1 || size == wrapper->divided()->split.size(),
        "expand: dimension {} of a tensor of sizes {} is divided over the ranks of '{}' and cannot become {}; only dimensions of size 1 can be expanded.",
        wrapper->divided()->dim,
        x.sizes(),
        wrapper->group().name(),
        size);
    size = -1;
  }
  const DTensorGuard parts;
  const at::Tensor y = local.expand(local_sizes, implicit);
  if (wrapper == nullptr || wrapper->group().size() == 1) {
    return view_of(x, y, std::nullopt); // one rank's dimension may have grown
  }
  return view_of(x, y, y.dim() + wrapper->dim_from_end());
}

/// The divided dimension of `x` when `dim`, another one, is gone.
int64_t without_dim(const at::Tensor& x, int64_t dim) {
  const int64_t divided_at = divided_dim(x);
  return divided_at - (at::maybe_wrap_dim(dim, x.dim()) < divided_at ? 1 : 0);
}

at::Tensor select(const at::Tensor& x, int64_t dim, int64_t index) {
  if (is_across(x, dim)) {
    return on_full("aten::select", "int", {x, dim, index});
  }
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  const at::Tensor y = at::select(local, dim, index);
  return view_of(x, y, without_dim(x, dim));
}

at::Tensor slice(
    const at::Tensor& x,
    int64_t dim,
    std::optional<int64_t> start,
    std::optional<int64_t> end,
    int64_t step) {
  const bool is_all = start.value_or(0) == 0 && step == 1 &&
                      end.value_or(x.size(dim)) >= x.size(dim);
  if (is_across(x, dim) && !is_all) {
    return on_full("aten::slice", "Tensor", {x, dim, start, end, step});
  }
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  return view_of(x, at::slice(local, dim, start, end, step), divided_dim(x));
}

/// As view_of(), for several views.
std::vector<at::Tensor> views_of(
    const at::Tensor& x,
    std::vector<at::Tensor> locals,
    int64_t dim) {
  for (at::Tensor& local : locals) {
    local = view_of(x, local, dim);
  }
  return locals;
}

std::vector<at::Tensor> split(const at::Tensor& x, int64_t size, int64_t dim) {
  if (is_across(x, dim)) {
    return call_general("aten::split", "Tensor", {x, size, dim})[0]
        .toTensorVector();
  }
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  return views_of(x, at::split(local, size, dim), divided_dim(x));
}

std::vector<at::Tensor> split_with_sizes(
    const at::Tensor& x,
    at::IntArrayRef sizes,
    int64_t dim) {
  if (is_across(x, dim)) {
    return call_general("aten::split_with_sizes", "", {x, sizes.vec(), dim})[0]
        .toTensorVector();
  }
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  return views_of(x, at::split_with_sizes(local, sizes, dim), divided_dim(x));
}

std::vector<at::Tensor> unbind(const at::Tensor& x, int64_t dim) {
  if (is_across(x, dim)) {
    return call_general("aten::unbind", "int", {x, dim})[0].toTensorVector();
  }
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  return views_of(x, at::unbind(local, dim), without_dim(x, dim));
}

at::Tensor cat(const at::ITensorListRef& list, int64_t dim) {
  std::vector<at::Tensor> tensors;
  at::Tensor first; // of those that are divided
  for (const at::Tensor& x : list) {
    check_records_no_weight(x, "cat");
    tensors.push_back(x);
    if (!first.defined() && divided_dtensor(x) != nullptr) {
      first = x;
    }
  }
  if (!first.defined() || is_across(first, dim)) {
    for (at::Tensor& x : tensors) {
      x = full_tensor(x);
    }
    const DTensorGuard parts;
    return at::cat(tensors, dim);
  }
  const DTensorImpl& like = *dtensor(first);
  for (at::Tensor& x : tensors) {
    // torch::cat() ignores empty tensors of one dimension.
    x = x.dim() == like.dim()
            ? operand(
                  x, like.dim_from_end(), like.divided()->split, like.group())
            : full_tensor(x);
  }
  const DTensorGuard parts;
  return make_dtensor_like(at::cat(tensors, dim), like.dim_from_end(), like);
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
  const bool is_part = wrapper != nullptr && !is_across(x, dim);
  const at::Tensor local = is_part ? local_of(x) : full_tensor(x);
  const at::Tensor full = full_tensor(index);
  const DTensorGuard parts;
  const at::Tensor y = at::index_select(local, dim, full);
  return is_part ? make_dtensor_like(y, wrapper->divided()->dim, *wrapper) : y;
}

at::Tensor repeat_interleave(
    const at::Tensor& x,
    int64_t repeats,
    std::optional<int64_t> dim,
    std::optional<int64_t> output_size) {
  check_records_no_weight(x, "repeat_interleave");
  const DTensorImpl* wrapper = divided_dtensor(x);
  if (wrapper != nullptr && !dim) {
    return on_full(
        "aten::repeat_interleave", "self_int", {x, repeats, dim, output_size});
  }
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  if (wrapper == nullptr) {
    return at::repeat_interleave(local, repeats, dim, output_size);
  }
  auto [divided_at, split] = *wrapper->divided();
  if (is_across(x, *dim)) {
    split =
        DimSplit(split.size() * repeats, split.parts(), split.unit() * repeats);
  }
  return make_dtensor(
      at::repeat_interleave(local, repeats, dim),
      DividedDim{divided_at, split},
      wrapper->tp());
}

at::Tensor constant_pad_nd(
    const at::Tensor& x,
    at::IntArrayRef pad,
    const at::Scalar& value) {
  check_records_no_weight(x, "constant_pad_nd");
  const DTensorImpl* wrapper = divided_dtensor(x);
  const bool pads =
      wrapper != nullptr &&
      static_cast<int64_t>(pad.size()) / 2 >= -wrapper->dim_from_end() &&
      (pad[static_cast<size_t>(-2 * wrapper->dim_from_end() - 2)] != 0 ||
       pad[static_cast<size_t>(-2 * wrapper->dim_from_end() - 1)] != 0);
  const at::Tensor local = pads ? full_tensor(x) : local_tensor(x);
  const DTensorGuard parts;
  const at::Tensor y = at::constant_pad_nd(local, pad, value);
  return wrapper == nullptr || pads
             ? y
             : make_dtensor_like(y, wrapper->divided()->dim, *wrapper);
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
