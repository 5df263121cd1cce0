// SPDX-License-Identifier: Apache-2.0
#pragma once
// `load_weights()` loads files of weights into a module, which may be in
// memory, lazy or sharded.

#include <torch/nn/module.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::sharding {

class Pager;
class WeightFiles;

} // namespace tessera::sharding

namespace tessera {

class Communicator;

/// A tensor of the model as a checkpoint's tensor contains it: as some of its
/// rows, or of the rows of its transpose.
struct MappedWeight {
  std::string name; ///< of the model's tensor
  std::vector<int64_t> sizes; ///< of the whole tensor in the model
  std::vector<int64_t> shape; ///< shape that the checkpoint's tensor must have
  int64_t first_row = 0;
  bool is_transposed = false; ///< matrices only
};

/// Returns the tensors of the model that a checkpoint's tensor of this name
/// contains. An empty list leaves the tensor out; std::nullopt means that it is
/// unexpected.
using WeightMap =
    std::function<std::optional<std::vector<MappedWeight>>(std::string_view)>;

struct LoadWeightsOptions {
  /// Maps the name of a tensor in the checkpoint to its name in the module; ""
  /// leaves the tensor out. By default, names are taken as they are.
  std::function<std::string(std::string_view)> rename;
  /// Used instead of `rename` for a checkpoint that stores tensors transposed
  /// or fused.
  WeightMap map;
  /// Parameters with one of these prefixes may be missing; they keep their
  /// values.
  std::vector<std::string> may_be_missing;
  /// With `map`: the name in a checkpoint of a parameter of the module, for
  /// messages about missing ones. By default, its name in the module.
  std::function<std::string(const std::string&)> checkpoint_name;
  /// If false, missing and unexpected names are reported instead of refused.
  bool strict = true;
  /// Unexpected names are reported instead of refused, even if strict.
  bool allows_unexpected = false;
};

struct LoadWeightsReport {
  /// Parameters that are not in the checkpoint, by their first names.
  std::vector<std::string> missing;
  /// Tensors of the checkpoint that are not in the module.
  std::vector<std::string> unexpected;
  /// Tensors of the checkpoint that `rename` left out.
  std::vector<std::string> left_out;
};

/// Loads a checkpoint into parameters and registered buffers. Floating-point
/// values are converted to the dtype of the module. Buffers may be missing. A
/// tied parameter may be stored under any of its names. The checkpoint has
/// whole tensors: of a parameter that tensor-parallel ranks divide, each reads
/// its partition.
///
/// Parameters that have memory are read now. Lazy parameters (tessera::lazy)
/// are read when they get memory: tessera::wrap reads only each rank's shard,
/// materialize() reads everything. The files must not change until then.
/// @param path see WeightFiles::open().
/// @throws tessera::Error that names every tensor that is missing, unexpected
///   (with the nearest names), of another shape, or of a dtype that cannot be
///   converted; the module is then unchanged.
LoadWeightsReport load_weights(
    torch::nn::Module& module,
    const std::filesystem::path& path,
    const LoadWeightsOptions& options = {});
/// The same with files that are open already.
LoadWeightsReport load_weights(
    torch::nn::Module& module,
    const sharding::WeightFiles& files,
    const LoadWeightsOptions& options = {});

/// As load_weights(), for a module that is sharded: each rank reads its shard
/// of each parameter, into the master weight if there is one. Gradients are
/// reset. No gather scope may be open. Collective; all ranks must see the same
/// files.
/// @param ranks of the whole model, for tensors on the CPU. Tensors that any of
///   them takes are neither unexpected nor left out, and the report covers the
///   whole model.
LoadWeightsReport load_sharded_weights(
    sharding::Pager& pager,
    torch::nn::Module& module,
    const sharding::WeightFiles& files,
    const LoadWeightsOptions& options,
    Communicator& ranks);

} // namespace tessera
