// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/frozen_weights.h"

#include "tessera/runtime/kernels/block_quantize.h"
#include "tessera/sharding/groups/module_kind.h"
#include "tessera/sharding/groups/parameter_census.h"
#include "tessera/sharding/groups/precision.h"

#include <algorithm>
#include <set>
#include <unordered_set>

namespace tessera::sharding {

namespace {

using torch::nn::Module;

bool is_embedding(const ModuleKind& kind) {
  return kind.role == ModuleRole::kEmbedding ||
         kind.type.find("Embedding") != std::string::npos;
}

/// Conv1D is the linear layer of transformers' GPT-2.
bool is_linear(const ModuleKind& kind) {
  return kind.role == ModuleRole::kLinear ||
         kind.type.find("Linear") != std::string::npos ||
         kind.type.find("Conv1D") != std::string::npos;
}

std::vector<at::Tensor> matrices_of(const Module& module) {
  std::vector<at::Tensor> matrices;
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    if (parameter.dim() >= 2) {
      matrices.push_back(parameter);
    }
  }
  return matrices;
}

/// The weights of linear layers, without vocabulary heads.
std::unordered_set<const c10::TensorImpl*> linear_weights(const Module& root) {
  std::set<int64_t> vocabularies;
  std::vector<at::Tensor> weights;
  for (const auto& module : root.modules()) {
    const ModuleKind kind = kind_of(*module);
    for (const at::Tensor& matrix : matrices_of(*module)) {
      if (is_embedding(kind)) {
        vocabularies.insert(matrix.size(0));
      } else if (is_linear(kind)) {
        weights.push_back(matrix);
      }
    }
  }
  std::unordered_set<const c10::TensorImpl*> found;
  for (const at::Tensor& weight : weights) {
    if (!vocabularies.contains(weight.size(0))) {
      found.insert(weight.unsafeGetTensorImpl());
    }
  }
  return found;
}

} // namespace

std::optional<runtime::BlockFormat> format_of(FrozenWeights weights) {
  using runtime::CodeType;
  switch (weights) {
    case FrozenWeights::kNone:
      break;
    case FrozenWeights::kNf4:
      return runtime::BlockFormat{CodeType::kNf4, 64};
    case FrozenWeights::kNf4Double:
      return runtime::BlockFormat{CodeType::kNf4, 64, /*compact_scales=*/true};
    case FrozenWeights::kInt8:
      return runtime::BlockFormat{CodeType::kInt8, 128};
    case FrozenWeights::kFp8:
      return runtime::BlockFormat{CodeType::kFp8, 128};
  }
  return std::nullopt;
}

const std::vector<std::pair<std::string, FrozenWeights>>& all_frozen_weights() {
  static const std::vector<std::pair<std::string, FrozenWeights>> all{
      {"none", FrozenWeights::kNone},
      {"nf4", FrozenWeights::kNf4},
      {"nf4_double", FrozenWeights::kNf4Double},
      {"int8", FrozenWeights::kInt8},
      {"fp8", FrozenWeights::kFp8}};
  return all;
}

std::string name_of(FrozenWeights weights) {
  for (const auto& [name, one] : all_frozen_weights()) {
    if (one == weights) {
      return name;
    }
  }
  return "";
}

void choose_frozen_weights(
    const Module& module,
    const PrecisionPolicy& policy,
    const ModuleChoices& choices,
    std::vector<ParameterRecord>& records) {
  std::unordered_set<const c10::StorageImpl*> trained;
  for (const ParameterRecord& record : records) {
    if (record.tensor.requires_grad()) {
      trained.insert(storage_of(record));
    }
  }
  std::unordered_set<const c10::TensorImpl*> chosen;
  if (policy.frozen_weights != FrozenWeights::kNone) {
    chosen = linear_weights(module);
  }
  for (ParameterRecord& record : records) {
    if (record.tensor.dim() < 2 || trained.contains(storage_of(record)) ||
        !runtime::can_encode(record.dtype)) {
      continue;
    }
    if (chosen.contains(record.tensor.unsafeGetTensorImpl())) {
      record.frozen_weights = policy.frozen_weights;
    }
    for (const std::string& name : record.spec.names) {
      record.frozen_weights =
          choices.frozen_weights(name).value_or(record.frozen_weights);
    }
  }
}

} // namespace tessera::sharding
