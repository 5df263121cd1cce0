// SPDX-License-Identifier: Apache-2.0
// Averages of the weights are those that plain LibTorch computes, wherever they
// rest and however weights are updated; a scope leaves the weights as they
// were.
#include "engine/offload/placement.h"

#include "support/ranks.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tessera::engine::weight_averages_test {

namespace {

using namespace tests;

using Values = std::map<std::string, at::Tensor>;

constexpr double kDecay = 0.7;
constexpr int kSteps = 5;

double decay_of(int64_t n, bool warmup) {
  const auto step = static_cast<double>(n);
  return warmup ? std::min(kDecay, (1 + step) / (10 + step)) : kDecay;
}

/// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn.
struct PlainAverages {
  bool warmup = false;
  int64_t count = 0;
  Values values;

  void add(const Values& weights) {
    for (const auto& [name, weight] : weights) {
      if (count == 0) {
        values[name] = weight.clone();
      } else {
        values[name].lerp_(weight, 1 - decay_of(count, warmup));
      }
    }
    ++count;
  }
};

EngineOptions averaging(EngineOptions options) {
  options.optimizer.ema_decay = kDecay;
  return options;
}

Values averages_of(Engine& engine) {
  const auto averaged = engine.ema();
  return parameters_of(engine);
}

at::Tensor outputs_of(RestingNet& net) {
  const c10::NoGradGuard no_grad;
  torch::manual_seed(77);
  return net->forward(torch::randn({5, 7}), true).to(torch::kFloat);
}

/// Trains with averages, looking at them after two of the steps, and without.
/// @return the averages in the end.
Values expect_averages(
    World& world,
    const EngineOptions& options,
    const std::string& label) {
  const bool is_half = options.precision.parameters == at::kHalf;
  const bool rounds =
      options.precision.parameters && !options.precision.master_weights;
  const auto resting = [&](const Values& values) {
    Values rounded;
    for (const auto& [name, value] : values) {
      // A norm stays in float32.
      rounded[name] = rounds && name.find("norm") == std::string::npos
                          ? value.to(at::kBFloat16).to(at::kFloat)
                          : value;
    }
    return rounded;
  };
  RestingNet net = make_resting_net();
  auto engine = wrap(net, averaging(options));
  expect_planned(engine, label + ", before");
  RestingNet other_net = make_resting_net();
  auto other = wrap(other_net, options);
  PlainAverages plain{.warmup = options.optimizer.ema_warmup};
  for (int step = 0; step < kSteps; ++step) {
    const auto seen = train_resting(engine, net, step, 1, world.rank());
    expect_same_bits(
        seen, train_resting(other, other_net, step, 1, world.rank()), label);
    if (is_half && step == 2) {
      continue; // an overflow
    }
    const Values weights = parameters_of(engine);
    plain.add(weights);
    if (step == 1 || step == 3) {
      expect_same_bits(averages_of(engine), resting(plain.values), label);
      expect_same_bits(
          parameters_of(engine), weights, label + ", after the scope");
    }
  }
  expect_planned(engine, label + ", behind");
  EXPECT_EQ(engine.ema_steps(), plain.count) << label;
  Values found;
  {
    const auto averaged = engine.ema();
    found = parameters_of(engine);
    expect_same_bits(found, resting(plain.values), label);
    if (!options.precision.parameters) {
      RestingNet of_averages = make_resting_net();
      const c10::NoGradGuard no_grad;
      for (auto& item : of_averages->named_parameters()) {
        item.value().copy_(plain.values.at(item.key()));
      }
      EXPECT_TRUE(torch::equal(outputs_of(net), outputs_of(of_averages)))
          << label;
    }
  }
  EXPECT_TRUE(torch::equal(outputs_of(net), outputs_of(other_net))) << label;
  return found;
}

} // namespace

class WeightAverages : public ::testing::TestWithParam<int> {};

TEST_P(WeightAverages, AreThoseOfPlainTraining) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin(averaging(group_per_layer()));
    PlainAverages plain;
    for (int step = 0; step < kSteps; ++step) {
      twin.train(step);
      Values weights;
      for (const auto& item : twin.plain->named_parameters()) {
        weights[item.key()] = item.value().detach();
      }
      plain.add(weights);
    }
    for (const auto& [name, value] : averages_of(twin.engine)) {
      // See [Note: float64 twins].
      EXPECT_TRUE(torch::allclose(value, plain.values.at(name), 1e-9, 1e-11))
          << name;
    }
  });
}

TEST_P(WeightAverages, AreTheSameInEveryZeroStageAndPrecision) {
  run_ranks(GetParam(), [](World& world) {
    Values second;
    for (const int stage : {1, 2, 3}) {
      EngineOptions options = resting_options(std::nullopt);
      options.sharding.zero_stage = stage;
      const auto found =
          expect_averages(world, options, "stage " + std::to_string(stage));
      // Stage 1 adds micro-batches up before it reduces them.
      if (stage == 2) {
        second = found;
      } else if (stage == 3) {
        expect_same_bits(found, second, "stages");
      }
    }
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      expect_averages(
          world, resting_options(dtype), std::string(c10::toString(dtype)));
    }
    EngineOptions options = resting_options(at::kBFloat16);
    options.optimizer.stochastic_rounding = true;
    expect_averages(world, options, "rounded stochastically");
    options.precision.master_weights = false;
    options.optimizer.ema_warmup = true;
    expect_averages(world, options, "without master weights");
  });
}

TEST_P(WeightAverages, RestWhereOptimizerStateRests) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    for (const auto precision :
         {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
      EngineOptions options = resting_options(precision);
      const Values expected = expect_averages(world, options, "device");
      options.placement.optimizer = MemoryTier::kHost;
      for (const auto overlap :
           {UpdateOverlap::kOff,
            UpdateOverlap::kWait,
            UpdateOverlap::kSpeculate}) {
        options.optimizer.overlap = overlap;
        expect_same_bits(
            expect_averages(world, options, "host"), expected, "host");
      }
      for (const auto overlap : {UpdateOverlap::kOff, UpdateOverlap::kWait}) {
        options.offload.ratio = 1; // streamed
        options.optimizer.overlap = overlap;
        expect_same_bits(
            expect_averages(world, options, "streamed"), expected, "streamed");
        options.offload.ratio = std::nullopt;
        EngineOptions files = options;
        files.placement.optimizer = MemoryTier::kNvme;
        files.memory.nvme_path = folder.path();
        expect_same_bits(
            expect_averages(world, files, "files"), expected, "files");
      }
    }
    EngineOptions options = resting_options(std::nullopt, MuonOptions{});
    options.optimizer.overlap = UpdateOverlap::kWait;
    expect_averages(world, options, "Muon");
  });
}

TEST_P(WeightAverages, OfUpdatesInBackward) {
  run_ranks(GetParam(), [](World&) {
    Values expected;
    for (const bool in_backward : {false, true}) {
      for (const auto overlap : {UpdateOverlap::kOff, UpdateOverlap::kWait}) {
        EngineOptions options = averaging(group_per_layer());
        options.update_in_backward = in_backward;
        options.optimizer.overlap = overlap;
        Twin<StackImpl> twin(options);
        for (int step = 0; step < kSteps; ++step) {
          twin.train(step);
        }
        const Values found = averages_of(twin.engine);
        if (expected.empty()) {
          expected = found;
        } else {
          expect_same_bits(found, expected, "in backward");
        }
      }
    }
  });
}

TEST_P(WeightAverages, AreErrorsWhereTheyCannotBe) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> none;
    none.train(0);
    expect_throws([&] { const auto scope = none.engine.ema(); }, {"ema_decay"});
    Twin<StackImpl> twin(averaging(group_per_layer()));
    twin.train(0);
    const auto loss = [](StackImpl& net, const at::Tensor& x) {
      return net.forward(x).square().mean();
    };
    twin.wrapped_backward(1, loss);
    expect_throws([&] { const auto scope = twin.engine.ema(); }, {"gradients"});
    twin.engine.step();
    const auto scope = twin.engine.ema();
    expect_throws([&] { twin.engine.step(); }, {"Engine::step", "ema()"});
    expect_throws([&] { const auto second = twin.engine.ema(); }, {"ema()"});
    expect_throws([&] { twin.wrapped_backward(2, loss); }, {"ema()"});
    expect_throws([&] { twin.engine.save("nowhere"); }, {"ema()"});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, WeightAverages, ::testing::Values(1, 2));

// Saved by two ranks in stage 3, one group per layer; loaded by others.
TEST(SavedWeightAverages, AreReadUnderAnyLayout) {
  const TemporaryFolder folder;
  const auto save = [](const Values& values, const TemporaryFolder& to) {
    for (const auto& [name, value] : values) {
      torch::save(value, (to / name).string());
    }
  };
  run_ranks(2, [&](World& world) {
    RestingNet net = make_resting_net();
    auto engine = wrap(net, averaging(resting_options(std::nullopt)));
    train_resting(engine, net, 0, 3, world.rank());
    engine.save(folder / "checkpoints");
    const Values saved = averages_of(engine);
    if (world.rank() == 0) {
      save(saved, folder);
    }
    // Goes on as if nothing had been loaded.
    RestingNet other_net = make_resting_net();
    auto other = wrap(other_net, averaging(resting_options(std::nullopt)));
    other.load(folder / "checkpoints");
    train_resting(engine, net, 3, 2, world.rank());
    train_resting(other, other_net, 3, 2, world.rank());
    expect_same_bits(averages_of(other), averages_of(engine), "resumed");
    EXPECT_EQ(other.ema_steps(), 5);

    // Without averages, there and here.
    auto plain = wrap(make_resting_net(), resting_options(std::nullopt));
    plain.load(folder / "checkpoints");
    plain.save(folder / "plain");
    other.load(folder / "plain");
    EXPECT_EQ(other.ema_steps(), 0);
    const Values weights = parameters_of(other);
    expect_same_bits(averages_of(other), weights, "none yet");
  });
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](World&) {
      EngineOptions options = averaging(resting_options(std::nullopt));
      options.sharding.zero_stage = ranks == 3 ? 2 : 1;
      options.sharding.groups.min_group_numel = 5000;
      auto engine = wrap(make_resting_net(), options);
      engine.load(folder / "checkpoints");
      EXPECT_EQ(engine.ema_steps(), 3);
      for (const auto& [name, value] : averages_of(engine)) {
        at::Tensor saved;
        torch::load(saved, (folder / name).string());
        EXPECT_TRUE(torch::equal(value, saved)) << name;
      }
    });
  }
}

} // namespace tessera::engine::weight_averages_test
