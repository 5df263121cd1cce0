// SPDX-License-Identifier: Apache-2.0
// What a BERT is said to keep for backward, against what LibTorch keeps.
#include "tessera/zoo/bert_memory.h"

#include "tessera/engine/engine.h"
#include "tessera/runtime/memory/cpu_memory_counter.h"
#include "tessera/zoo/bert.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera {

namespace {

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kLength = 64;

BertConfig config_of_four_layers() {
  BertConfig config;
  config.vocab_size = 100;
  config.hidden_size = 64;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.intermediate_size = 256;
  config.max_position_embeddings = kLength;
  return config;
}

struct Measured {
  std::int64_t kept = 0; ///< at the end of forward
  std::int64_t peak = 0; ///< of forward and backward
};

/// Of the second step: the first one makes what stays.
Measured measure(const PrecisionPolicy& precision, std::int64_t checkpointed) {
  const BertConfig config = config_of_four_layers();
  torch::manual_seed(1);
  BertForSequenceClassification model(config);
  EngineOptions options;
  options.log_memory = false;
  options.sharding.precision = precision;
  auto engine = wrap(model, options);
  model->train();
  model->set_checkpointed_layers(checkpointed);
  BertInput input;
  input.input_ids = torch::randint(config.vocab_size, {kRows, kLength});
  input.attention_mask = torch::ones({kRows, kLength}, torch::kLong);
  input.attention_mask[0][kLength - 1] = 0;
  Measured measured;
  for (int step = 0; step < 2; ++step) {
    const std::int64_t before = cpu_bytes_live();
    reset_cpu_bytes_peak();
    auto loss = model->forward(input).to(torch::kFloat).square().mean();
    measured.kept = cpu_bytes_live() - before;
    engine.backward(loss);
    measured.peak = cpu_bytes_peak() - before;
    engine.step();
  }
  return measured;
}

class BertMemory : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static void SetUpTestSuite() {
    install_cpu_memory_counter();
  }
  static PrecisionPolicy precision() {
    PrecisionPolicy policy;
    if (GetParam() != at::kFloat) {
      policy.parameters = GetParam();
    }
    return policy;
  }
  static std::int64_t predicted(std::int64_t checkpointed) {
    return bert_activation_bytes(
        config_of_four_layers(),
        BertBatchShape(kRows, kLength, at::kCPU, precision()),
        checkpointed);
  }
};

} // namespace

TEST_P(BertMemory, IsPredictedWithinATenth) {
  for (const std::int64_t checkpointed : {0, 2, 4}) {
    const auto measured = measure(precision(), checkpointed);
    const auto said = static_cast<double>(predicted(checkpointed));
    EXPECT_NEAR(said, static_cast<double>(measured.peak), 0.1 * said)
        << checkpointed << " layers are computed again; kept " << measured.kept
        << ", peak " << measured.peak;
  }
}

TEST_P(BertMemory, AsFewLayersAreComputedAgainAsFit) {
  const BertConfig config = config_of_four_layers();
  const BertBatchShape shape(kRows, kLength, at::kCPU, precision());
  EXPECT_EQ(fewest_checkpointed_layers(config, shape, predicted(0)), 0);
  EXPECT_EQ(fewest_checkpointed_layers(config, shape, predicted(2)), 2);
  EXPECT_EQ(fewest_checkpointed_layers(config, shape, predicted(3)), 3);
  // All four are more than three: one layer is whole in any case.
  EXPECT_EQ(
      fewest_checkpointed_layers(config, shape, predicted(3) - 1),
      std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(
    Types,
    BertMemory,
    ::testing::Values(at::kFloat, at::kBFloat16));

} // namespace tessera
