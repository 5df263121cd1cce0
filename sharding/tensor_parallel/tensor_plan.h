// SPDX-License-Identifier: Apache-2.0
#pragma once
// `apply_tensor_plan()` applies tensor parallelism to models that were written
// without it.

#include "tessera/sharding/tensor_parallel/overlapped_linear.h"
#include "tessera/sharding/tensor_parallel/tensor_parallel.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// How a layer is partitioned.
enum class TensorDivision {
  /// A torch::nn::Linear: each rank computes some of the output features.
  kColumn,
  /// As kColumn, but all ranks get all output features, in an ordinary tensor.
  kColumnGathered,
  /// A torch::nn::Linear: each rank uses some of the input features; the sum
  /// over the ranks is whole or, with TensorParallel::sequence, divided along
  /// the sequence.
  kRow,
  /// A torch::nn::Embedding: each rank has some of the rows; its output is as
  /// that of kRow. Products with the weight, as in a tied head, are kColumn.
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
///     {"layers.*.attention.output", TensorDivision::kRow, head_features},
///     {"layers.*.attention.*", TensorDivision::kColumn, head_features},
///     {"layers.*.up", TensorDivision::kColumn},
///     {"layers.*.down", TensorDivision::kRow},
///     {"head", TensorDivision::kColumn}}, {&group, /*sequence=*/true});
/// ```
/// Activations that a rank has a part of look whole to the model's code, with
/// the sizes and the results of the whole ([Note: DTensors]): views as heads,
/// masks, dropout, residuals, norms, losses. full_tensor() makes an ordinary
/// tensor of one. Keys and values with fewer heads than ranks are left out of
/// the plan: every rank then computes all of them.
///
/// Call this on every rank, with the same weights, before wrap() and before
/// creating an optimizer; deferred weights (lazy()) stay deferred. Afterwards
/// specs_in() finds the partitioned parameters, and so do checkpoints, clipping
/// and ZeRO; the names in named_parameters() do not change. The module may be
/// moved and cast (Module::to), but not cloned. Weights that are tied by
/// sharing a tensor stay tied. With a group of one rank, the plan is checked
/// and nothing is changed.
/// @param tp the group must outlive the module. With `sequence`, activations
///   between layers are divided along dimension `sequence_dim`; where a length
///   is not divisible by the number of ranks, they stay whole.
/// @throws tessera::Error, with nothing changed, when an entry matches no
///   module (with the nearest names), a module of another kind than it
///   partitions, or features that cannot be partitioned; and when the module is
///   wrapped or partitioned already.
void apply_tensor_plan(
    torch::nn::Module& module,
    const TensorPlan& plan,
    const TensorParallel& tp);

/// Partitions one weight [out, in] or [rows, features], as an entry of a plan
/// does with that of a layer, or with kColumn a bias [out].
/// @param name in messages.
/// @throws tessera::Error as apply_tensor_plan().
void divide_weight(
    const at::Tensor& weight,
    const std::string& name,
    TensorDivision division,
    int64_t unit,
    const TensorParallel& tp);

/// Computes several linear layers of the same input, for models that know of
/// tensor parallelism: kColumn layers of one plan then communicate once
/// ([Note: products while activations travel]).
/// @param layers weight [out, in] and bias [out], undefined without one.
/// @return for each layer what torch::linear() returns.
std::vector<at::Tensor> linear_each(
    const at::Tensor& x,
    const std::vector<sharding::LinearWeights>& layers);

} // namespace tessera
