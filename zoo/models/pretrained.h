// SPDX-License-Identifier: Apache-2.0
#pragma once
// from_pretrained() and save_pretrained() load models from Hugging Face folders
// and save them there.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/zoo/formats/weight_folder.h"
#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/models/registry.h"

#include <ATen/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

namespace tessera::zoo {

/// The LayerContext of this rank.
LayerContext layer_context(ParallelRun& parallel);

/// The same, for models with newly initialized weights: layers that can be
/// partitioned are partitioned even over a single rank, so that
/// init_parameters() gives them the same values under any layout of ranks.
LayerContext fresh_layer_context(ParallelRun& parallel);

struct FromPretrainedOptions {
  /// Overrides the architecture in config.json, for example to read a language
  /// model as a classifier. A head that the checkpoint lacks altogether is
  /// newly initialized (from the default generator, which ranks must seed
  /// alike) and logged; heads that this architecture lacks are ignored. All
  /// other weights must be there, and so must be the head of config.json's own
  /// architecture.
  std::string architecture;
  /// Instead of `architecture`: selects the family's first architecture that
  /// has such a head.
  WantedHead head;
  /// Entries that replace those of config.json, such as class names.
  nlohmann::json config = nlohmann::json::object();
  /// A head for other classes than those of the checkpoint's config.json, or of
  /// another shape, is newly initialized, as one that the checkpoint lacks, and
  /// logged; see classes_for_head().
  bool fresh_heads = false;
  /// With fresh_heads: of the classes that `config` names.
  ClassOrder class_order = ClassOrder::kAsGiven;
  /// Whether a head that shares the embedding's weight becomes one with a
  /// weight of its own, which has the same values at first; empty: none does.
  std::function<bool(const TiedHead&)> unties;
  /// Refuses tensors of the checkpoint that neither this model nor another head
  /// of its family has; otherwise they are ignored and logged.
  bool strict = true;
  /// Reads the weights from here instead of the folder: what
  /// sharding::WeightFiles::open() accepts, a checkpoint of an engine with a
  /// model of the zoo, or one of Megatron-LM (megatron_weights()).
  std::filesystem::path weights;
  LayerContext context; ///< plain or tensor-parallel, and the pipeline stage
  /// The dtype of parameters, to which the file's values are converted.
  /// nullopt: each parameter keeps its dtype in the file.
  std::optional<at::ScalarType> dtype = at::kFloat;
  /// Allocates no memory: tessera::wrap() then reads only each rank's part of
  /// the weights, and materialize() reads all. Until then, the folder must not
  /// change.
  bool lazy = false;
};

/// Loads the model of a folder with config.json and weights: model.safetensors
/// or pytorch_model.bin, in one file or in several with an index, or what else
/// sharding::WeightFiles::open() finds there. Weights with ModelCenter's names
/// are read as well, and so is a checkpoint of Megatron-LM, whose options stand
/// for a config.json. "hf://org/name@revision", and "org/name" where there is
/// no such folder, are fetched from the Hugging Face Hub: see runtime::fetch().
/// The model is in evaluation mode. With a
/// tensor-parallel group each rank reads its partition; collective only insofar
/// as construction is.
/// @throws tessera::Error naming the file and what is missing, unexpected, of
///     the wrong shape or not implemented.
std::shared_ptr<Model> from_pretrained(
    const std::filesystem::path& folder,
    const FromPretrainedOptions& options = {});

/// Loads the weights of such a folder into a model that is not wrapped.
LoadWeightsReport load_pretrained(
    Model& model,
    const std::filesystem::path& folder);

/// Loads them into the shards of a wrapped model, which may hold only a
/// pipeline stage or partitions of the layers. Collective.
LoadWeightsReport load_pretrained(
    Engine& engine,
    const Model& model,
    const std::filesystem::path& folder);

/// Loads some of the weights of another model into a wrapped one; everything
/// else keeps its values. Collective.
/// @param path a checkpoint of an engine, whose names are those of its modules,
///   or files as for from_pretrained(), with transformers' names: those are
///   what LoadWeightsOptions::rename_rules see. `only` and `except` are about
///   the names of this model's parameters. `map` and `rename` are not used.
LoadWeightsReport load_weights_of(
    Engine& engine,
    const Model& model,
    const std::filesystem::path& path,
    const LoadWeightsOptions& options);

/// The largest size of one file of weights; transformers' default.
inline constexpr int64_t kMaxShardBytes = 50'000'000'000;

/// Writes a folder that transformers loads: config.json, model.safetensors, and
/// the tokenizer's files from another folder; see HfFolderWriter. With a
/// tensor-parallel group, partitions are gathered one tensor at a time:
/// collective over the group, whose first rank writes. Blocks on the disk.
/// @param tokenizer_folder may be empty, for none.
/// @param change applied to each value; if given, adapters are left out.
/// @param max_shard_bytes see WeightFolder.
/// @throws tessera::Error, also if `model` is sharded by an engine, or has
///     adapters and no `change` is given: see save_lora() and save_merged().
void save_pretrained(
    const Model& model,
    const std::filesystem::path& folder,
    const std::filesystem::path& tokenizer_folder = {},
    const SavedValue& change = {},
    int64_t max_shard_bytes = kMaxShardBytes);

/// The same for a wrapped model, one group of parameters at a time; rank 0
/// writes. If ranks hold parts of the model (EngineOptions::parallel) or of its
/// experts, the whole model is written. Collective.
/// @throws tessera::Error on every rank if rank 0 cannot write.
void save_pretrained(
    Engine& engine,
    const Model& model,
    const std::filesystem::path& folder,
    const std::filesystem::path& tokenizer_folder = {},
    const SavedValue& change = {},
    int64_t max_shard_bytes = kMaxShardBytes);

} // namespace tessera::zoo
