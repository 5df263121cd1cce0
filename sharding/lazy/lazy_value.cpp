// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/lazy_value.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <utility>

namespace tessera::sharding {

namespace {

void add_seeds(LazySeeds& seeds, const LazySeeds& more) {
  for (const auto& seed : more) {
    if (seed && std::find(seeds.begin(), seeds.end(), seed) == seeds.end()) {
      seeds.push_back(seed);
    }
  }
}

/// Returns whether the elements of all tensor arguments of the call are laid
/// out as those of `view` and can be computed by slice.
bool arguments_by_slice(const LazyValue& value) {
  const LazyCall& call = *value.call;
  for (const c10::IValue& argument : call.arguments) {
    if (argument.isTensor()) {
      const at::Tensor& tensor = argument.toTensor();
      if (!tensor.defined() || tensor.unsafeGetTensorImpl() == call.target) {
        continue;
      }
      const auto found = call.lazy.find(tensor.unsafeGetTensorImpl());
      if (found == call.lazy.end()) {
        if (tensor.dim() > 0 && !value.view.same_order(LazyView::of(tensor))) {
          return false;
        }
        continue;
      }
      const LazyArgument& lazy = found->second;
      if (!lazy.value->by_slice || !value.view.same_order(lazy.view) ||
          (lazy.value == value.previous &&
           lazy.view.offset != value.view.offset)) {
        return false;
      }
    } else if (
        argument.isList() && !argument.toList().elementType()->isSubtypeOf(
                                 *c10::NumberType::get())) {
      return false;
    }
  }
  return true;
}

/// Returns whether the operator does not read the tensor that it writes to.
bool is_assignment(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::copy_" || name == "aten::fill_";
}

bool is_elementwise(const c10::OperatorHandle& op) {
  return is_assignment(op) || (op.hasTag(at::Tag::pointwise) &&
                               !op.hasTag(at::Tag::nondeterministic_seeded));
}

} // namespace

LazyView LazyView::of(const at::Tensor& tensor) {
  return {
      tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()};
}

int64_t LazyView::numel() const {
  return c10::multiply_integers(sizes);
}

bool LazyView::is_dense() const {
  std::vector<std::pair<int64_t, int64_t>> dims; // stride, size
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1) {
      dims.emplace_back(strides[d], sizes[d]);
    }
  }
  std::sort(dims.begin(), dims.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != expected) {
      return false;
    }
    expected *= size;
  }
  return true;
}

bool LazyView::same_order(const LazyView& other) const {
  if (sizes != other.sizes) {
    return false;
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && strides[d] != other.strides[d]) {
      return false;
    }
  }
  return true;
}

at::Tensor LazyView::in(const at::Tensor& memory) const {
  return memory.as_strided(sizes, strides, memory.storage_offset() + offset);
}

LazyValue::~LazyValue() {
  // Iterative, because a long chain would overflow the stack.
  while (previous && previous.use_count() == 1) {
    previous = std::exchange(previous->previous, nullptr);
  }
}

void finish(LazyValue& value) {
  using Kind = LazyValue::Kind;
  const bool dense = value.view.is_dense();
  const bool is_call =
      value.kind == Kind::kWrite || value.kind == Kind::kResult;
  const bool elementwise = is_call && is_elementwise(value.call->op);
  const bool overwrites = !is_call || is_assignment(value.call->op);
  if (overwrites && dense && value.view.numel() == value.numel) {
    value.previous = nullptr;
  }
  add_seeds(
      value.seeds, {is_call ? value.call->random.seed : value.random.seed});
  if (value.previous) {
    add_seeds(value.seeds, value.previous->seeds);
    value.largest_numel =
        std::max(value.largest_numel, value.previous->largest_numel);
  }
  if (is_call) {
    for (const c10::IValue& argument : value.call->arguments) {
      map_tensors(argument, [&value](const at::Tensor& tensor) {
        const auto found = value.call->lazy.find(tensor.unsafeGetTensorImpl());
        if (found != value.call->lazy.end()) {
          const LazyValue& used = *found->second.value;
          add_seeds(value.seeds, used.seeds);
          value.largest_numel =
              std::max(value.largest_numel, used.largest_numel);
        }
        return tensor;
      });
    }
  }
  const bool step_by_slice =
      dense && (!is_call || (elementwise && arguments_by_slice(value)));
  value.by_slice =
      step_by_slice && (!value.previous || value.previous->by_slice);
  value.fills_only =
      dense && !is_call && (!value.previous || value.previous->fills_only);
}

c10::IValue map_tensors(
    const c10::IValue& value,
    const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? change(value.toTensor()) : value;
  }
  if (!value.isList()) {
    return value;
  }
  const auto list = value.toList();
  const auto type = list.elementType();
  if (type->kind() != c10::TypeKind::TensorType &&
      type->kind() != c10::TypeKind::OptionalType) {
    return value;
  }
  c10::impl::GenericList changed(type);
  for (const c10::IValue& item : value.toListRef()) {
    changed.push_back(map_tensors(item, change));
  }
  return changed;
}

} // namespace tessera::sharding
