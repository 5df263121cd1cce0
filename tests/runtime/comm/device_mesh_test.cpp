// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/device_mesh.h"

#include "support/expect_error.h"
#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::runtime::device_mesh_test {

namespace {

using Groups = std::vector<std::vector<int>>;

DeviceMesh eight_ranks() {
  return DeviceMesh({{"pipeline", 2}, {"data", 2}, {"tensor", 2}}, 8);
}

Groups groups(const DeviceMesh& mesh, const std::vector<std::string>& axes) {
  Groups all;
  for (const DeviceMesh& slice : mesh.slices(axes)) {
    all.push_back(slice.ranks());
  }
  return all;
}

void expect_message(
    const std::vector<MeshAxis>& axes,
    int world_size,
    const std::string& part) {
  const auto message = error_of([&] { DeviceMesh mesh(axes, world_size); });
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

} // namespace

// The layout that LiBai's documentation draws for eight devices.
TEST(DeviceMesh, LaysEightRanksOutWithTensorInnermost) {
  const auto mesh = eight_ranks();
  EXPECT_EQ(groups(mesh, {"tensor"}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(groups(mesh, {"data"}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(
      groups(mesh, {"pipeline"}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(mesh.seen_by(rank).index("pipeline"), rank < 4 ? 0 : 1);
  }
}

TEST(DeviceMesh, FindsTheGroupOfARank) {
  const auto mesh = eight_ranks().seen_by(5);
  EXPECT_EQ(mesh.slice({"tensor"}).ranks(), (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.slice({"data"}).ranks(), (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh.slice({"pipeline"}).ranks(), (std::vector<int>{1, 5}));
}

TEST(DeviceMesh, ASliceHasSeveralAxes) {
  const auto mesh = eight_ranks();
  EXPECT_EQ(
      groups(mesh, {"data", "tensor"}), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(
      groups(mesh, {"tensor", "pipeline"}),
      (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(
      mesh.seen_by(3).slice({"pipeline", "data", "tensor"}), mesh.seen_by(3));
}

TEST(DeviceMesh, ASliceIsAMesh) {
  const auto slice = eight_ranks().seen_by(6).slice({"pipeline", "data"});
  EXPECT_EQ(slice.describe(), "pipeline 2 x data 2");
  EXPECT_EQ(slice.ranks(), (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(slice.index("pipeline"), 1);
  EXPECT_EQ(slice.index("data"), 1);
  EXPECT_EQ(slice.slice({"pipeline"}).ranks(), (std::vector<int>{2, 6}));
  EXPECT_TRUE(slice.has("data"));
  EXPECT_FALSE(slice.has("tensor"));
}

TEST(DeviceMesh, DividesTheSameRanksOtherwise) {
  const auto mesh = eight_ranks()
                        .seen_by(6)
                        .slice({"pipeline", "data"})
                        .with_axes({{"shard", 4}});
  EXPECT_EQ(mesh.index("shard"), 3);
  EXPECT_EQ(mesh.slice({"shard"}).ranks(), (std::vector<int>{0, 2, 4, 6}));
}

TEST(DeviceMesh, IndicesAreTheDigitsOfTheRank) {
  const DeviceMesh all({{"a", 2}, {"b", 3}, {"c", 4}}, 24);
  for (int rank = 0; rank < 24; ++rank) {
    const DeviceMesh mesh = all.seen_by(rank);
    EXPECT_EQ(
        mesh.index("a") * 12 + mesh.index("b") * 4 + mesh.index("c"), rank);
    EXPECT_EQ(mesh.slice({"b"}).ranks().at(mesh.index("b")), rank);
  }
}

TEST(DeviceMesh, EveryRankIsInOneGroupOfAnAxis) {
  const DeviceMesh mesh({{"a", 3}, {"b", 1}, {"c", 4}}, 12);
  for (const char* axis : {"a", "b", "c"}) {
    std::vector<int> seen(12);
    for (const auto& group : groups(mesh, {axis})) {
      EXPECT_EQ(static_cast<int>(group.size()), mesh.size(axis));
      for (const int rank : group) {
        ++seen.at(rank);
      }
    }
    EXPECT_EQ(seen, std::vector<int>(12, 1)) << axis;
  }
}

TEST(DeviceMesh, AWorldOfOneIsAMesh) {
  const DeviceMesh mesh({{"data", 1}}, 1);
  EXPECT_EQ(groups(mesh, {"data"}), (Groups{{0}}));
}

TEST(DeviceMesh, NamesSizesThatWouldFit) {
  expect_message(
      {{"pipeline", 2}, {"data", 3}, {"tensor", 2}},
      8,
      "the mesh pipeline 2 x data 3 x tensor 2 does not fit the 8 ranks");
  // One axis changed is enough, and the only one that can be is data.
  expect_message(
      {{"pipeline", 2}, {"data", 3}, {"tensor", 2}},
      8,
      "sizes that would fit: pipeline 2 x data 2 x tensor 2");
  expect_message(
      {{"data", 4}, {"tensor", 4}},
      8,
      "sizes that would fit: data 4 x tensor 2, or data 2 x tensor 4");
  // Neither size divides 8: both have to change.
  expect_message({{"data", 3}, {"tensor", 3}}, 8, "data 1 x tensor 8");
  // Does not overflow on the way.
  expect_message(
      {{"a", 1 << 30}, {"b", 1 << 30}, {"c", 1 << 30}},
      2,
      "sizes that would fit");
}

TEST(DeviceMesh, RefusesWhatIsNoMesh) {
  expect_message({}, 1, "at least one axis");
  expect_message({{"data", 2}, {"data", 4}}, 8, "two axes named 'data'");
  expect_message({{"", 8}}, 8, "has no name");
  expect_message({{"data", 0}}, 8, "mesh axis 'data' has size 0");
  expect_message({{"data", 1}}, 0, "the world has 0 ranks");
}

TEST(DeviceMesh, NamesARankOrAnAxisItDoesNotHave) {
  const auto mesh = eight_ranks();
  EXPECT_EQ(
      error_of([&] { mesh.seen_by(8); }),
      "rank 8 is not in the mesh; its ranks are 0 to 7");
  EXPECT_EQ(
      error_of([&] { mesh.seen_by(-1); }),
      "rank -1 is not in the mesh; its ranks are 0 to 7");
  EXPECT_EQ(
      error_of([&] { mesh.slices({"model"}); }),
      "the mesh has no axis 'model'; its axes are pipeline 2 x data 2 x tensor 2");
}

} // namespace tessera::runtime::device_mesh_test
