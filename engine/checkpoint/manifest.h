// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CheckpointManifest` is the content of a checkpoint's manifest.json;
// functions find the checkpoints in a folder.
//
// [Note: checkpoint folders] A checkpoint is a folder "step-N": one safetensors
// file per rank and manifest.json, which lists every tensor of every file with
// its checksum, and has one of its own values. Values of parameters, and state
// that has one value per element of a parameter, are stored as the pieces that
// the ranks had: flat, in the order of the parameter's memory, each with its
// offset. If a parameter is divided over tensor-parallel ranks, the piece
// records which partition the rank had (indices [begin, end) of a dimension),
// and its offset counts in the memory of that partition. What several ranks
// have in common is written by one of them. It does not matter which rank,
// group or pipeline stage a piece came from, so that any other layout can read
// its part: the manifest has the sizes of whole parameters, under their names
// in the whole model. A checkpoint is written as ".step-N.partial" and renamed
// when every rank has finished.

#include "tessera/sharding/tensors/tensor_spec.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

/// One tensor in the file of a rank.
struct SavedTensor {
  std::string name; ///< in the file
  std::string checksum;
  /// For pieces of parameters and tensors that belong to a parameter.
  std::string parameter;
  std::string state;
  /// Nothing for a tensor that is not a piece of a parameter. The format has
  /// room for one range of indices.
  std::optional<TensorSlice> part;
};

struct SavedRank {
  std::string file;
  uint64_t bytes = 0;
  std::vector<SavedTensor> tensors;
  /// Values of Checkpointables by name; shared ones are those of rank 0.
  std::map<std::string, nlohmann::json> states;
};

struct SavedParameter {
  std::vector<int64_t> sizes; ///< of the whole parameter
  std::vector<int64_t> strides;
  /// Optimizer steps that updated it.
  int64_t steps = 0;
  std::vector<std::string> aliases; ///< its other names, if it is tied
  /// Optimizer::saved_name() of the one that trained it; empty: it was frozen,
  /// or saved by a version that did not say.
  std::string optimizer;
};

using SavedParameters = std::map<std::string, SavedParameter>;

struct CheckpointManifest {
  int64_t step = 0; ///< optimizer steps of the run
  /// See CheckpointLineage; empty in checkpoints of before there were any.
  std::string lineage;
  nlohmann::json engine; ///< learning rate, loss scale
  SavedParameters parameters;
  std::vector<SavedRank> ranks;
  int tensor_ranks = 1; ///< tensor-parallel ranks
  int stages = 1; ///< pipeline stages
  /// A checksum of all values, and by those of tensors of the whole checkpoint;
  /// empty before it is read.
  std::string identity;
};

/// The report of a rank to the one that writes the manifest.
struct RankReport {
  SavedRank rank;
  SavedParameters parameters; ///< reported by this rank
};

std::string to_text(const RankReport& report);
/// @throws tessera::Error naming the file.
RankReport read_report(const std::filesystem::path& file);

std::string to_text(const CheckpointManifest& manifest);

/// @throws tessera::Error naming the file and what is wrong with it.
CheckpointManifest read_manifest(const std::filesystem::path& checkpoint);

/// The path of "step-000012" in `folder`.
std::filesystem::path checkpoint_path(
    const std::filesystem::path& folder,
    int64_t step);

/// The step of a path of checkpoint_path(); nothing of another.
std::optional<int64_t> checkpoint_step(const std::filesystem::path& checkpoint);

/// Complete checkpoints in `folder`, ascending by step; empty if the folder
/// does not exist.
std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& folder);

/// The checkpoint that a path is, or those that are in it or in its folder
/// "checkpoints" (a run folder), ascending by step; empty if there are none.
std::vector<std::filesystem::path> checkpoints_in(
    const std::filesystem::path& path);

/// `path` itself if it is a checkpoint, else the latest one in it. "step-12"
/// finds "step-000012".
/// @throws tessera::Error if there is none, naming those in the same folder.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// Makes "best" in the folder of the checkpoint a link to it.
/// @throws tessera::Error naming the link and the system's reason.
void mark_best(const std::filesystem::path& checkpoint);

/// Removes that link, if there is one.
void unmark_best(const std::filesystem::path& folder);

/// What "best" in a folder of checkpoints is a link to; nothing if that is no
/// checkpoint.
std::optional<std::filesystem::path> best_checkpoint(
    const std::filesystem::path& folder);

/// Removes all but `keep` checkpoints of the lineage of `written`, and the
/// remains of interrupted runs, from its folder. Kept are `written`,
/// best_checkpoint() and those with the highest steps below that of `written`:
/// checkpoints of higher steps are of before the run went back, and go first.
/// Those of other lineages, or of none, stay.
/// @param written the checkpoint that has just been written.
/// @param keep 0 keeps all.
void prune_checkpoints(const std::filesystem::path& written, int keep);

/// The lineage of a checkpoint; empty if it has none, or its manifest cannot be
/// read.
std::string lineage_of(const std::filesystem::path& checkpoint);

} // namespace tessera::engine
