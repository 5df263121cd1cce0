// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/precision.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/name_pattern.h"
#include "tessera/runtime/core/option_check.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/sharding/groups/parameter_census.h"

#include <unordered_set>

namespace tessera {

namespace {

constexpr const char* kFloat32Modules = "precision.float32_modules";

bool is_norm(const torch::nn::Module& module) {
  return module.name().find("Norm") != std::string::npos;
}

/// Returns the parameters of all modules that keep float32.
std::unordered_set<const c10::TensorImpl*> float32_parameters(
    const torch::nn::Module& root,
    const PrecisionPolicy& policy) {
  std::unordered_set<const c10::TensorImpl*> kept;
  const auto keep = [&kept](const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters()) {
      kept.insert(parameter.unsafeGetTensorImpl());
    }
  };
  std::vector<std::string> paths;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    paths.push_back(item.key());
    if (policy.norms_in_float32 && is_norm(*item.value())) {
      keep(*item.value());
    }
  }
  for (const std::string& text : policy.float32_modules) {
    const runtime::NamePattern pattern(kFloat32Modules, text);
    bool found = false;
    for (const auto& item : root.named_modules("", /*include_self=*/false)) {
      if (pattern.matches(item.key())) {
        found = true;
        keep(*item.value());
      }
    }
    const std::string nearest = runtime::nearest_name(text, paths);
    TESSERA_CHECK(
        found,
        "{}: '{}' matches no module{}",
        kFloat32Modules,
        text,
        nearest.empty() ? "." : "; did you mean '" + nearest + "'?");
  }
  return kept;
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
  fields.field(
      "float32_modules",
      policy.float32_modules,
      "regular expressions over paths of modules that stay in float32");
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
  for (const std::string& text : policy.float32_modules) {
    static_cast<void>(runtime::NamePattern(kFloat32Modules, text)); // throws
  }
}

void choose_dtypes(
    const torch::nn::Module& module,
    const PrecisionPolicy& policy,
    std::vector<sharding::ParameterRecord>& records) {
  if (!policy.is_mixed()) {
    return;
  }
  const auto kept = float32_parameters(module, policy);
  std::unordered_set<const c10::StorageImpl*> kept_storages;
  for (const sharding::ParameterRecord& record : records) {
    if (kept.count(record.tensor.unsafeGetTensorImpl()) > 0) {
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
