// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layouts that checkpoints go between, and what must be equal.

#include "engine/parallel/mesh_net.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/checkpoint/checkpoint_reader.h"

#include <set>
#include <string>
#include <utility>

namespace tessera::tests {

inline const MeshLayout kMeshLayouts[] = {
    {"one", {.shard = 1}},
    {"tensor2", {.shard = 1, .tensor = 2}},
    {"tensor2_sequence_shard2", {.shard = 2, .tensor = 2}, 3, true},
    {"pipeline2_shard2", {.shard = 2, .pipeline = 2}, 2},
    {"tensor2_pipeline2_data2",
     {.data = 2, .shard = 1, .tensor = 2, .pipeline = 2},
     1},
    {"tensor3",
     {.shard = 1, .tensor = 3}}, // uneven heads, features, vocabulary
};

inline EngineOptions mesh_options() {
  EngineOptions options;
  options.sharding.groups.min_group_numel = 0;
  options.optimizer.lr = 1e-2;
  options.optimizer.weight_decay = 0.1;
  options.log_memory = false;
  return options;
}

/// All names of values of a checkpoint's parameters, and of states.
inline std::set<std::pair<std::string, std::string>> saved_states(
    const engine::CheckpointManifest& manifest) {
  std::set<std::pair<std::string, std::string>> states;
  for (const engine::SavedRank& rank : manifest.ranks) {
    for (const engine::SavedTensor& tensor : rank.tensors) {
      if (tensor.part) {
        states.emplace(tensor.parameter, tensor.state);
      }
    }
  }
  return states;
}

inline at::Tensor full_of(
    engine::CheckpointReader& reader,
    const std::string& parameter,
    const std::string& state) {
  int64_t numel = 1;
  for (const int64_t size : reader.manifest().parameters.at(parameter).sizes) {
    numel *= size;
  }
  const at::Tensor values = torch::zeros({numel}, torch::kDouble);
  reader.read_elements(parameter, state, {{}, 0, numel}, values);
  return values;
}

/// Tensors that belong to whole parameters.
inline std::multiset<std::string> names_of_full_tensors(
    const engine::CheckpointManifest& manifest) {
  std::multiset<std::string> names;
  for (const engine::SavedRank& rank : manifest.ranks) {
    for (const engine::SavedTensor& tensor : rank.tensors) {
      if (!tensor.part && !tensor.parameter.empty()) {
        names.insert(tensor.name);
      }
    }
  }
  return names;
}

/// Two checkpoints have the same bits, whoever wrote them.
inline void expect_same_checkpoints(
    const std::filesystem::path& got,
    const std::filesystem::path& want) {
  engine::CheckpointReader a(got);
  engine::CheckpointReader b(want);
  EXPECT_EQ(a.manifest().step, b.manifest().step);
  EXPECT_EQ(a.manifest().engine, b.manifest().engine);
  ASSERT_EQ(saved_states(a.manifest()), saved_states(b.manifest()));
  for (const auto& [name, parameter] : b.manifest().parameters) {
    EXPECT_EQ(a.manifest().parameters.at(name).steps, parameter.steps) << name;
    EXPECT_EQ(a.manifest().parameters.at(name).sizes, parameter.sizes) << name;
  }
  for (const auto& [parameter, state] : saved_states(b.manifest())) {
    EXPECT_TRUE(
        full_of(a, parameter, state).equal(full_of(b, parameter, state)))
        << state << " of " << parameter;
  }
  const auto names = names_of_full_tensors(b.manifest());
  EXPECT_EQ(names_of_full_tensors(a.manifest()), names);
  for (const std::string& name : names) {
    EXPECT_TRUE(a.tensor(a.rank_with(0, name).value(), name)
                    .equal(b.tensor(b.rank_with(0, name).value(), name)))
        << name;
  }
}

/// The elements that the pieces of a state have between them.
inline int64_t saved_numel(
    const engine::CheckpointManifest& manifest,
    const std::string& state) {
  int64_t numel = 0;
  for (const engine::SavedRank& rank : manifest.ranks) {
    for (const engine::SavedTensor& tensor : rank.tensors) {
      numel += tensor.part && tensor.state == state ? tensor.part->numel : 0;
    }
  }
  return numel;
}

} // namespace tessera::tests
