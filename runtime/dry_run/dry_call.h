// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DryCall` is an operator's call in a dry run, as shape kernels see it;
// `dry_shapes()` are those.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera::runtime {

class DryCall {
 public:
  DryCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), stack_(stack), count_(op.schema().arguments().size()) {}

  const c10::FunctionSchema& schema() const {
    return op_.schema();
  }
  const std::string& name() const {
    return op_.schema().name();
  }
  size_t count() const {
    return count_;
  }
  c10::IValue& argument(size_t i) const {
    return stack_[stack_.size() - count_ + i];
  }
  /// Undefined if the argument is None.
  at::Tensor tensor(size_t i) const {
    const c10::IValue& value = argument(i);
    return value.isTensor() ? value.toTensor() : at::Tensor();
  }
  c10::ArrayRef<c10::IValue> arguments() const {
    return torch::jit::last(stack_, count_);
  }
  std::vector<int64_t> ints(size_t i) const {
    return argument(i).toIntVector();
  }
  int64_t integer(size_t i) const {
    return argument(i).toInt();
  }
  bool flag(size_t i) const {
    return argument(i).toBool();
  }
  /// Calls for every defined tensor among the arguments, those in lists
  /// included, with the number of its argument.
  template <typename Call>
  void for_each_tensor(const Call& call) const {
    for (size_t i = 0; i < count_; ++i) {
      const c10::IValue& value = argument(i);
      if (value.isTensor()) {
        if (value.toTensor().defined()) {
          call(value.toTensor(), i);
        }
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorList()) {
          call(tensor, i);
        }
      } else if (value.isList()) {
        for (const c10::IValue& item : value.toListRef()) {
          if (item.isTensor() && item.toTensor().defined()) {
            call(item.toTensor(), i);
          }
        }
      }
    }
  }
  /// Whether the operator writes to its argument.
  bool writes(size_t i) const {
    const auto* alias = schema().arguments()[i].alias_info();
    return alias != nullptr && alias->isWrite();
  }
  void replace_by(std::vector<c10::IValue> results) {
    torch::jit::drop(stack_, count_);
    for (c10::IValue& result : results) {
      stack_.push_back(std::move(result));
    }
  }

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  size_t count_;
};

/// Makes the results of an operator, without values; what it allocates besides
/// and frees before it returns is the temporary memory of the CPU's kernel.
using DryShape = std::function<std::vector<c10::IValue>(const DryCall&)>;

/// By name, with the overload after a dot if there is one.
const std::unordered_map<std::string, DryShape>& dry_shapes();

} // namespace tessera::runtime
