// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensor parallelism for models that were written without it.

#include "tessera/sharding/parallel/divided_weight.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Modules by name, and what becomes of them.
struct TensorPlanEntry {
  /// A module's path as named_modules() has it; a `*` stands for any text
  /// without a dot: "layers.*.attention.query".
  std::string pattern;
  TensorDivision division = TensorDivision::kColumn;
  /// Features that stay on one rank, such as those of a head.
  int64_t unit = 1;
};

/// Of several entries that match a module the first one counts.
using TensorPlan = std::vector<TensorPlanEntry>;

/// Divides layers of `module` over a tensor-parallel group, in place: of each
/// weight only this rank's part stays, and operators that use it communicate
/// ([Note: divided weights]). Code and types of the model remain as they are.
///
/// ```
/// apply_tensor_plan(*model, {
///     {"embed", TensorDivision::kVocab},
///     {"layers.*.attention.query", TensorDivision::kColumn, head_features},
///     {"layers.*.attention.output", TensorDivision::kRow, head_features},
///     {"layers.*.up", TensorDivision::kColumn},
///     {"layers.*.down", TensorDivision::kRow},
///     {"head", TensorDivision::kColumnGathered}}, {&group});
/// ```
/// What is between a kColumn and its kRow layer has fewer features than the
/// model's code may think: it must not state their number. Attention that views
/// them as heads writes view({batch, length, -1, head_features}), not
/// view({batch, length, heads, head_features}). Its dropout there draws the
/// same mask for every rank's part, other than that of one rank.
///
/// Call it on every rank, with the same weights, before wrap() and before an
/// optimizer is made; deferred weights (lazy()) stay deferred. Afterwards
/// parts_in() knows the parts by their parameters, so that checkpoints,
/// clipping and ZeRO treat them as those of parallel layers; named_parameters()
/// are called as before. The module may be moved and cast (Module::to), but not
/// cloned. A model that is tied by sharing a tensor stays tied.
/// @param how without sequence parallelism: the model's code sees whole
///     sequences. The group outlives the module.
/// @throws tessera::Error, with nothing changed, when an entry matches no
/// module
///     (with the nearest names), or one of another kind than it divides, or
///     features that cannot be divided; when the module is wrapped or divided
///     already.
void apply_tensor_plan(
    torch::nn::Module& module,
    const TensorPlan& plan,
    const TensorParallel& how);

} // namespace tessera
