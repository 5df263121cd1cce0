// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models from and to Hugging Face folders.

#include "tessera/engine/engine_ref.h"
#include "tessera/engine/parallel_run.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/models/registry.h"
#include "tessera/zoo/models/write_folder.h"

#include <ATen/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <optional>

namespace tessera::zoo {

/// What this rank's layers are made with.
LayerContext layer_context(ParallelRun& parallel);

/// The same for models that start with fresh weights: layers that can be
/// divided are, if only over one rank, so that init_parameters() gives them the
/// same numbers under any layout of ranks.
LayerContext fresh_layer_context(ParallelRun& parallel);

struct FromPretrainedOptions {
  /// Overrides config.json's, to read a language model as a classifier, say:
  /// heads that the checkpoint lacks are fresh (from the default generator,
  /// which ranks must seed alike; the log says so), and those it has too many
  /// are left out.
  std::string architecture;
  /// In place of `architecture`: the family's one whose name ends with this, as
  /// "ForSequenceClassification".
  std::string head;
  /// Entries that replace those of config.json, such as names of classes.
  nlohmann::json config = nlohmann::json::object();
  /// A head whose sizes are not those of the checkpoint's starts fresh, as one
  /// that the checkpoint lacks: for other classes.
  bool fresh_heads = false;
  LayerContext context; ///< plain or tensor-parallel layers, of which stage
  /// Of parameters; the file's numbers are converted. Empty: as in the files,
  /// each parameter for itself.
  std::optional<at::ScalarType> dtype = at::kFloat;
  /// The model gets no memory: tessera::wrap() reads each rank's part of the
  /// weights only, and materialize() makes it whole. The folder must stay as it
  /// is until then.
  bool lazy = false;
};

/// The model of a folder with config.json and model.safetensors, whole or in
/// several files with an index. In evaluation mode. With a tensor-parallel
/// group each rank reads its part; collective only as far as construction is.
/// @throws tessera::Error naming the file and what is missing, unexpected, of
///     the wrong shape or not implemented.
std::shared_ptr<Model> from_pretrained(
    const std::filesystem::path& folder,
    const FromPretrainedOptions& options = {});

/// How the weights of such a folder go into `model`, for
/// tessera::load_weights() and Engine::load_weights().
LoadWeightsOptions weight_options(
    const Model& model,
    const std::filesystem::path& folder);

/// Weights of a folder into the shards of a wrapped model, of which a rank may
/// have some layers, or parts of them. Collective.
LoadWeightsReport load_pretrained(
    Engine& engine,
    const Model& model,
    const std::filesystem::path& folder);

/// Of one file of weights: transformers' default.
inline constexpr int64_t kMaxShardBytes = 50'000'000'000;

/// Writes a folder that transformers loads: config.json, model.safetensors, and
/// the tokenizer's files from another folder; see HfFolderWriter. With a
/// tensor-parallel group the parts are gathered one by one: collective over the
/// group, and its first rank writes. Blocks on the disk.
/// @param tokenizer_folder may be empty, for none.
/// @param change of values; adapters are then left out.
/// @param max_shard_bytes see WrittenFolder.
/// @throws tessera::Error, also when `model` is sharded by an engine, or has
///     adapters and there is no `change`: see save_lora() and save_merged().
void save_pretrained(
    const Model& model,
    const std::filesystem::path& folder,
    const std::filesystem::path& tokenizer_folder = {},
    const SavedValue& change = {},
    int64_t max_shard_bytes = kMaxShardBytes);

/// The same for a wrapped model, one group of parameters at a time; rank 0
/// writes. Where ranks have parts of the model (EngineOptions::parallel), or of
/// its experts, it is the whole of them. Collective.
/// @throws tessera::Error on every rank when rank 0 cannot write.
void save_pretrained(
    const World& world,
    EngineRef engine,
    const Model& model,
    const std::filesystem::path& folder,
    const std::filesystem::path& tokenizer_folder = {},
    const SavedValue& change = {},
    int64_t max_shard_bytes = kMaxShardBytes);

} // namespace tessera::zoo
