// SPDX-License-Identifier: Apache-2.0
// What goes wrong in encoders: padding that is seen, rows of padding alone,
// dropout in the wrong place.
#include "zoo/small_bert.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

namespace tessera::zoo::encoder_traps_test {
namespace {

using tests::small_bert;

ModelInput padded_batch() {
  torch::manual_seed(4);
  ModelInput input;
  input.input_ids = torch::randint(3, 61, {4, 11});
  input.attention_mask = torch::ones({4, 11}, torch::kLong);
  input.attention_mask[1].narrow(0, 7, 4).zero_();
  input.attention_mask[2].narrow(0, 1, 10).zero_();
  input.attention_mask[3].narrow(0, 3, 3).zero_(); // a hole, not only a tail
  return input;
}

std::shared_ptr<Model> in_evaluation() {
  torch::manual_seed(8);
  const auto model = small_bert({{"initializer_range", 0.3}});
  model->eval();
  return model;
}

} // namespace

TEST(EncoderTraps, PaddingIsNotSeen) {
  const auto model = in_evaluation();
  ModelInput input = padded_batch();
  const torch::Tensor before = model->forward(input).logits;
  input.input_ids =
      torch::where(input.attention_mask.eq(0), 7, input.input_ids);
  EXPECT_TRUE(model->forward(input).logits.equal(before));
}

TEST(EncoderTraps, RowsOfPaddingStayFinite) {
  for (const bool training : {false, true}) {
    const auto model = in_evaluation();
    model->train(training); // with dropout another kernel is taken
    ModelInput input = padded_batch();
    const torch::Tensor before = model->forward(input).logits;
    input.attention_mask[2].zero_();
    const torch::Tensor logits = model->forward(input).logits;
    EXPECT_TRUE(logits.isfinite().all().item<bool>());
    if (!training) {
      EXPECT_TRUE(logits[0].equal(before[0]));
    }
    logits.sum().backward();
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>())
          << item.key();
    }
  }
}

// Each probability has a place of its own: with the others at 0, a model in
// training still varies.
TEST(EncoderTraps, EachDropoutCounts) {
  const auto varies = [](double hidden, double attention, double classifier) {
    const auto model = small_bert(
        {{"hidden_dropout_prob", hidden},
         {"attention_probs_dropout_prob", attention},
         {"classifier_dropout", classifier},
         {"initializer_range", 0.5}});
    model->train();
    ModelInput input;
    input.input_ids = torch::randint(3, 61, {2, 9});
    return !model->forward(input).logits.equal(model->forward(input).logits);
  };
  EXPECT_FALSE(varies(0, 0, 0));
  EXPECT_TRUE(varies(0.5, 0, 0));
  EXPECT_TRUE(varies(0, 0.5, 0));
  EXPECT_TRUE(varies(0, 0, 0.5));
}

TEST(EncoderTraps, StartsFromTheInitializerRange) {
  torch::manual_seed(3);
  // 60,000 numbers: a deviation known to 1 %.
  const auto model =
      small_bert({{"vocab_size", 2000}, {"initializer_range", 0.07}});
  const auto parameters = model->named_parameters();
  const torch::Tensor words = parameters["embeddings.tokens.weight"];
  EXPECT_NEAR(words.std().item<double>(), 0.07, 0.07 * 0.01);
  EXPECT_EQ(words[2].abs().sum().item<double>(), 0); // padding
  // 900 numbers: five sigmas of the estimate.
  EXPECT_NEAR(
      parameters["layers.0.attention.query.weight"].std().item<double>(),
      0.07,
      0.07 * 5 / std::sqrt(2 * 900));
  EXPECT_EQ(parameters["classifier.bias"].abs().sum().item<double>(), 0);
  EXPECT_TRUE(parameters["embeddings.norm.weight"].eq(1).all().item<bool>());
}

} // namespace tessera::zoo::encoder_traps_test
