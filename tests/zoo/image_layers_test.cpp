// SPDX-License-Identifier: Apache-2.0
// Parts of layers of models of images, one by one.

#include "support/expect_error.h"
#include "tessera/zoo/layers/drop_path.h"
#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/layers/windows.h"
#include "zoo/tensor_support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace tessera::zoo::image_layers_test {

TEST(DropPath, DropsWholeRowsAndKeepsTheMean) {
  torch::manual_seed(2);
  const torch::Tensor x = torch::ones({4000, 2, 3});
  const torch::Tensor dropped = drop_path(x, 0.25, true);
  const torch::Tensor rows = dropped.flatten(1);
  EXPECT_TRUE(rows.eq(rows.select(1, 0).unsqueeze(1)).all().item<bool>());
  const torch::Tensor kept = rows.select(1, 0).ne(0);
  expect_near(
      rows.select(1, 0).masked_select(kept).mean(), torch::tensor(4 / 3.0F));
  // 4000 draws: a deviation of 0.007, here five of them.
  EXPECT_NEAR(kept.to(torch::kFloat).mean().item<double>(), 0.75, 0.035);
  EXPECT_TRUE(drop_path(x, 0.25, false).equal(x));
  EXPECT_TRUE(drop_path(x, 0, true).equal(x));
}

TEST(DropPath, GrowsEvenlyFromLayerToLayer) {
  const std::vector<double> expected = {0, 0.1, 0.2, 0.3, 0.4};
  const std::vector<double> found = drop_path_schedule(0.4, 5);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_DOUBLE_EQ(found[i], expected[i]);
  }
  EXPECT_EQ(drop_path_schedule(0.4, 1), std::vector<double>{0});
}

TEST(Windows, ArePutTogetherAgain) {
  const torch::Tensor map = torch::arange(2 * 5 * 7 * 3).view({2, 5, 7, 3});
  const torch::Tensor padded = padded_to_windows(map, 3);
  ASSERT_EQ(padded.sizes(), at::IntArrayRef({2, 6, 9, 3}));
  EXPECT_EQ(padded.narrow(1, 5, 1).abs().sum().item<int64_t>(), 0);
  const torch::Tensor windows = to_windows(padded, 3);
  ASSERT_EQ(windows.sizes(), at::IntArrayRef({2 * 2 * 3, 9, 3}));
  // The second window of the first row, its second row's first place.
  EXPECT_TRUE(windows[1][3].equal(padded[0][1][3]));
  EXPECT_TRUE(from_windows(windows, 3, {6, 9}).equal(padded));
}

// Places that lie together in a shifted window, but came from both ends.
TEST(Windows, KeepApartWhatAShiftBroughtTogether) {
  const torch::Tensor scores =
      shift_scores({4, 4}, 2, 1, torch::TensorOptions(torch::kFloat));
  ASSERT_EQ(scores.sizes(), at::IntArrayRef({4, 4, 4}));
  EXPECT_EQ(scores[0].abs().sum().item<double>(), 0);
  const torch::Tensor sides =
      torch::tensor({{0, 1, 0, 1}, {1, 0, 1, 0}, {0, 1, 0, 1}, {1, 0, 1, 0}});
  EXPECT_TRUE(scores[1].equal(sides.to(torch::kFloat) * -100));
  const torch::Tensor all = 1 - torch::eye(4);
  EXPECT_TRUE(scores[3].equal(all * -100));
}

TEST(Windows, CountDistancesFromTheFarthest) {
  const torch::Tensor found = window_distances(2, torch::kCPU);
  // (row, column) distances from (-1, -1) to (1, 1), row by row.
  const torch::Tensor expected = torch::tensor(
      {{4, 3, 1, 0}, {5, 4, 2, 1}, {7, 6, 4, 3}, {8, 7, 5, 4}}, torch::kLong);
  EXPECT_TRUE(found.equal(expected));
}

TEST(PatchEmbedding, PadsOrRefusesImages) {
  PatchEmbeddingOptions options;
  options.image = {6, 9};
  options.patch = {4, 4};
  options.features = 8;
  expect_error(
      [&] { PatchEmbedding{options}; }, {"4 x 4", "6 x 9", "image_size"});
  options.pads = true;
  options.class_token = false;
  PatchEmbedding embedding(options);
  const torch::Tensor pixels = torch::randn({2, 3, 6, 9});
  const torch::Tensor x = embedding->forward(pixels);
  ASSERT_EQ(x.sizes(), at::IntArrayRef({2, 2 * 3, 8}));
  expect_near(
      x, embedding->forward(torch::constant_pad_nd(pixels, {0, 3, 0, 2})));
}

TEST(PatchEmbedding, RefusesMorePatchesThanAnyoneHas) {
  PatchEmbeddingOptions options;
  options.image = {65536, 65536};
  options.patch = {1, 1};
  options.features = 8;
  expect_error([&] { PatchEmbedding{options}; }, {"4294967296 patches"});
}

} // namespace tessera::zoo::image_layers_test
