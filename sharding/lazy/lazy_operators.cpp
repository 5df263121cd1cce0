// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/lazy_operators.h"

#include "tessera/sharding/interception/operator_traits.h"

#include <algorithm>
#include <string>
#include <unordered_set>

namespace tessera::sharding {

namespace {

using NameSet = std::unordered_set<std::string>;

const NameSet& factories_and_copies() {
  static const NameSet names{
      "aten::clone",
      "aten::empty_like",
      "aten::full",
      "aten::full_like",
      "aten::new_empty",
      "aten::new_empty_strided",
      "aten::new_full",
      "aten::new_ones",
      "aten::new_zeros",
      "aten::ones",
      "aten::ones_like",
      "aten::rand",
      "aten::rand_like",
      "aten::randn",
      "aten::randn_like",
      "aten::_to_copy",
      "aten::zeros",
      "aten::zeros_like"};
  return names;
}

const NameSet& metadata_in_place() {
  static const NameSet names{
      "aten::cudnn_is_acceptable",
      "aten::detach_",
      "aten::squeeze_",
      "aten::swapaxes_",
      "aten::swapdims_",
      "aten::t_",
      "aten::transpose_",
      "aten::unsqueeze_"};
  return names;
}

bool writes_to_out(const c10::OperatorHandle& op) {
  return op.operator_name().overload_name.find("out") != std::string::npos;
}

/// Returns whether the result is a view of the argument, or the argument with
/// other flags.
bool is_view(const c10::OperatorHandle& op) {
  const auto& results = op.schema().returns();
  return std::any_of(results.begin(), results.end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(
      c10::DispatchKey::CompositeImplicitAutograd);
}

} // namespace

bool is_deferrable(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

bool is_allocation(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return (name == "aten::empty" || name == "aten::empty_strided") &&
         !writes_to_out(op);
}

bool is_made_of_others(const c10::OperatorHandle& op, bool has_lazy_arguments) {
  const auto& [name, overload] = op.operator_name();
  if (name == "aten::normal" && overload == "float_float") {
    return true;
  }
  if (factories_and_copies().count(name) && !writes_to_out(op)) {
    return true;
  }
  return has_lazy_arguments && !is_metadata_only(op) && is_composite(op);
}

bool is_metadata_only(const c10::OperatorHandle& op) {
  return metadata_in_place().count(op.operator_name().name) ||
         kind_of(op) == OperatorKind::kMetadata ||
         (is_view(op) && !is_composite(op));
}

bool replaces_storage(const c10::OperatorHandle& op) {
  static const NameSet names{
      "aten::resize_",
      "aten::resize_as_",
      "aten::set_",
      "aten::_resize_output_"};
  return names.count(op.operator_name().name) > 0;
}

bool returns_tensors(const c10::OperatorHandle& op) {
  const auto& results = op.schema().returns();
  return !results.empty() &&
         std::all_of(results.begin(), results.end(), [](const auto& result) {
           return result.type()->kind() == c10::TypeKind::TensorType;
         });
}

} // namespace tessera::sharding
