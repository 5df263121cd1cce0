// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/inspect_engine.h"

#include "engine/twin.h"
#include "support/ranks.h"
#include "tessera/sharding/checkpointing/transformer_block_list.h"

#include <cmath>
#include <limits>
#include <sstream>

namespace tessera::engine::inspect_test {

namespace {

using namespace tests;

/// Float64 arithmetic in another order.
constexpr double kTolerance = 1e-12;

void expect_statistics_of(
    const sharding::TensorStatistics& got,
    const at::Tensor& tensor,
    const std::string& label) {
  const at::Tensor x = tensor.detach().to(torch::kDouble);
  const double size = 1 + x.norm().item<double>();
  EXPECT_EQ(got.count, x.numel()) << label;
  EXPECT_EQ(got.max, x.max().item<double>()) << label;
  EXPECT_EQ(got.min, x.min().item<double>()) << label;
  EXPECT_NEAR(got.mean, x.mean().item<double>(), kTolerance * size) << label;
  EXPECT_NEAR(got.std(), x.std().item<double>(), kTolerance * size) << label;
  EXPECT_NEAR(got.norm(), x.norm().item<double>(), kTolerance * size) << label;
}

at::Tensor loss_of(StackImpl& net, const at::Tensor& x) {
  return net.forward(x).square().mean();
}

struct RecordingLayerImpl : torch::nn::Module {
  RecordingLayerImpl()
      : layer(register_module("layer", torch::nn::Linear(6, 6))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = layer(x);
    record_tensor(y, "hidden");
    return x + y.tanh();
  }
  torch::nn::Linear layer;
};
TORCH_MODULE(RecordingLayer);

TransformerBlockList<RecordingLayer> make_layers(
    bool use_checkpoint,
    size_t together) {
  torch::manual_seed(4);
  std::vector<RecordingLayer> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(RecordingLayer());
  }
  return TransformerBlockList<RecordingLayer>(
      blocks, {.use_checkpoint = use_checkpoint}, together);
}

} // namespace

TEST(TensorStatistics, OfPartsIsThatOfTheWhole) {
  torch::manual_seed(1);
  // Longer than what is widened at once; far from zero, where a difference of
  // squares would lose the spread.
  const at::Tensor x = torch::randn({(1 << 20) + 333}) + 1000;
  sharding::TensorStatistics full;
  full.add(x);
  sharding::TensorStatistics merged;
  for (const at::Tensor& part : x.split(300'000)) {
    sharding::TensorStatistics statistics;
    statistics.add(part);
    merged.merge(statistics);
  }
  merged.merge({});
  for (const auto& got : {full, merged}) {
    expect_statistics_of(got, x, "parts");
  }
  sharding::TensorStatistics scaled;
  scaled.add(x, -2);
  EXPECT_EQ(scaled.max, -2 * full.min);
  EXPECT_TRUE(std::isnan(sharding::TensorStatistics{}.std()));
}

TEST(TensorStatistics, ANanShowsInWhateverOrder) {
  const at::Tensor x =
      torch::tensor({1.0, std::numeric_limits<double>::quiet_NaN(), 3.0});
  for (const bool first : {true, false}) {
    sharding::TensorStatistics statistics;
    statistics.add(first ? x : torch::ones({2}));
    statistics.add(first ? torch::ones({2}) : x);
    EXPECT_EQ(statistics.count, 5);
    for (const double value :
         {statistics.max, statistics.min, statistics.mean, statistics.norm()}) {
      EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(InspectModel, EqualsThePlainModelFromShards) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](World& /*world*/) {
      Twin<StackImpl> twin;
      for (int step = 0; step < 2; ++step) {
        twin.plain_backward(step, loss_of);
        twin.wrapped_backward(step, loss_of);
        const auto before = twin.engine.stats().paging;
        const auto summary = inspect_model(twin.engine);
        EXPECT_EQ(
            twin.engine.stats().paging.on_demand_unshards,
            before.on_demand_unshards);
        const auto expected = twin.plain->named_parameters();
        ASSERT_EQ(summary.size(), expected.size());
        for (const auto& item : summary) {
          const at::Tensor& parameter = expected[item.name];
          EXPECT_EQ(item.sizes, parameter.sizes().vec());
          ASSERT_TRUE(item.gradient.has_value()) << item.name;
          // The twins' weights differ by the order of sums.
          EXPECT_NEAR(item.value.norm(), parameter.norm().item<double>(), 1e-9);
          EXPECT_NEAR(
              item.gradient->norm(),
              parameter.grad().norm().item<double>(),
              1e-9);
          if (step == 0) {
            expect_statistics_of(item.value, parameter, item.name);
          }
        }
        twin.step();
      }
      for (const auto& item : inspect_model(twin.engine, "block1\\..*")) {
        EXPECT_EQ(item.name.rfind("block1.", 0), 0U);
        EXPECT_FALSE(item.gradient.has_value());
      }
      expect_throws(
          [&] { inspect_model(twin.engine, "block7.*"); },
          {"inspect_model", "block7"});
    });
  }
}

TEST(InspectModel, OfAPlainModule) {
  const auto net = make_net<StackImpl>();
  loss_of(*net, batch_of(0, 0)).backward();
  const auto summary = inspect_model(*net, "first.*");
  ASSERT_EQ(summary.size(), 2U);
  expect_statistics_of(summary[0].value, net->first->weight, "weight");
  expect_statistics_of(
      *summary[0].gradient, net->first->weight.grad(), "gradient");
}

TEST(InspectTensor, RecordsHiddenStatesAndGradientsOfCheckpointedBlocks) {
  const at::Tensor x = batch_of(0, 0);
  std::vector<TensorSummary> expected;
  {
    auto plain = make_layers(false, 1);
    const TensorRecorder recorder;
    plain(x).square().sum().backward();
    expected = inspect_tensor(recorder);
  }
  ASSERT_EQ(expected.size(), 3U);
  EXPECT_EQ(expected[2].name, "hidden.2");
  for (const size_t together : {1, 2, 3}) {
    auto layers = make_layers(true, together);
    const TensorRecorder recorder;
    layers(x).square().sum().backward();
    const auto got = inspect_tensor(recorder);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].name, expected[i].name);
      EXPECT_EQ(got[i].value.norm(), expected[i].value.norm());
      ASSERT_TRUE(got[i].gradient.has_value());
      EXPECT_EQ(got[i].gradient->norm(), expected[i].gradient->norm());
    }
    expect_throws([] { const TensorRecorder second; }, {"one at a time"});
  }
  record_tensor(x, "nobody listens");
}

TEST(InspectTensor, OverAllRanks) {
  run_ranks(3, [](World& world) {
    auto layers = make_layers(true, 1);
    auto engine = wrap(layers, group_per_layer());
    const TensorRecorder recorder;
    engine.backward(layers(batch_of(0, world.rank())).square().sum());
    const auto got = inspect_tensor(engine, recorder);

    auto plain = make_layers(false, 1);
    std::vector<at::Tensor> all;
    for (int r = 0; r < world.size(); ++r) {
      all.push_back(plain->block(0)->layer(batch_of(0, r)));
    }
    ASSERT_EQ(got.size(), 3U);
    expect_statistics_of(got[0].value, torch::cat(all), "hidden.0");
    EXPECT_TRUE(got[0].gradient.has_value());
  });
}

TEST(FormatSummary, IsAligned) {
  TensorSummary small{"a", {3}, {}, std::nullopt};
  small.value.add(torch::tensor({1.0, 2.0, 3.0}));
  TensorSummary large{"encoder.layer.0.weight", {1024, 4096}, {}, {}};
  large.value.add(torch::tensor({-1.25e-7, 3.5e8}));
  large.gradient.emplace().add(torch::tensor({0.5, -0.5}));
  const std::string table = format_summary({small, large});
  std::istringstream lines(table);
  std::string line;
  std::vector<std::string> all;
  while (std::getline(lines, line)) {
    all.push_back(line);
  }
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].size(), all[1].size());
  EXPECT_EQ(all[0].size(), all[2].size());
  EXPECT_EQ(all[0].rfind("name", 0), 0U);
  EXPECT_EQ(all[0].find("shape"), all[1].find("[3]"));
  EXPECT_EQ(all[0].find("shape"), all[2].find("[1024, 4096]"));
  EXPECT_EQ(all[1].back(), '-');
  EXPECT_NE(all[2].find("3.5e+08"), std::string::npos);
  EXPECT_NE(all[2].find("0.7071"), std::string::npos);
}

} // namespace tessera::engine::inspect_test
