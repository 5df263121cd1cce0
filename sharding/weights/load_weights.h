// SPDX-License-Identifier: Apache-2.0
#pragma once
// `load_weights()` loads files of weights into a module, which may be in
// memory, lazy or sharded.

#include "tessera/runtime/core/other_names.h"

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

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

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

/// Gives tensors of a checkpoint other names.
struct RenameRule {
  std::string from; ///< regular expression (ECMAScript) of whole names
  std::string to; ///< $1 is what the first group matched; "" leaves it out
};

void visit_fields(runtime::OptionFields& fields, RenameRule& rule);

struct LoadWeightsOptions {
  /// The first rule that matches a name in the checkpoint replaces it, before
  /// `rename` or `map` see it.
  std::vector<RenameRule> rename_rules;
  /// Maps the name of a tensor in the checkpoint to its name in the module; ""
  /// leaves the tensor out. By default, names are taken as they are.
  std::function<std::string(std::string_view)> rename;
  /// Used instead of `rename` for a checkpoint that stores tensors transposed
  /// or fused.
  WeightMap map;
  /// Parameters and buffers with one of these prefixes may be missing; they
  /// keep their values.
  std::vector<std::string> may_be_missing;
  /// With `map`: the name in a checkpoint of a parameter of the module, for
  /// messages about missing ones. By default, its name in the module.
  std::function<std::string(const std::string&)> checkpoint_name;
  /// If not empty, only tensors of the module are loaded that have a name, or
  /// one of `other_names`, which one of these regular expressions (ECMAScript)
  /// matches as a whole; the others keep their values.
  std::vector<std::string> only;
  /// Tensors of the module that keep their values, as `only`.
  std::vector<std::string> except;
  /// By default, those of EngineOptions where the module is wrapped.
  OtherNames other_names;
  /// If false, missing and unexpected names and tensors of other shapes are
  /// reported instead of refused.
  bool strict = true;
  /// Unexpected names are reported instead of refused, even if strict.
  bool allows_unexpected = false;
  /// Loads the optimizer state of the loaded parameters too, and how often they
  /// were updated. For Engine::load_weights() of a checkpoint (Engine::save())
  /// alone.
  bool optimizer_state = false;
};

/// A tensor of the model that was loaded.
struct LoadedWeight {
  std::string name;
  std::string source; ///< the tensor of the checkpoint
};

/// A tensor that the checkpoint has with another shape than the model.
struct OtherShape {
  std::string name;
  std::string source;
  std::vector<int64_t> expected; ///< shape that the checkpoint should have
  std::vector<int64_t> found;
};

/// What load_weights() did with every tensor of the model and of the
/// checkpoint. Tensors of the model have their first names.
struct LoadWeightsReport {
  std::vector<LoadedWeight> loaded;
  /// Parameters that are not in the checkpoint and keep their values.
  std::vector<std::string> missing;
  /// Buffers that are not in the checkpoint and keep their values.
  std::vector<std::string> missing_buffers;
  /// Tensors that keep their values because of their shape; not strict.
  std::vector<OtherShape> other_shapes;
  /// Tensors that `only` and `except` let keep their values.
  std::vector<std::string> not_chosen;
  /// Tensors of the checkpoint that are not in the module.
  std::vector<std::string> unexpected;
  /// Tensors of the checkpoint that `rename`, or the choice, left out, or whose
  /// name is a second one of a tied parameter that has other values under the
  /// first; not strict.
  std::vector<std::string> left_out;
  /// With `optimizer_state`, the trained parameters among the loaded ones whose
  /// state was loaded, and those whose state is as before, because the
  /// checkpoint lacks it, or cannot be redistributed.
  std::vector<std::string> with_state;
  std::vector<std::string> without_state;

  /// Some lines for a log, with the first names of each list.
  std::string text() const;
  /// A JSON object with all lists, under their names here.
  std::string json() const;
};

/// Loads a checkpoint into parameters and registered buffers. Floating-point
/// values are converted to the dtype of the module. Buffers that files
/// rightly lack, such as tables that the module computes, are named by
/// `may_be_missing` or `except`. A tied parameter may be stored under any of
/// its names, under several with the same values. The checkpoint has whole
/// tensors: of a parameter that tensor-parallel ranks divide, each reads its
/// partition.
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
