// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/parallel_mesh.h"
#include "support/expect_error.h"
#include "tessera/runtime/core/config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>
#include <string>
#include <vector>

namespace tessera::runtime::parallel_mesh_test {

namespace {

using Group = ParallelGroup;
using Groups = std::vector<std::vector<int>>;

constexpr Group kAll[] = {
    Group::kTensor,
    Group::kContext,
    Group::kShard,
    Group::kData,
    Group::kPipeline,
    Group::kExpert,
    Group::kSameExperts,
    Group::kBatches,
    Group::kParameterShards,
    Group::kGradients,
    Group::kOneBatch};

ParallelSizes sizes(
    int pipeline,
    int data,
    int shard,
    int context,
    int tensor) {
  ParallelSizes result;
  result.pipeline = pipeline;
  result.data = data;
  result.shard = shard;
  result.context = context;
  result.tensor = tensor;
  return result;
}

ParallelSizes from_json(const char* text) {
  const ConfigReader reader(nlohmann::json::parse(text), "run.json");
  ParallelSizes read;
  runtime::read_fields(reader.get_object("parallel"), read);
  reader.finish();
  return read;
}

} // namespace

// The layout that LiBai's documentation draws for eight devices.
TEST(ParallelMesh, LaysEightRanksOutWithTensorInnermost) {
  const ParallelMesh mesh(sizes(2, 2, 1, 1, 2), 8, 8);
  EXPECT_EQ(
      mesh.groups(Group::kTensor), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(
      mesh.groups(Group::kData), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(mesh.index(Group::kPipeline, rank), rank < 4 ? 0 : 1);
  }
  EXPECT_EQ(
      mesh.table(),
      "8 ranks as pipeline 2 x data 2 x shard 1 x context 1 x tensor 2\n"
      "tensor    2  [0,1] [2,3] [4,5] [6,7]\n"
      "data      2  [0,2] [1,3] [4,6] [5,7]\n"
      "pipeline  2  stage 0: ranks 0-3, stage 1: ranks 4-7\n");
}

TEST(ParallelMesh, ShardsTakeAllThatIsLeft) {
  EXPECT_EQ(ParallelMesh({}, 6, 3).sizes(), sizes(1, 1, 6, 1, 1));
  EXPECT_EQ(
      ParallelMesh(sizes(2, 1, 0, 1, 2), 16, 8).sizes(), sizes(2, 1, 4, 1, 2));
  EXPECT_EQ(
      ParallelMesh(sizes(1, 0, 4, 1, 1), 8, 4).sizes(), sizes(1, 2, 4, 1, 1));
}

TEST(ParallelMesh, EveryRankIsInOneGroupOfEachKind) {
  ParallelSizes all = sizes(2, 2, 3, 2, 2);
  all.expert = 4;
  const ParallelMesh mesh(all, 48, 8);
  for (const Group group : kAll) {
    std::set<int> seen;
    for (const auto& ranks : mesh.groups(group)) {
      EXPECT_EQ(static_cast<int>(ranks.size()), mesh.size(group));
      for (const int rank : ranks) {
        EXPECT_TRUE(seen.insert(rank).second) << name_of(group);
        EXPECT_EQ(mesh.ranks(group, rank), ranks);
        EXPECT_EQ(ranks[static_cast<size_t>(mesh.index(group, rank))], rank);
      }
    }
    EXPECT_EQ(seen.size(), 48u) << name_of(group);
  }
}

// Ranks that see one batch and ranks that add up the same gradients share
// nothing else than a rank; together they are a pipeline stage's share.
TEST(ParallelMesh, JoinedAxesAreTheirProducts) {
  const ParallelMesh mesh(sizes(2, 2, 2, 2, 2), 32, 32);
  EXPECT_EQ(
      mesh.ranks(Group::kParameterShards, 0), (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(mesh.ranks(Group::kBatches, 0), (std::vector<int>{0, 4, 8, 12}));
  EXPECT_EQ(
      mesh.ranks(Group::kGradients, 0),
      (std::vector<int>{0, 2, 4, 6, 8, 10, 12, 14}));
  EXPECT_EQ(
      mesh.ranks(Group::kOneBatch, 0),
      (std::vector<int>{0, 1, 2, 3, 16, 17, 18, 19}));
}

TEST(ParallelMesh, ExpertsDivideRanksThatSeeOtherTokens) {
  ParallelSizes all = sizes(1, 2, 2, 1, 2);
  all.expert = 2;
  const ParallelMesh mesh(all, 8, 8);
  EXPECT_EQ(
      mesh.groups(Group::kExpert), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(
      mesh.groups(Group::kSameExperts),
      (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  all.expert = 3;
  expect_error(
      [&] { ParallelMesh(all, 8, 8); },
      {"parallel.expert is 3", "4 ranks", "1, 2, 4"});
}

// 8 ranks as pipeline 2 x shard 2 x tensor 2: the two that see other tokens
// have other experts, and no two have the same ones.
TEST(ParallelMesh, ExpertsDivideTheRanksOfAStageAndPartition) {
  ParallelSizes all = sizes(2, 1, 2, 1, 2);
  all.expert = 2;
  const ParallelMesh mesh(all, 8, 8);
  EXPECT_EQ(
      mesh.groups(Group::kExpert), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.size(Group::kSameExperts), 1);

  all.data = 2;
  const ParallelMesh wide(all, 16, 16);
  EXPECT_EQ(wide.ranks(Group::kSameExperts, 0), (std::vector<int>{0, 4}));
  EXPECT_EQ(wide.ranks(Group::kExpert, 0), (std::vector<int>{0, 2}));
}

TEST(ParallelMesh, NamesFactorisationsThatWouldFit) {
  expect_error(
      [] { ParallelMesh(sizes(2, 3, 1, 1, 2), 8, 8); },
      {"does not fit the 8 ranks",
       "pipeline 2 x data 2 x shard 1 x context 1 x tensor 2"});
  expect_error(
      [] { ParallelMesh(sizes(3, 1, 0, 1, 1), 8, 8); },
      {"does not fit the 8 ranks", "sizes that would fit"});
  expect_error(
      [] { ParallelMesh(sizes(1 << 30, 1 << 30, 0, 1, 8), 8, 8); },
      {"does not fit the 8 ranks"});
}

TEST(ParallelMesh, TensorGroupsStayInsideANode) {
  ParallelMesh(sizes(1, 1, 4, 1, 2), 8, 4);
  expect_error(
      [] { ParallelMesh(sizes(1, 1, 1, 1, 8), 8, 4); },
      {"parallel.tensor is 8", "several nodes, which have 4", "1, 2, 4"});
  expect_error(
      [] { ParallelMesh(sizes(1, 1, 4, 1, 3), 12, 4); },
      {"parallel.tensor is 3", "1, 2, 4"});
  expect_error([] { ParallelMesh({}, 8, 0); }, {"a node has 0"});
}

TEST(ParallelMesh, OnlyOneSizeCanBeWhatIsLeft) {
  expect_error(
      [] { ParallelMesh(sizes(1, 0, 0, 1, 1), 8, 8); },
      {"parallel.shard", "only one"});
  expect_error(
      [] { ParallelMesh(sizes(1, -2, 0, 1, 1), 8, 8); },
      {"parallel.data is -2"});
}

TEST(ParallelMesh, ManyGroupsAreCutShort) {
  const std::string table = ParallelMesh(sizes(1, 1, 0, 1, 8), 128, 8).table();
  EXPECT_NE(
      table.find("[56,57,58,59,60,61,62,63] ... 16 in total"),
      std::string::npos)
      << table;
}

TEST(ReadParallelSizes, ReadsStrictly) {
  EXPECT_EQ(from_json("{}"), ParallelSizes{});
  EXPECT_EQ(
      from_json(R"({"parallel": {"tensor": 2, "pipeline": 4, "data": 0,
                                 "shard": 1, "context": 3}})"),
      sizes(4, 0, 1, 3, 2));
  expect_error(
      [] { from_json(R"({"parallel": {"tensor": -1}})"); },
      {"run.json", "parallel.tensor"});
  expect_error(
      [] { from_json(R"({"parallel": {"expert": 0}})"); }, {"parallel.expert"});
  expect_error(
      [] { from_json(R"({"parallel": {"model": 2}})"); }, {"parallel.model"});
}

} // namespace tessera::runtime::parallel_mesh_test
