// SPDX-License-Identifier: Apache-2.0
// Parameters of any size, without elements too, any number of them in a group:
// each is trained as by plain LibTorch.
#include "engine/parity.h"
#include "support/ranks.h"

#include <random>

namespace tessera::engine::parameter_sizes_test {

namespace {

using namespace tests;

/// `count` parameters in one module: none, one, an odd number of or many
/// elements, some of them frozen, some without a use.
struct AnySizesImpl : torch::nn::Module {
  explicit AnySizesImpl(unsigned seed, size_t count) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < count; ++i) {
      constexpr int64_t kSizes[] = {0, 0, 1, 1, 3, 15, 16, 17, 33, 257, 4099};
      const int64_t numel = kSizes[random() % std::size(kSizes)];
      const bool is_frozen = random() % 8 == 0;
      used.push_back(random() % 8 != 0);
      values.push_back(register_parameter(
          "p" + std::to_string(i), torch::randn({numel}), !is_frozen));
    }
    // So that every rank's loss has a gradient.
    values.push_back(register_parameter("last", torch::randn({5})));
    used.push_back(true);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor sum = torch::zeros({});
    for (size_t i = 0; i < values.size(); ++i) {
      if (used[i]) {
        sum = sum + (values[i] * x + static_cast<double>(i)).sin().sum();
      }
    }
    return sum;
  }

  std::vector<torch::Tensor> values;
  std::vector<bool> used;
};
TORCH_MODULE(AnySizes);

Subject<AnySizes> any_sizes(unsigned seed, size_t count) {
  return {
      [=] { return AnySizes(seed, count); },
      [](AnySizes& model, int64_t part, int64_t parts) {
        return model->forward(torch::randn({parts})[part]);
      }};
}

/// All parameters of one kind are without elements.
struct EmptyGroupsImpl : torch::nn::Module {
  EmptyGroupsImpl() {
    nothing = register_module(
        "nothing",
        torch::nn::Linear(torch::nn::LinearOptions(6, 0).bias(false)));
    frozen = register_parameter("frozen", torch::empty({0, 7}), false);
    half = register_parameter("half", torch::empty({0}, torch::kDouble));
    linear = register_module("linear", torch::nn::Linear(6, 3));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return linear(x).square().sum() + nothing(x).sum() + frozen.sum() +
           half.sum().to(torch::kFloat);
  }

  torch::nn::Linear nothing{nullptr};
  torch::nn::Linear linear{nullptr};
  torch::Tensor frozen;
  torch::Tensor half;
};
TORCH_MODULE(EmptyGroups);

const Subject<EmptyGroups> kEmptyGroups{
    [] { return EmptyGroups(); },
    [](EmptyGroups& model, int64_t part, int64_t parts) {
      return model->forward(torch::randn({12, 6}).chunk(parts)[part]);
    }};

/// Nothing has elements.
const Subject<torch::nn::Linear> kNothing{
    [] {
      return torch::nn::Linear(torch::nn::LinearOptions(6, 0).bias(false));
    },
    [](torch::nn::Linear& model, int64_t part, int64_t parts) {
      return model(torch::randn({12, 6}).chunk(parts)[part]).sum();
    }};

} // namespace

class ParameterSizes : public ::testing::TestWithParam<int> {};

TEST_P(ParameterSizes, OfAnyKindTrainAsInPlainLibTorch) {
  run_ranks(GetParam(), [](World& world) {
    std::mt19937 random(7);
    for (const size_t count : {1, 2, 16, 17, 18, 40, 100, 300}) {
      for (const int zero_stage : {1, 2, 3}) {
        const auto seed = static_cast<unsigned>(random());
        auto options = parity_options(world, 1 << 30);
        options.steps = 3;
        options.engine.sharding.zero_stage = zero_stage;
        expect_parity(
            world,
            any_sizes(seed, count),
            options,
            std::to_string(count) + " parameters of seed " +
                std::to_string(seed) + ", ZeRO " + std::to_string(zero_stage));
      }
    }
  });
}

TEST_P(ParameterSizes, AGroupWithoutElementsHoldsNobodyUp) {
  run_ranks(GetParam(), [](World& world) {
    for (const int zero_stage : {1, 2, 3}) {
      auto options = parity_options(world, 0);
      options.steps = 3;
      options.engine.sharding.zero_stage = zero_stage;
      expect_parity(world, kEmptyGroups, options, "empty groups");
      expect_parity(world, kNothing, options, "nothing");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    World,
    ParameterSizes,
    ::testing::Values(1, 2, 3),
    [](const auto& info) { return "ranks_" + std::to_string(info.param); });

} // namespace tessera::engine::parameter_sizes_test
