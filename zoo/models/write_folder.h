// SPDX-License-Identifier: Apache-2.0
#pragma once
// write_folder() writes a folder of weights, parameter by parameter, from a
// model that is whole, partitioned over tensor-parallel ranks, or sharded by an
// engine.

#include "tessera/engine/checkpoint/whole_model.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/models/model.h"

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::zoo {

using ParameterSizes = std::map<std::string, std::vector<int64_t>>;
using ParameterTypes = std::map<std::string, at::ScalarType>;
/// Computes the value written instead of a whole parameter's; of the same
/// dtype.
using SavedValue =
    std::function<at::Tensor(const std::string& name, const at::Tensor& value)>;

using VisitWhole =
    std::function<void(const std::string& name, const at::Tensor& value)>;

/// The folder that weights are written to. Both functions are called on the
/// rank that writes.
struct WrittenFolder {
  std::filesystem::path path; ///< for messages
  /// Creates the folder. @param dtypes of all parameters.
  /// @return the safetensors file of the weights.
  std::function<std::filesystem::path(const ParameterTypes& dtypes)> open;
  std::function<void()> commit; ///< called after the weights are written
  SavedValue change; ///< empty: values unchanged
  /// The maximum size of one file; above it there are several, with an index.
  /// 0: no limit.
  int64_t max_shard_bytes = 0;
};

/// Writes the parameters of `model` that are in `names`; those of a lazy model
/// are materialized one at a time. Collective over the tensor-parallel group,
/// whose first rank writes. Blocks on the disk.
/// @throws tessera::Error on all ranks if the writing rank fails, and if
///     `model` is sharded by an engine.
void write_folder(
    const Model& model,
    const WeightNames& names,
    const WrittenFolder& folder);

/// The same for a wrapped model, over all ranks; rank 0 writes. Collective.
/// @param parts the parts that make up the model: Engine::whole_model(), or
///     ExpertEngines::whole_models().
/// @param names_of returns the names of the whole model's parameters.
void write_folder(
    std::vector<WholeModel> parts,
    const World& world,
    const std::function<WeightNames(const ParameterSizes& sizes)>& names_of,
    const WrittenFolder& folder);

/// Calls `visit`, on the rank that would write, with the whole value of each
/// parameter of `model` that is in `names`. Collective as write_folder().
void for_each_whole(
    const Model& model,
    const WeightNames& names,
    const VisitWhole& visit);

/// The same for a wrapped model. @param wants selects parameters.
void for_each_whole(
    Engine& engine,
    const std::function<bool(const std::string& name)>& wants,
    const VisitWhole& visit);

} // namespace tessera::zoo
