// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/precision.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_check.h"
#include "tessera/sharding/groups/module_kind.h"
#include "tessera/sharding/groups/parameter_census.h"

#include <algorithm>
#include <unordered_set>

namespace tessera {

namespace {

bool is_norm(const torch::nn::Module& module) {
  return sharding::kind_of(module).type.find("Norm") != std::string::npos;
}

/// Returns the parameters of all norms.
std::unordered_set<const c10::TensorImpl*> norm_parameters(
    const torch::nn::Module& root) {
  std::unordered_set<const c10::TensorImpl*> found;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    if (is_norm(*item.value())) {
      for (const at::Tensor& parameter : item.value()->parameters()) {
        found.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  return found;
}

} // namespace

void visit_fields(runtime::OptionFields& fields, PrecisionPolicy& policy) {
  using Names =
      std::vector<std::pair<std::string, std::optional<at::ScalarType>>>;
  const Names names{
      {"float32", at::kFloat},
      {"bfloat16", at::kBFloat16},
      {"float16", at::kHalf}};
  fields.choice(
      "parameters",
      policy.parameters,
      names,
      "dtype of compute and of all-gathers, by default `float32`; with another one, master weights stay float32");
  if (policy.parameters == at::kFloat) {
    policy.parameters.reset();
  }
  fields.choice(
      "gradients",
      policy.gradients,
      names,
      "dtype in which gradients are reduced, by default `float32`");
  fields.choice(
      "accumulate",
      policy.accumulate,
      names,
      "dtype in which the gradients of micro-batches are accumulated, by default that of `precision.gradients`; `float32` is needed for many micro-batches with gradients in bfloat16");
  Names buffer_names = names;
  buffer_names.emplace_back("float64", at::kDouble);
  fields.choice(
      "buffers",
      policy.buffers,
      buffer_names,
      "dtype of floating-point buffers, by default unchanged");
  fields.field(
      "master_weights",
      policy.master_weights,
      "with false, optimizers update the low-precision weights");
  fields.field(
      "norms_in_float32",
      policy.norms_in_float32,
      "parameters and statistics of normalization layers stay in float32; their activations keep their dtype");
  fields.choice(
      "frozen_weights",
      policy.frozen_weights,
      sharding::all_frozen_weights(),
      "in what the weights of linear layers rest that are not trained, such as those under adapters, but for vocabulary heads: 4.5 (`nf4`), 4.13 (`nf4_double`) or 8.25 bits");
}

void check(const PrecisionPolicy& policy) {
  TESSERA_CHECK(
      !policy.parameters || is_low_precision(*policy.parameters),
      "precision.parameters is {}; it must be bfloat16 or float16. For other types, convert the module before wrap.",
      policy.parameters.value_or(at::kFloat));
  runtime::check_fields("precision", policy);
  TESSERA_CHECK(
      !policy.accumulate || *policy.accumulate == at::kFloat ||
          policy.accumulate == policy.gradients,
      "precision.accumulate is {}; it must be float32 or the type of precision.gradients.",
      policy.accumulate.value_or(at::kFloat));
}

void choose_dtypes(
    const torch::nn::Module& module,
    const PrecisionPolicy& policy,
    const sharding::ModuleChoices& choices,
    std::vector<sharding::ParameterRecord>& records) {
  if (!policy.is_mixed()) {
    return;
  }
  std::unordered_set<const c10::TensorImpl*> norms;
  if (policy.norms_in_float32) {
    norms = norm_parameters(module);
  }
  std::unordered_set<const c10::StorageImpl*> kept_storages;
  for (const sharding::ParameterRecord& record : records) {
    const auto& names = record.spec.names;
    if (norms.contains(record.tensor.unsafeGetTensorImpl()) ||
        std::any_of(names.begin(), names.end(), [&](const auto& name) {
          return choices.keeps_float32(name);
        })) {
      kept_storages.insert(record.tensor.storage().unsafeGetStorageImpl());
    }
  }
  for (sharding::ParameterRecord& record : records) {
    const auto* storage = record.tensor.storage().unsafeGetStorageImpl();
    if (record.tensor.is_floating_point() &&
        kept_storages.count(storage) == 0) {
      record.dtype = *policy.parameters;
    }
  }
}

at::ScalarType gradient_dtype(
    const PrecisionPolicy& policy,
    at::ScalarType dtype) {
  // Parameters that stay in float32 keep its precision; the option applies to
  // the others.
  if (policy.gradients && (is_low_precision(dtype) || !policy.is_mixed())) {
    return *policy.gradients;
  }
  return is_low_precision(dtype) && policy.master_weights ? at::kFloat : dtype;
}

at::ScalarType accumulate_dtype(
    const PrecisionPolicy& policy,
    at::ScalarType dtype) {
  const at::ScalarType gradients = gradient_dtype(policy, dtype);
  return is_low_precision(gradients) ? policy.accumulate.value_or(gradients)
                                     : gradients;
}

void convert_buffers(torch::nn::Module& module, const PrecisionPolicy& policy) {
  if (!policy.buffers) {
    return;
  }
  for (auto& item : module.named_buffers()) {
    at::Tensor& buffer = item.value();
    if (buffer.defined() && buffer.is_floating_point()) {
      buffer.set_data(buffer.to(*policy.buffers));
    }
  }
}

} // namespace tessera
