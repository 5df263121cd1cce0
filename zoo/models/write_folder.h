// SPDX-License-Identifier: Apache-2.0
#pragma once
// Folders of weights, written parameter by parameter from wherever these are:
// whole, in the parts of tensor-parallel ranks, or sharded by an engine.

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
/// What is written in place of a whole parameter's value, of the same dtype.
using SavedValue =
    std::function<at::Tensor(const std::string& name, const at::Tensor& value)>;

using VisitWhole =
    std::function<void(const std::string& name, const at::Tensor& value)>;

/// Where weights go. Both functions are called on the rank that writes.
struct WrittenFolder {
  std::filesystem::path path; ///< for messages
  /// Makes the folder. @param dtypes of all parameters.
  /// @return the safetensors file of the weights.
  std::function<std::filesystem::path(const ParameterTypes& dtypes)> open;
  std::function<void()> commit; ///< with the weights in it
  SavedValue change; ///< empty: values as they are
};

/// Writes those parameters of `model` that are in `names`; of a lazy model one
/// at a time has memory. Collective over the tensor-parallel group, whose first
/// rank writes. Blocks on the disk.
/// @throws tessera::Error on all ranks when the one that writes cannot, and
/// when
///     `model` is sharded by an engine.
void write_folder(
    const Model& model,
    const WeightNames& names,
    const WrittenFolder& folder);

/// The same for a wrapped model, over all ranks; rank 0 writes. Collective.
/// @param parts together the model: Engine::whole_model(), or
///     ExpertEngines::whole_models().
/// @param names_of the names of the whole model's parameters.
void write_folder(
    std::vector<WholeModel> parts,
    const World& world,
    const std::function<WeightNames(const ParameterSizes& sizes)>& names_of,
    const WrittenFolder& folder);

/// Calls `visit` on the rank that would write, with the whole of those
/// parameters of `model` that are in `names`. Collective as write_folder().
void for_each_whole(
    const Model& model,
    const WeightNames& names,
    const VisitWhole& visit);

/// The same for a wrapped model. @param wants which parameters.
void for_each_whole(
    Engine& engine,
    const std::function<bool(const std::string& name)>& wants,
    const VisitWhole& visit);

} // namespace tessera::zoo
