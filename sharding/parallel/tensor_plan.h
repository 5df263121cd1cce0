// SPDX-License-Identifier: Apache-2.0
#pragma once
// `apply_tensor_plan()` applies tensor parallelism to models that were written
// without it.

#include "tessera/sharding/parallel/tensor_parallel.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// How a layer is partitioned.
enum class TensorDivision {
  /// A torch::nn::Linear: each rank computes some of the output features, from
  /// whole activations.
  kColumn,
  /// As kColumn, but all ranks get all output features.
  kColumnGathered,
  /// A torch::nn::Linear: each rank uses some of the input features, either the
  /// output of a kColumn layer or a slice of whole activations; all ranks get
  /// the sum.
  kRow,
  /// A torch::nn::Embedding: each rank has some of the rows. An output head
  /// tied to it must be kColumnGathered.
  kVocab,
};

const char* to_string(TensorDivision division);

/// Modules, by name, and how they are partitioned.
struct TensorPlanEntry {
  /// Path of a module as in named_modules(), such as
  /// "layers.*.attention.query"; `*` matches any text without a dot.
  std::string pattern;
  TensorDivision division = TensorDivision::kColumn;
  /// Number of consecutive features that stay on one rank, such as those of a
  /// head.
  int64_t unit = 1;
};

/// If several entries match a module, the first one applies.
using TensorPlan = std::vector<TensorPlanEntry>;

/// Partitions layers of `module` over a tensor-parallel group, in place: only
/// this rank's partition of each weight remains, and operators that use it
/// communicate ([Note: divided weights]). The code and the types of the model
/// do not change.
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
/// Between a kColumn layer and its kRow layer, activations have fewer features
/// than in the unpartitioned model, so the model's code must not hard-code
/// their number: attention that views them as heads must use
/// view({batch, length, -1, head_features}), not
/// view({batch, length, heads, head_features}). Dropout there draws the same
/// mask on every rank, and a different one than on a single rank.
///
/// Call this on every rank, with the same weights, before wrap() and before
/// creating an optimizer; deferred weights (lazy()) stay deferred. Afterwards
/// specs_in() finds the partitioned parameters, so that checkpoints, clipping
/// and ZeRO treat them like those of parallel layers; the names in
/// named_parameters() do not change. The module may be moved and cast
/// (Module::to), but not cloned. Weights that are tied by sharing a tensor stay
/// tied.
/// @param how must be without sequence parallelism: the model's code sees whole
///   sequences. The group must outlive the module.
/// @throws tessera::Error, with nothing changed, when an entry matches no
///   module (with the nearest names), a module of another kind than it
///   partitions, or features that cannot be partitioned; and when the module is
///   wrapped or partitioned already.
void apply_tensor_plan(
    torch::nn::Module& module,
    const TensorPlan& plan,
    const TensorParallel& how);

} // namespace tessera
