// SPDX-License-Identifier: Apache-2.0
// What an encoder is said to keep for backward, against what LibTorch keeps.
#include "tessera/tasks/encoder_memory.h"

#include "tessera/engine/engine.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/zoo/models/encoder.h"
#include "zoo/small_bert.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <tuple>

namespace tessera::tasks::encoder_memory_test {

namespace {

struct Subject {
  std::string name;
  std::string architecture;
  nlohmann::json changes; ///< of config.json
};

constexpr std::int64_t kRows = 8;
constexpr std::int64_t kLength = 64;

std::shared_ptr<zoo::Model> model_of_four_layers(const Subject& subject) {
  nlohmann::json config = tests::small_bert_config(
      {{"vocab_size", 100},
       {"hidden_size", 64},
       {"num_hidden_layers", 4},
       {"num_attention_heads", 4},
       {"intermediate_size", 256},
       {"max_position_embeddings", kLength}});
  config.update(subject.changes);
  return zoo::from_config(config, {.architecture = subject.architecture});
}

zoo::EncoderConfig config_of_four_layers(const Subject& subject) {
  return dynamic_cast<zoo::Encoder&>(*model_of_four_layers(subject))
      .encoder_config();
}

struct Measured {
  std::int64_t kept = 0; ///< at the end of forward
  std::int64_t peak = 0; ///< of forward and backward
};

/// Of the second step: the first one makes what stays.
Measured measure(
    const Subject& subject,
    const PrecisionPolicy& precision,
    std::int64_t checkpointed) {
  torch::manual_seed(1);
  const auto model = model_of_four_layers(subject);
  EngineOptions options;
  options.log_memory = false;
  options.precision = precision;
  // So that gradients keep their memory: activations alone are measured.
  options.optimizer.overlap = UpdateOverlap::kWait;
  auto engine = wrap(model, options);
  model->train();
  model->recompute({.layers = checkpointed});
  zoo::ModelInput input;
  input.input_ids = torch::randint(100, {kRows, kLength});
  input.attention_mask = torch::ones({kRows, kLength}, torch::kLong);
  input.attention_mask[0][kLength - 1] = 0;
  Measured measured;
  for (int step = 0; step < 2; ++step) {
    const std::int64_t before = runtime::cpu_bytes_live();
    runtime::reset_cpu_bytes_peak();
    auto loss = model->forward(input).logits.to(torch::kFloat).square().mean();
    measured.kept = runtime::cpu_bytes_live() - before;
    engine.backward(loss);
    measured.peak = runtime::cpu_bytes_peak() - before;
    engine.step();
  }
  return measured;
}

class EncoderMemory
    : public ::testing::TestWithParam<std::tuple<Subject, at::ScalarType>> {
 protected:
  static void SetUpTestSuite() {
    runtime::install_cpu_memory_counter();
  }
  static const Subject& subject() {
    return std::get<0>(GetParam());
  }
  static PrecisionPolicy precision() {
    PrecisionPolicy policy;
    if (std::get<1>(GetParam()) != at::kFloat) {
      policy.parameters = std::get<1>(GetParam());
    }
    return policy;
  }
  static std::int64_t predicted(std::int64_t checkpointed) {
    return encoder_activation_bytes(
        config_of_four_layers(subject()),
        EncoderBatchShape(kRows, kLength, at::kCPU, precision()),
        checkpointed);
  }
};

} // namespace

TEST_P(EncoderMemory, IsPredictedWithinATenth) {
  for (const std::int64_t checkpointed : {0, 2, 4}) {
    const auto measured = measure(subject(), precision(), checkpointed);
    const auto said = static_cast<double>(predicted(checkpointed));
    EXPECT_NEAR(said, static_cast<double>(measured.peak), 0.1 * said)
        << checkpointed << " layers are computed again; kept " << measured.kept
        << ", peak " << measured.peak;
  }
}

TEST_P(EncoderMemory, AsFewLayersAreComputedAgainAsFit) {
  const zoo::EncoderConfig config = config_of_four_layers(subject());
  const EncoderBatchShape shape(kRows, kLength, at::kCPU, precision());
  EXPECT_EQ(fewest_recomputed_layers(config, shape, predicted(0)), 0);
  EXPECT_EQ(fewest_recomputed_layers(config, shape, predicted(2)), 2);
  EXPECT_EQ(fewest_recomputed_layers(config, shape, predicted(3)), 3);
  // All four are more than three: one layer is whole in any case.
  EXPECT_EQ(
      fewest_recomputed_layers(config, shape, predicted(3) - 1), std::nullopt);
}

// The tables that rotate queries and keys are of the batch, not of a row; no
// layer saves what it rotates.
TEST(EncoderMemoryOfRotations, CountsTheTablesOnce) {
  zoo::EncoderConfig config = config_of_four_layers(
      {"roformer",
       "RoFormerForSequenceClassification",
       {{"model_type", "roformer"}}});
  ASSERT_EQ(config.position_kind, zoo::EncoderPositions::kRotaryTable);
  const auto bytes = [&](std::int64_t rows) {
    const EncoderBatchShape shape(rows, kLength, at::kCPU, {});
    return encoder_activation_bytes(config, shape, 0);
  };
  const std::int64_t one = bytes(1);
  const std::int64_t three = bytes(3);
  // A sine and a cosine for each pair of the 16 features of a head.
  const std::int64_t tables = kLength * 16 * 4;
  EXPECT_EQ(three - 3 * one, -2 * tables);
  config.position_kind = zoo::EncoderPositions::kLearned;
  EXPECT_EQ(one - bytes(1), tables);
  config.embedding_features = 16;
  // A LayerNorm, a dropout mask; the input of the projection.
  EXPECT_EQ(bytes(1) - (one - tables), kLength * 4 * (2 * (16 - 64) + 16));
}

INSTANTIATE_TEST_SUITE_P(
    Types,
    EncoderMemory,
    ::testing::Combine(
        ::testing::Values(
            Subject{
                "bert",
                "BertForSequenceClassification",
                nlohmann::json::object()},
            Subject{
                "roformer",
                "RoFormerForSequenceClassification",
                {{"model_type", "roformer"}}},
            // Long heads, so that rotations count; fewer features outside.
            Subject{
                "roformer_values",
                "RoFormerForSequenceClassification",
                {{"model_type", "roformer"},
                 {"embedding_size", 16},
                 {"rotary_value", true},
                 {"num_attention_heads", 1},
                 {"intermediate_size", 64}}}),
        ::testing::Values(at::kFloat, at::kBFloat16)),
    [](const auto& info) {
      return std::get<0>(info.param).name +
             (std::get<1>(info.param) == at::kFloat ? "_float" : "_bfloat16");
    });

} // namespace tessera::tasks::encoder_memory_test
