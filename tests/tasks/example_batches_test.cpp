// SPDX-License-Identifier: Apache-2.0
// Rows of files as a model's inputs, and what is drawn for them.
#include "tessera/tasks/example_batches.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/core/error.h"
#include "tessera/zoo/heads/patch_heads.h"
#include "tessera/zoo/heads/token_heads.h"
#include "tools/example_data.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>

namespace tessera::tasks::example_batches_test {

namespace {

using tests::ExampleTensor;
using tests::ExampleTensors;
using tests::padded_texts;
using tests::write_examples;

constexpr int64_t kVocab = 61;

ExampleBatches batches_of(
    const std::filesystem::path& path,
    const zoo::Head& head,
    const zoo::ExampleOptions& options = {}) {
  return {
      zoo::ExampleFiles(path),
      head,
      "Some",
      options,
      /*measures_metric=*/true,
      at::kCPU};
}

zoo::TokenMaskOptions masks() {
  zoo::TokenMaskOptions options;
  options.mask_token = 4;
  options.never_masked = {3};
  return options;
}

std::vector<size_t> rows_to(size_t count) {
  std::vector<size_t> rows(count);
  std::iota(rows.begin(), rows.end(), size_t{0});
  return rows;
}

} // namespace

TEST(ExampleFiles, CountSeveralOneBehindTheOther) {
  const TemporaryFolder folder;
  const auto part = [](int64_t first, int64_t rows) {
    return ExampleTensors{
        {"input_ids",
         {runtime::SafetensorsDtype::kU16,
          {rows, 2},
          [=](int64_t row, int64_t place) {
            return 65000.0 + static_cast<double>(2 * (first + row) + place);
          }}}};
  };
  write_examples(folder / "a.safetensors", part(0, 3));
  write_examples(folder / "b.safetensors", part(3, 0));
  write_examples(folder / "c.safetensors", part(3, 2));
  const zoo::ExampleFiles files(folder.path());
  ASSERT_EQ(files.size(), 5U);
  const zoo::ExampleFiles::Column* ids = files.find("input_ids");
  ASSERT_NE(ids, nullptr);
  const std::vector<size_t> rows{4, 0, 2, 3};
  const at::Tensor found = files.read(*ids, rows);
  EXPECT_TRUE(found.equal(
      torch::tensor({8, 9, 0, 1, 4, 5, 6, 7}, torch::kLong).view({4, 2}) +
      65000))
      << found;
  const std::vector<size_t> absent{5};
  expect_error(
      [&] { files.read(*ids, absent); }, {"5 examples; there is no example 5"});
}

TEST(ExampleFiles, AreRefusedWhenTheyDiffer) {
  const TemporaryFolder folder;
  const std::filesystem::path first = folder / "a.safetensors";
  const std::filesystem::path second = folder / "b.safetensors";
  expect_error(
      [&] { zoo::ExampleFiles{folder.path()}; }, {"without a .safetensors"});
  write_examples(first, padded_texts(2));
  auto more = padded_texts(2);
  more["labels"] = tests::of_rows(2, [](int64_t row) { return row; });
  write_examples(second, more);
  expect_error(
      [&] { zoo::ExampleFiles{folder.path()}; },
      {"b.safetensors': 'labels' is not in the first file"});
  write_examples(second, {{"input_ids", more.at("input_ids")}});
  expect_error(
      [&] { zoo::ExampleFiles{folder.path()}; }, {"lacks 'attention_mask'"});
  write_examples(second, padded_texts(2, 13));
  expect_error(
      [&] { zoo::ExampleFiles{folder.path()}; },
      {"is U8 [rows, 13], but U8 [rows, 12] in the first file"});
  write_examples(
      second,
      {{"input_ids",
        {runtime::SafetensorsDtype::kI64, {}, [](int64_t, int64_t) {
           return 0.0;
         }}}});
  expect_error([&] { zoo::ExampleFiles{second}; }, {"is a single number"});
}

TEST(ExampleDraws, DependOnExampleAndEpochAlone) {
  const std::vector<size_t> three{7, 2, 9};
  const std::vector<size_t> one{2};
  const at::Tensor all = zoo::draws_of(three, 5, 1, 30);
  EXPECT_TRUE(all[1].equal(zoo::draws_of(one, 5, 1, 30)[0]));
  EXPECT_TRUE(all[1].slice(0, 0, 12).equal(zoo::draws_of(one, 5, 1, 12)[0]));
  EXPECT_FALSE(all[1].equal(zoo::draws_of(one, 6, 1, 30)[0]));
  EXPECT_FALSE(all[1].equal(zoo::draws_of(one, 5, 2, 30)[0]));
  EXPECT_FALSE(all[1].equal(all[0]));
}

TEST(TokenMasks, HaveBertsShares) {
  constexpr int64_t kRows = 400;
  constexpr int64_t kLength = 100;
  const at::Tensor ids = torch::full({kRows, kLength}, 20, torch::kLong);
  ids.select(1, 0).fill_(3); // never masked
  const at::Tensor is_text = torch::ones_like(ids);
  is_text.slice(1, 80).fill_(0);
  const auto masked = zoo::mask_tokens(
      ids,
      is_text,
      zoo::draws_of(rows_to(kRows), 0, 1, 3 * kLength),
      kVocab,
      masks());
  const at::Tensor chosen = masked.labels.ne(-100);
  EXPECT_TRUE(masked.labels.masked_select(chosen).eq(20).all().item<bool>());
  EXPECT_FALSE(chosen.select(1, 0).any().item<bool>());
  EXPECT_FALSE(chosen.slice(1, 80).any().item<bool>());
  EXPECT_TRUE(masked.ids.eq(ids).logical_or(chosen).all().item<bool>());
  const double candidates = kRows * 79;
  const double count = chosen.sum().item<double>();
  const auto share_of = [&](const at::Tensor& flags) {
    return flags.logical_and(chosen).sum().item<double>() / count;
  };
  // Four standard deviations of shares of 31600 and of some 4740.
  EXPECT_NEAR(count / candidates, 0.15, 0.008);
  EXPECT_NEAR(share_of(masked.ids.eq(4)), 0.8 + 0.1 / kVocab, 0.024);
  EXPECT_NEAR(share_of(masked.ids.eq(20)), 0.1 + 0.1 / kVocab, 0.018);
}

TEST(TokenMasks, MaskOneOfEveryText) {
  const at::Tensor ids = torch::full({50, 3}, 20, torch::kLong);
  zoo::TokenMaskOptions options = masks();
  options.probability = 0;
  const auto masked = zoo::mask_tokens(
      ids, {}, zoo::draws_of(rows_to(50), 0, 1, 9), kVocab, options);
  EXPECT_TRUE(masked.labels.ne(-100).sum(1).eq(1).all().item<bool>());
}

TEST(PatchMasks, HaveTheirShare) {
  const at::Tensor masks =
      zoo::mask_patches(zoo::draws_of(rows_to(8), 0, 1, 10), 0.62);
  EXPECT_TRUE(masks.sum(1).eq(6).all().item<bool>()) << masks;
  EXPECT_FALSE(masks[0].equal(masks[1]) && masks[1].equal(masks[2]));
}

TEST(ExampleBatches, LeaveOutWhatIsPaddingInAllRows) {
  const TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  write_examples(path, padded_texts(12));
  const zoo::MaskedTokenHead head({.vocab = kVocab});
  const auto make = [&](const zoo::ExampleOptions& options,
                        const std::vector<size_t>& rows) {
    return batches_of(path, head, options).make(rows, 3, /*loss_only=*/true);
  };
  zoo::ExampleOptions options;
  options.token_mask = masks();
  // Texts of 7 and 9 tokens.
  const zoo::ModelInput trimmed = make(options, {0, 2});
  EXPECT_EQ(trimmed.input_ids.sizes(), at::IntArrayRef({2, 9}));
  EXPECT_EQ(trimmed.attention_mask.sizes(), at::IntArrayRef({2, 9}));
  options.trim_padding = false;
  const zoo::ModelInput padded = make(options, {0, 2});
  EXPECT_EQ(padded.input_ids.sizes(), at::IntArrayRef({2, 12}));
  EXPECT_TRUE(padded.input_ids.slice(1, 0, 9).equal(trimmed.input_ids));
  EXPECT_TRUE(padded.labels.slice(1, 0, 9).equal(trimmed.labels));
  options.trim_padding = true;
  options.sequence_multiple = 4;
  EXPECT_EQ(make(options, {0, 2}).input_ids.size(1), 12);
  EXPECT_EQ(make(options, {0}).input_ids.size(1), 8);
  options.sequence_multiple = 1;
  const zoo::ModelInput full = make(options, {0, 6});
  EXPECT_EQ(full.input_ids.size(1), 7);
  EXPECT_FALSE(full.attention_mask.defined());
}

TEST(ExampleBatches, LabelsOfLanguageModelsAreTheirTokens) {
  const TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  write_examples(path, padded_texts(4));
  const zoo::NextTokenHead head({.vocab = kVocab});
  const zoo::ModelInput batch =
      batches_of(path, head).make({0, 3}, 0, /*loss_only=*/true);
  EXPECT_TRUE(batch.loss_only);
  EXPECT_EQ(batch.labels[0][7].item<int64_t>(), -100);
  const at::Tensor text = batch.attention_mask.ne(0);
  EXPECT_TRUE(batch.labels.masked_select(text).equal(
      batch.input_ids.masked_select(text)));
}

TEST(ExampleBatches, ScaleBytesOfImages) {
  const TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  write_examples(path, {{"pixel_values", tests::images(2, 8, 8)}});
  const zoo::ExampleFiles files(path);
  const zoo::AutoencoderHead head(
      {.channels = 3, .image = {8, 8}, .patch = {4, 4}});
  zoo::ExampleOptions options;
  options.pixels.mean = {0.1, 0.2, 0.3};
  options.pixels.std = {0.5};
  const zoo::ModelInput batch =
      batches_of(path, head, options).make({1}, 0, /*loss_only=*/true);
  const std::vector<size_t> rows{1};
  const at::Tensor bytes =
      files.read(*files.find("pixel_values"), rows).to(torch::kDouble);
  const at::Tensor mean =
      torch::tensor({0.1, 0.2, 0.3}, torch::kDouble).view({3, 1, 1});
  const at::Tensor expected = (bytes / 255 - mean) / 0.5;
  // Rounding of float32 to numbers up to 2.
  EXPECT_LT((batch.pixel_values - expected).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(batch.others.at("noise").sizes(), at::IntArrayRef({1, 4}));
}

} // namespace tessera::tasks::example_batches_test
