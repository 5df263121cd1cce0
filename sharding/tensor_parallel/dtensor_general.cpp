// SPDX-License-Identifier: Apache-2.0
// The rules for operators without one of their own ([Note: DTensors]).
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/divided_tag.h"
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

/// Calls `change` for each tensor among the arguments of an operator, on top of
/// `stack`, and puts what it returns in place of it.
/// @param change at::Tensor(const at::Tensor&, size_t argument).
template <typename Change>
void change_tensors(
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    const Change& change) {
  const size_t count = op.schema().arguments().size();
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& argument = torch::jit::peek(stack, i, count);
    if (argument.isTensor()) {
      if (argument.toTensor().defined()) {
        argument = change(argument.toTensor(), i);
      }
    } else if (argument.isTensorList()) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& tensor : argument.toTensorVector()) {
        tensors.push_back(tensor.defined() ? change(tensor, i) : tensor);
      }
      argument = std::move(tensors);
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const auto& entry : argument.toOptionalTensorVector()) {
        tensors.push_back(
            entry && entry->defined() ? std::optional(change(*entry, i))
                                      : entry);
      }
      argument = std::move(tensors);
    }
  }
}

/// Whether the operator writes into its argument number `i`.
bool writes(const c10::OperatorHandle& op, size_t i) {
  const c10::AliasInfo* alias = op.schema().arguments()[i].alias_info();
  return alias != nullptr && alias->isWrite();
}

bool returns_view(const c10::OperatorHandle& op) {
  for (const c10::Argument& result : op.schema().returns()) {
    const c10::AliasInfo* alias = result.alias_info();
    if (alias != nullptr && !alias->isWrite()) {
      return true;
    }
  }
  return false;
}

/// The DTensor that the others follow: the one that is written into, or the
/// first that is divided.
struct Leader {
  at::Tensor tensor; ///< undefined: there is no DTensor
  bool is_written = false;
};

Leader find_leader(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack) {
  Leader leader;
  for_each_tensor(op, stack, [&](const at::Tensor& x, size_t i) {
    const DTensorImpl* wrapper = dtensor(x);
    if (wrapper == nullptr || leader.is_written) {
      return;
    }
    const bool is_first =
        !leader.tensor.defined() ||
        (wrapper->divided() && !dtensor(leader.tensor)->divided());
    leader.is_written = writes(op, i);
    if (is_first || leader.is_written) {
      leader.tensor = x;
    }
  });
  return leader;
}

void check_writable(const c10::OperatorHandle& op, const DTensorImpl& x) {
  TESSERA_CHECK(
      !x.is_copy(),
      "{}: the tensor of sizes {} is a view across the parts of a divided tensor, which is a copy; writing into it would be lost. Use the operator that returns a new tensor, or full_tensor() before the view.",
      op.schema().name(),
      x.sizes());
}

bool is_written_by(const c10::OperatorHandle& op) {
  for (size_t i = 0; i < op.schema().arguments().size(); ++i) {
    if (writes(op, i)) {
      return true;
    }
  }
  return false;
}

/// Computes an operator on gathered operands; every rank does all of it.
void on_full(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack,
    const Leader& leader) {
  TESSERA_CHECK(
      !leader.is_written,
      "{}: this operator can not write into a tensor of sizes {} that is divided over the ranks of '{}'. Use the operator that returns a new tensor, or full_tensor().",
      op.schema().name(),
      leader.tensor.sizes(),
      dtensor(leader.tensor)->group().name());
  change_tensors(
      op, *stack, [](const at::Tensor& x, size_t) { return full_tensor(x); });
  {
    const DTensorGuard parts;
    op.callBoxed(stack);
  }
  if (!returns_view(op)) {
    return;
  }
  // A view of the gathered copy: writing into it must not be lost in silence.
  const auto marked = [&](const at::Tensor& view) {
    const at::Tensor x =
        make_dtensor(view, std::nullopt, dtensor(leader.tensor)->tp());
    dtensor(x)->set_copy();
    return x;
  };
  const size_t count = op.schema().returns().size();
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& result = torch::jit::peek(*stack, i, count);
    if (result.isTensor()) {
      result = marked(result.toTensor());
    } else if (result.isTensorList()) {
      std::vector<at::Tensor> views;
      for (const at::Tensor& view : result.toTensorVector()) {
        views.push_back(marked(view));
      }
      result = std::move(views);
    }
  }
}

void elementwise(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack,
    const Leader& leader) {
  const DTensorImpl& like = *dtensor(leader.tensor);
  if (is_written_by(op) && !leader.is_written) {
    // An ordinary tensor takes what is divided.
    on_full(op, stack, leader);
    return;
  }
  if (leader.is_written) {
    check_writable(op, like);
  }
  std::vector<at::Tensor> written(op.schema().arguments().size());
  change_tensors(op, *stack, [&](const at::Tensor& x, size_t i) {
    const at::Tensor local_tensor =
        like.divided()
            ? operand(
                  x, like.dim_from_end(), like.divided()->split, like.group())
            : full_tensor(x);
    if (writes(op, i)) {
      written[i] = x;
      dtensor(x)->set_local(local_tensor); // its history follows
    }
    return local_tensor;
  });
  {
    const DTensorGuard parts;
    op.callBoxed(stack);
  }
  const auto& returns = op.schema().returns();
  for (size_t i = 0; i < returns.size(); ++i) {
    c10::IValue& result = torch::jit::peek(*stack, i, returns.size());
    if (!result.isTensor() || !result.toTensor().defined()) {
      continue;
    }
    const c10::AliasInfo* alias = returns[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      for (size_t a = 0; a < written.size(); ++a) {
        if (written[a].defined() &&
            *op.schema().arguments()[a].alias_info() == *alias) {
          connect(written[a]);
          result = written[a];
        }
      }
      continue;
    }
    const at::Tensor local = result.toTensor();
    const bool is_copy = like.is_copy() && returns_view(op);
    if (like.divided()) {
      result = make_dtensor_like(local, like.dim_from_end(), like);
    } else if (is_copy) {
      result = make_dtensor(local, std::nullopt, like.tp());
    }
    if (is_copy) {
      dtensor(result.toTensor())->set_copy();
    }
  }
}

/// Whether an operand is an ordinary tensor like the partition `weight`: the
/// code is about the part.
bool has_same_part(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack,
    const at::Tensor& weight) {
  bool found = false;
  for_each_tensor(op, stack, [&](const at::Tensor& x, size_t) {
    found = found || (x.defined() && !x.key_set().has(kDividedKey) &&
                      x.sizes() == weight.sizes());
  });
  return found;
}

bool returns_more_than_bool(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return std::any_of(
      returns.begin(), returns.end(), [](const c10::Argument& result) {
        return result.type()->kind() != c10::TypeKind::BoolType;
      });
}

/// Views are checked where something is computed from them; parts may be
/// compared.
void check_weights(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack) {
  if (returns_view(op) || is_written_by(op) || !returns_more_than_bool(op) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return; // those of which it consists are checked
  }
  for_each_tensor(op, stack, [&](const at::Tensor& x, size_t) {
    if (!has_same_part(op, stack, x)) {
      check_records_no_weight(x, op.schema().name().c_str());
    }
  });
}

/// Calls an operator without DTensors as if there were no rule; those of which
/// it consists may have one, for partitions of weights.
void pass_on(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDividedKey),
      stack);
}

} // namespace

void for_each_tensor(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack,
    c10::function_ref<void(const at::Tensor&, size_t)> visit) {
  const size_t count = op.schema().arguments().size();
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& argument = torch::jit::peek(stack, i, count);
    if (argument.isTensor()) {
      visit(argument.toTensor(), i);
    } else if (argument.isTensorList()) {
      for (const at::Tensor& x : argument.toTensorVector()) {
        visit(x, i);
      }
    } else if (argument.isOptionalTensorList()) {
      for (const auto& x : argument.toOptionalTensorVector()) {
        visit(x.value_or(at::Tensor()), i);
      }
    }
  }
}

void elementwise_rule(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const Leader leader = find_leader(op, *stack);
  if (leader.tensor.defined()) {
    elementwise(op, stack, leader);
  } else {
    pass_on(op, keys, stack);
  }
}

void checked_elementwise_rule(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  check_weights(op, *stack);
  elementwise_rule(op, keys, stack);
}

void general_rule(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const Leader leader = find_leader(op, *stack);
  if (!leader.tensor.defined()) {
    check_weights(op, *stack);
    pass_on(op, keys, stack);
  } else if (op.hasTag(at::Tag::pointwise)) {
    elementwise(op, stack, leader);
  } else if (op.hasKernelForDispatchKey(
                 c10::DispatchKey::CompositeImplicitAutograd)) {
    op.callBoxedForDispatchKey(
        c10::DispatchKey::CompositeImplicitAutograd, *stack);
  } else {
    on_full(op, stack, leader);
  }
}

torch::jit::Stack call_general(
    const char* name,
    const char* overload,
    torch::jit::Stack arguments) {
  const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  general_rule(op, {}, &arguments); // there is a DTensor among them
  return arguments;
}

} // namespace tessera::sharding
