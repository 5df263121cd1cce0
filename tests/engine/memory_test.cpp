// SPDX-License-Identifier: Apache-2.0
// What the engine says before the first step, what it has allocated, and what
// LibTorch's allocator sees are the same numbers, and they fall as 1 / ranks.
#include "engine/parity_subjects.h"
#include "support/expect_error.h"
#include "support/ranks.h"

#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <chrono>
#include <cmath>
#include <thread>

namespace tessera::engine::memory_test {

namespace {

using namespace tests;

int64_t bytes_of(const MemoryBytes& bytes, MemoryPurpose purpose) {
  return bytes[static_cast<size_t>(purpose)];
}

/// Expects `got` within 5 % of `want` for each purpose.
void expect_within_5_percent(
    const MemoryBytes& got,
    const MemoryBytes& want,
    const std::string& when) {
  for (size_t i = 0; i < kMemoryPurposeCount; ++i) {
    EXPECT_NEAR(
        static_cast<double>(got[i]),
        static_cast<double>(want[i]),
        0.05 * static_cast<double>(want[i]))
        << name_of(static_cast<MemoryPurpose>(i)) << " " << when;
  }
}

template <typename Model>
void expect_planned_memory(
    World& world,
    const Subject<Model>& subject,
    int64_t min_group_numel,
    int64_t micro_batches) {
  runtime::install_cpu_memory_counter();
  torch::manual_seed(1);
  const int64_t before_model = runtime::cpu_bytes_live();
  Model model = subject.make();
  int64_t parameter_bytes = 0;
  for (const auto& parameter : model->parameters()) {
    parameter_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  int64_t buffer_bytes = 0;
  for (const auto& buffer : model->buffers()) {
    buffer_bytes += static_cast<int64_t>(buffer.nbytes());
  }
  auto engine = wrap(model, parity_options(world, min_group_numel).engine);
  const MemoryBytes planned = engine.planned_memory();
  const auto expect_counted = [&](const std::string& when) {
    const MemoryBytes measured = engine.measured_memory();
    expect_within_5_percent(measured, planned, when);
    // Beside it: the allocator's own rounding and small messages.
    const auto sum =
        static_cast<double>(total_bytes(engine.allocated_memory()));
    const double slack = 0.02 * sum + 4096;
    const auto excess = [&] {
      return static_cast<double>(
                 runtime::cpu_bytes_live() - before_model - buffer_bytes) -
             sum;
    };
    // Gloo copies what is in flight: the gathers for the next step. They end
    // when all ranks have come here.
    for (int i = 0; i < 1000 && std::abs(excess()) > slack; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_LE(std::abs(excess()), slack) << when << " of " << sum;
  };
  expect_counted("after wrap");
  for (int step = 0; step < 3; ++step) {
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
      engine.backward(subject.loss(model, 0, 1));
    }
    const auto gradients = [&] {
      return bytes_of(engine.allocated_memory(), MemoryPurpose::kGradients);
    };
    // Pages that have had no gradient have no memory for one.
    EXPECT_GT(gradients(), 0);
    EXPECT_LE(gradients(), bytes_of(planned, MemoryPurpose::kGradients));
    engine.step();
    EXPECT_EQ(gradients(), 0) << "the next forward can have their memory";
    expect_counted("after step " + std::to_string(step));
  }

  // The padding of a group is at most one alignment per parameter and rank.
  const double share = static_cast<double>(parameter_bytes) / world.size();
  const auto measured = engine.measured_memory();
  const auto at = [&](MemoryPurpose purpose) {
    return static_cast<double>(bytes_of(measured, purpose));
  };
  EXPECT_NEAR(at(MemoryPurpose::kParameters), share, 0.05 * share);
  EXPECT_NEAR(at(MemoryPurpose::kGradients), share, 0.05 * share);
  EXPECT_NEAR(at(MemoryPurpose::kOptimizerState), 2 * share, 0.1 * share);
}

/// A model that only computes.
void expect_memory_for_weights_alone(World& world) {
  runtime::install_cpu_memory_counter();
  torch::manual_seed(1);
  strangers::Gpt model(512, 96, 4, 16);
  int64_t weights = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    parameter.set_requires_grad(false);
    weights += static_cast<int64_t>(parameter.nbytes());
  }
  auto engine = wrap(model, parity_options(world, 0).engine);
  for (int pass = 0; pass < 2; ++pass) {
    const c10::NoGradGuard no_grad;
    next_token_loss(model, torch::randint(512, {2, 17}));
  }
  for (const MemoryBytes& bytes :
       {engine.planned_memory(), engine.measured_memory()}) {
    EXPECT_EQ(bytes_of(bytes, MemoryPurpose::kGradients), 0);
    EXPECT_EQ(bytes_of(bytes, MemoryPurpose::kOptimizerState), 0);
    EXPECT_EQ(bytes_of(bytes, MemoryPurpose::kReduceSlots), 0);
    const double share = static_cast<double>(weights) / world.size();
    EXPECT_NEAR(
        static_cast<double>(bytes_of(bytes, MemoryPurpose::kParameters)),
        share,
        0.05 * share);
    EXPECT_LE(total_bytes(bytes), weights);
  }
}

/// A budget that is too small is found before anything is allocated or divided:
/// the module is as it was.
void expect_module_survives_a_small_budget(World& world) {
  runtime::install_cpu_memory_counter();
  torch::manual_seed(1);
  strangers::Gpt model(512, 96, 4, 16);
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : model->parameters()) {
    before.push_back(parameter.detach().clone());
  }
  EngineOptions options = parity_options(world, 0).engine;
  options.memory.device_bytes = 100'000;
  for (const auto placement :
       {std::optional(MemoryTier::kDevice), std::optional<MemoryTier>()}) {
    options.placement.optimizer = placement;
    runtime::reset_cpu_bytes_peak();
    const int64_t live = runtime::cpu_bytes_live();
    expect_error([&] { wrap(model, options); }, {"memory.device_bytes"});
    EXPECT_LT(runtime::cpu_bytes_peak() - live, 100'000);
  }
  const auto parameters = model->parameters();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::equal(parameters[i], before[i]));
  }
  next_token_loss(model, torch::randint(512, {2, 17})).backward();
  EXPECT_TRUE(parameters.front().grad().defined());
}

/// Wide enough that padding does not count.
const Subject<TextModel> kWideText{
    [] {
      return TextModel(TextModelOptions{512, 96, 4, 3, 16});
    },
    [](TextModel& model, int64_t, int64_t) {
      return next_token_loss(model, torch::randint(512, {2, 17}));
    }};

const Subject<strangers::Gpt> kWideGpt{
    [] { return strangers::Gpt(512, 96, 4, 16); },
    [](strangers::Gpt& model, int64_t, int64_t) {
      return next_token_loss(model, torch::randint(512, {2, 17}));
    }};

/// Registered in another order than used: the decoder before the encoder.
struct BackwardsImpl : torch::nn::Module {
  BackwardsImpl() {
    for (int i = 0; i < 6; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i), torch::nn::Linear(64 + 16 * i, 80)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (int i = 5; i >= 0; --i) {
      x = torch::tanh(layers[i](torch::constant_pad_nd(x, {0, 16 * i - 16})));
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Backwards);

const Subject<Backwards> kBackwards{
    [] { return Backwards(); },
    [](Backwards& model, int64_t, int64_t) {
      return model->forward(torch::randn({2, 80})).square().mean();
    }};

/// A large tied embedding, whose gradient comes last, some layers, and a small
/// group before them in backward.
struct TiedEndsImpl : torch::nn::Module {
  explicit TiedEndsImpl(int count) {
    tokens = register_module("tokens", torch::nn::Embedding(512, 64));
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i), torch::nn::Linear(64, 320)));
    }
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor x = tokens(ids);
    for (auto& layer : layers) {
      x = torch::tanh(layer(x)).narrow(-1, 0, 64);
    }
    return torch::linear(norm(x), tokens->weight).square().mean();
  }
  torch::nn::Embedding tokens{nullptr};
  std::vector<torch::nn::Linear> layers;
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(TiedEnds);

} // namespace

class MemoryTest : public ::testing::TestWithParam<int> {};

TEST_P(MemoryTest, TextModel) {
  run_ranks(GetParam(), [](World& world) {
    expect_planned_memory(world, kWideText, 0, 1);
  });
}

TEST_P(MemoryTest, TextModelSmallGroupsMerged) {
  run_ranks(GetParam(), [](World& world) {
    expect_planned_memory(world, kWideText, 100'000, 1);
  });
}

TEST_P(MemoryTest, TiedByAssignment) {
  run_ranks(GetParam(), [](World& world) {
    expect_planned_memory(world, kWideGpt, 0, 1);
  });
}

TEST_P(MemoryTest, UsedInAnotherOrderThanRegistered) {
  run_ranks(GetParam(), [](World& world) {
    expect_planned_memory(world, kBackwards, 0, 1);
  });
}

TEST_P(MemoryTest, GradientAccumulation) {
  run_ranks(GetParam(), [](World& world) {
    expect_planned_memory(world, kWideGpt, 0, 3);
  });
}

TEST_P(MemoryTest, OfAFrozenModelIsForWeightsAlone) {
  run_ranks(GetParam(), expect_memory_for_weights_alone);
}

TEST_P(MemoryTest, ABudgetThatIsTooSmallCostsNothing) {
  run_ranks(GetParam(), expect_module_survives_a_small_budget);
}

TEST(ReduceSlots, HoldALargeGroupThatComesLast) {
  run_ranks(2, [](World& world) {
    for (const int layers : {1, 2, 3, 4}) {
      torch::manual_seed(1);
      TiedEnds model(layers);
      auto engine = wrap(model, parity_options(world, 0).engine);
      ::testing::internal::CaptureStderr();
      for (int step = 0; step < 4; ++step) {
        engine.backward(model->forward(torch::randint(512, {2, 8})));
        engine.step();
      }
      EXPECT_EQ(
          ::testing::internal::GetCapturedStderr().find("outside"),
          std::string::npos)
          << layers;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, MemoryTest, ::testing::Range(1, 5));

} // namespace tessera::engine::memory_test
