// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a checkpoint's manifest.json says, and which checkpoints a folder has.
//
// [Note: checkpoint folders] A checkpoint is a folder "step-N": one safetensors
// file per rank and manifest.json, which lists every tensor of every file with
// its checksum. Values of parameters, and state that has one value per element
// of a parameter, are stored as the pieces that the ranks had: flat, in the
// order of the parameter's memory, each with its offset. Where a parameter is
// divided over tensor-parallel ranks, the piece says which part of it the rank
// had (indices [begin, end) of a dimension), and the offset is one in the
// memory of that part. What several ranks have alike is written by one of them.
// Which rank, group or pipeline stage a piece was in means nothing, so that any
// other division can read its part: the manifest has the sizes of whole
// parameters, under the names that they have in the whole model. A checkpoint
// is written as ".step-N.partial" and moved to its name when every rank has
// finished.

#include "tessera/engine/checkpoint/part_elements.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// The state name of parameters' values.
inline constexpr const char* kMasterState = "master";

/// One tensor of a rank's file.
struct SavedTensor {
  std::string name; ///< in the file
  std::string checksum;
  /// For pieces of parameters and tensors that belong to one.
  std::string parameter;
  std::string state;
  /// Of the first element in the memory of the parameter, or of the part of it;
  /// nothing for a tensor that is no piece of one.
  std::optional<int64_t> offset;
  int64_t numel = 0;
  std::optional<DimPart> part; ///< nothing: of the whole parameter

  PartStretch stretch() const {
    return {part, offset.value_or(0), numel};
  }
};

struct SavedRank {
  std::string file;
  uint64_t bytes = 0;
  std::vector<SavedTensor> tensors;
  /// Values of Checkpointables by name; shared ones are rank 0's.
  std::map<std::string, nlohmann::json> states;
};

struct SavedParameter {
  std::vector<int64_t> sizes; ///< of the whole
  std::vector<int64_t> strides;
  /// Optimizer steps that it has taken.
  int64_t steps = 0;
  std::vector<std::string> aliases; ///< its other names, if it is tied
};

using SavedParameters = std::map<std::string, SavedParameter>;

struct CheckpointManifest {
  int64_t step = 0; ///< optimizer steps of the run
  nlohmann::json engine; ///< learning rate, loss scale
  SavedParameters parameters;
  std::vector<SavedRank> ranks;
  int tensor_ranks = 1; ///< that divided each layer
  int stages = 1; ///< of the pipeline
};

/// What one rank tells the one that writes the manifest.
struct RankReport {
  SavedRank rank;
  SavedParameters parameters; ///< that it speaks for
};

std::string to_text(const RankReport& report);
/// @throws tessera::Error naming the file.
RankReport read_report(const std::filesystem::path& file);

std::string to_text(const CheckpointManifest& manifest);

/// @throws tessera::Error naming the file and what is wrong with it.
CheckpointManifest read_manifest(const std::filesystem::path& checkpoint);

/// "step-000012" in `folder`.
std::filesystem::path checkpoint_path(
    const std::filesystem::path& folder,
    int64_t step);

/// Complete checkpoints in `folder`, ascending by step; none when there is no
/// such folder.
std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& folder);

/// `path` itself when it is a checkpoint, else the latest one in it. "step-12"
/// finds "step-000012".
/// @throws tessera::Error when there is none, naming those beside it.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// Removes all but the last `keep` checkpoints, and what interrupted runs left.
/// @param keep 0 keeps all.
void prune_checkpoints(const std::filesystem::path& folder, int keep);

} // namespace tessera
