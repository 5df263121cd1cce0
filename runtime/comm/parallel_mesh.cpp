// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/parallel_mesh.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_check.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>

namespace tessera {

namespace {

constexpr std::size_t kGroupsInTable = 8;
constexpr int64_t kMostRanks = 1 << 30;

struct SizeField {
  const char* name;
  int ParallelSizes::*size;
  const char* doc;
};

/// The axes whose product is the world size, outermost first.
constexpr std::array<SizeField, 5> kAxes{{
    {"pipeline",
     &ParallelSizes::pipeline,
     "pipeline stages; they process the `training.accumulate` micro-batches of a step"},
    {"data",
     &ParallelSizes::data,
     "replicas of the model, which see different batches"},
    {"shard",
     &ParallelSizes::shard,
     "ranks that shard the model (ZeRO) and see different batches; 0: all other ranks. If `parallel` is set, it takes the place of `sharding.shard_ranks`, which must then be 0. See [docs/parallel.md](../docs/parallel.md)"},
    {"context", &ParallelSizes::context, "ranks that divide each sequence"},
    {"tensor",
     &ParallelSizes::tensor,
     "neighboring ranks that partition each layer"},
}};

struct GroupTraits {
  ParallelGroup group;
  const char* name;
  std::vector<std::string> axes;
};

const GroupTraits& traits_of(ParallelGroup group) {
  using Group = ParallelGroup;
  static const std::vector<GroupTraits> all{
      {Group::kTensor, "tensor", {"tensor"}},
      {Group::kContext, "context", {"context"}},
      {Group::kShard, "shard", {"shard"}},
      {Group::kData, "data", {"data"}},
      {Group::kPipeline, "pipeline", {"pipeline"}},
      {Group::kExpert, "expert", {"expert"}},
      {Group::kSameExperts, "same_experts", {"same_experts"}},
      {Group::kBatches, "batches", {"data", "shard"}},
      {Group::kParameterShards, "parameter_shards", {"shard", "context"}},
      {Group::kGradients, "gradients", {"data", "shard", "context"}},
      {Group::kModel, "model", {"pipeline", "tensor"}},
      {Group::kOneBatch, "one_batch", {"pipeline", "context", "tensor"}},
  };
  return *std::find_if(all.begin(), all.end(), [&](const GroupTraits& traits) {
    return traits.group == group;
  });
}

std::string divisors_of(int number) {
  std::string text;
  for (int divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) {
      text += text.empty() ? "" : ", ";
      text += std::to_string(divisor);
    }
  }
  return text;
}

const char* name_of_size(int ParallelSizes::*size) {
  return std::find_if(
             kAxes.begin(),
             kAxes.end(),
             [&](const SizeField& axis) { return axis.size == size; })
      ->name;
}

/// Replaces the size that is 0, if any, by the remaining factor. If the others
/// do not divide the world size it becomes 1, and the mesh then suggests sizes
/// that fit.
ParallelSizes filled(ParallelSizes sizes, int world_size) {
  runtime::check_fields("parallel", sizes);
  int ParallelSizes::*open = nullptr;
  std::int64_t product = 1;
  for (const SizeField& axis : kAxes) {
    const int size = sizes.*axis.size;
    if (size > 0) {
      product = std::min<std::int64_t>(
          product * size, std::numeric_limits<int>::max());
      continue;
    }
    TESSERA_CHECK(
        open == nullptr,
        "parallel.{} is 0, all remaining ranks, and so is parallel.{} (its default unless it is set); only one of them can be 0. Set one of them to a size.",
        axis.name,
        name_of_size(open));
    open = axis.size;
  }
  if (open != nullptr) {
    sizes.*open =
        world_size % product == 0 ? static_cast<int>(world_size / product) : 1;
  }
  return sizes;
}

DeviceMesh mesh_for(const ParallelSizes& sizes, int world_size) {
  std::vector<MeshAxis> axes;
  for (const SizeField& axis : kAxes) {
    axes.push_back({axis.name, sizes.*axis.size});
  }
  return {axes, world_size};
}

DeviceMesh expert_mesh_for(const ParallelSizes& sizes, const DeviceMesh& mesh) {
  const int batches = sizes.data * sizes.shard * sizes.context;
  TESSERA_CHECK(
      batches % sizes.expert == 0,
      "parallel.expert is {}, which does not divide the {} ranks of data {} x shard {} x context {}; possible sizes: {}.",
      sizes.expert,
      batches,
      sizes.data,
      sizes.shard,
      sizes.context,
      divisors_of(batches));
  return mesh.with_axes(
      {{"pipeline", sizes.pipeline},
       {"same_experts", batches / sizes.expert},
       {"expert", sizes.expert},
       {"tensor", sizes.tensor}});
}

std::string in_brackets(const std::vector<int>& ranks) {
  std::string text = "[";
  for (const int rank : ranks) {
    text += text.size() > 1 ? "," : "";
    text += std::to_string(rank);
  }
  text += ']';
  return text;
}

template <typename Item>
std::string first_ones(
    std::size_t count,
    const std::string& separator,
    const Item& item) {
  std::string text;
  for (std::size_t i = 0; i < std::min(count, kGroupsInTable); ++i) {
    text += i == 0 ? "" : separator;
    text += item(i);
  }
  if (count > kGroupsInTable) {
    text += formatted("{}... {} in total", separator, count);
  }
  return text;
}

} // namespace

void visit_fields(runtime::OptionFields& fields, ParallelSizes& sizes) {
  for (const SizeField& axis : kAxes) {
    fields.field(
        axis.name, sizes.*axis.size, {.min = 0, .max = kMostRanks}, axis.doc);
  }
  fields.field(
      "expert",
      sizes.expert,
      {.min = 1, .max = kMostRanks},
      "ranks that divide the experts, out of the data, shard and context ranks ([sharding/tensor_parallel](../sharding/tensor_parallel/README.md))");
}

const char* name_of(ParallelGroup group) {
  return traits_of(group).name;
}

ParallelMesh::ParallelMesh(
    const ParallelSizes& sizes,
    int world_size,
    int local_world_size)
    : sizes_(filled(sizes, world_size)),
      mesh_(mesh_for(sizes_, world_size)),
      expert_mesh_(expert_mesh_for(sizes_, mesh_)) {
  TESSERA_CHECK(
      local_world_size >= 1 && local_world_size <= world_size,
      "a node has {} of the job's {} ranks; it must have at least 1 and at most all of them.",
      local_world_size,
      world_size);
  TESSERA_CHECK(
      local_world_size % sizes_.tensor == 0,
      "parallel.tensor is {}, so some tensor groups would span several nodes, which have {} ranks each. Every layer waits for its tensor group several times; possible sizes within a node: {}.",
      sizes_.tensor,
      local_world_size,
      divisors_of(std::gcd(local_world_size, world_size)));
}

const DeviceMesh& ParallelMesh::mesh_of(ParallelGroup group) const {
  switch (group) {
    case ParallelGroup::kExpert:
    case ParallelGroup::kSameExperts:
      return expert_mesh_;
    default:
      return mesh_;
  }
}

DeviceMesh ParallelMesh::slice(ParallelGroup group, int rank) const {
  return mesh_of(group).seen_by(rank).slice(traits_of(group).axes);
}

std::vector<std::vector<int>> ParallelMesh::groups(ParallelGroup group) const {
  std::vector<std::vector<int>> all;
  for (const DeviceMesh& slice : mesh_of(group).slices(traits_of(group).axes)) {
    all.push_back(slice.ranks());
  }
  return all;
}

int ParallelMesh::index(ParallelGroup group, int rank) const {
  return slice(group, rank).position_of(rank);
}

int ParallelMesh::size(ParallelGroup group) const {
  return slice(group, 0).size();
}

std::string ParallelMesh::table() const {
  std::string text =
      std::to_string(world_size()) + " ranks as " + mesh_.describe() + "\n";
  for (const auto group :
       {ParallelGroup::kTensor,
        ParallelGroup::kContext,
        ParallelGroup::kShard,
        ParallelGroup::kData,
        ParallelGroup::kExpert,
        ParallelGroup::kPipeline}) {
    const int ranks_in_group = size(group);
    if (ranks_in_group == 1) {
      continue;
    }
    std::string name = name_of(group);
    name.resize(10, ' ');
    text += name + std::to_string(ranks_in_group) + "  ";
    if (group == ParallelGroup::kPipeline) {
      const int stage_ranks = world_size() / ranks_in_group;
      text += first_ones(
          static_cast<std::size_t>(ranks_in_group), ", ", [&](std::size_t s) {
            const int first = static_cast<int>(s) * stage_ranks;
            return formatted(
                "stage {}: ranks {}-{}", s, first, first + stage_ranks - 1);
          });
    } else {
      const auto all = groups(group);
      text += first_ones(
          all.size(), " ", [&](std::size_t g) { return in_brackets(all[g]); });
    }
    text += "\n";
  }
  return text;
}

} // namespace tessera
