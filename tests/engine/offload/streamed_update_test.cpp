// SPDX-License-Identifier: Apache-2.0
// State that rests on the host or in files, updated by "the device" piece by
// piece: the bits of the CPU's update, whatever part of it goes which way; the
// memory that was planned; errors. On the CPU the device is the CPU.
#include "engine/offload/placement.h"
#include "engine/optim/every_rule.h"

#include "support/ranks.h"
#include "tessera/engine/engine_config.h"
#include "tessera/engine/memory/memory_plan.h"
#include "tessera/engine/memory/tier_needs.h"
#include "tessera/engine/optim/optimizer.h"
#include "tessera/offload/stores/transfer_rates.h"
#include "tessera/offload/updates/streamed_update.h"
#include "tessera/offload/updates/update_rates.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace tessera::engine::streamed_update_test {

namespace {

using namespace tests;
using namespace offload;

/// State on `placement`, of which the device updates all but `ratio`, with
/// buffers so small that every layer's state passes in pieces.
EngineOptions streaming(
    EngineOptions options,
    MemoryTier placement,
    double ratio,
    const TemporaryFolder& folder) {
  options.placement.optimizer = placement;
  options.memory.nvme_path = folder.path();
  options.offload.ratio = ratio;
  options.offload.stage_bytes = OffloadOptions::kMinStageBytes;
  return options;
}

int64_t staging_bytes(const Engine& engine) {
  return engine.measured_memory()[static_cast<size_t>(MemoryPurpose::kStaging)];
}

std::string text_of(MemoryTier placement, double ratio) {
  return std::string(name_of(placement)) + ", ratio " + std::to_string(ratio);
}

constexpr MemoryTier kPlacements[] = {MemoryTier::kHost, MemoryTier::kNvme};
constexpr double kRatios[] = {0, 0.5, 1};

} // namespace

class StreamedState : public ::testing::TestWithParam<int> {};

TEST_P(StreamedState, OfAdamWChangesNoBit) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    for (const std::optional<at::ScalarType> precision :
         {std::optional<at::ScalarType>(),
          std::optional(at::kBFloat16),
          std::optional(at::kHalf)}) {
      const EngineOptions base = resting_options(precision);
      const Outcome expected = train(world, base, "resident");
      for (const MemoryTier placement : kPlacements) {
        for (const double ratio : kRatios) {
          const std::string label =
              tests::text_of(precision) + ", " + text_of(placement, ratio);
          const Outcome got = train(
              world,
              streaming(base, placement, ratio, folder),
              label,
              [&](const Engine& engine) {
                EXPECT_EQ(
                    staging_bytes(engine),
                    ratio < 1 ? OffloadOptions::kMinStageBytes : 0)
                    << label;
                EXPECT_EQ(state_bytes(engine, MemoryTier::kDevice), 0);
              });
          expect_same_run(got, expected, label);
        }
      }
    }
  });
}

TEST_P(StreamedState, OfOtherOptimizersChangesNoBit) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    // Among them SGD without any state in float32, and optimizers that are not
    // element by element, hence the CPU's in any case.
    for (const UpdateRule& rule : every_rule()) {
      for (const auto precision :
           {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
        const EngineOptions base = resting_options(precision, rule);
        const std::string name =
            std::string(name_of(rule)) + ", " + tests::text_of(precision);
        const Outcome expected = train(world, base, name);
        for (const MemoryTier placement : kPlacements) {
          for (const double ratio : {0.0, 0.5}) {
            const std::string label = name + ", " + text_of(placement, ratio);
            const auto options = streaming(base, placement, ratio, folder);
            expect_same_run(train(world, options, label), expected, label);
          }
        }
      }
    }
  });
}

TEST_P(StreamedState, KeepsMomentsAndRoundingOfEveryKind) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    for (const bool master : {true, false}) {
      EngineOptions base = resting_options(at::kBFloat16);
      base.optimizer.moment_dtype = at::kBFloat16;
      base.optimizer.stochastic_rounding = true;
      base.precision.master_weights = master;
      // Two methods share the groups.
      base.optimizer.parameters = {
          {.pattern = "layer1.*", .lr_scale = 0.1},
          {.pattern = ".*bias", .rule = SgdOptions{.momentum = 0.5}}};
      const std::string name = master ? "master" : "no master";
      const Outcome expected = train(world, base, name);
      for (const MemoryTier placement : kPlacements) {
        const std::string label = name + ", " + text_of(placement, 0);
        const auto options = streaming(base, placement, 0, folder);
        expect_same_run(train(world, options, label), expected, label);
      }
    }
  });
}

TEST_P(StreamedState, GoesOnFromACheckpointWithAnotherRatio) {
  const TemporaryFolder checkpoints;
  run_ranks(GetParam(), [&](World& world) {
    const TemporaryFolder folder;
    const EngineOptions base = resting_options(at::kBFloat16);
    for (const double from : kRatios) {
      RestingNet net = make_resting_net();
      auto engine = wrap(net, streaming(base, MemoryTier::kHost, from, folder));
      train_resting(engine, net, 0, 3, world.rank());
      const auto path = engine.save(checkpoints / std::to_string(from));
      const auto expected = train_resting(engine, net, 3, 3, world.rank());
      const auto values = parameters_of(engine);
      for (const double to : kRatios) {
        const auto placement =
            to == from ? MemoryTier::kNvme : MemoryTier::kHost;
        RestingNet other = make_resting_net();
        auto resumed = wrap(other, streaming(base, placement, to, folder));
        train_resting(resumed, other, 7, 2, world.rank());
        resumed.load(path);
        const std::string label =
            "from " + std::to_string(from) + " to " + text_of(placement, to);
        expect_same_bits(
            train_resting(resumed, other, 3, 3, world.rank()), expected, label);
        expect_same_bits(parameters_of(resumed), values, label);
        expect_planned(resumed, label);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, StreamedState, ::testing::Range(1, 4));

TEST(StreamedBesideBackward, AndInStepChangesNoBit) {
  run_ranks(2, [](World& world) {
    const TemporaryFolder folder;
    EngineOptions base = resting_options(at::kHalf);
    const Outcome expected = train(world, base, "resident");
    for (const UpdateOverlap overlap :
         {UpdateOverlap::kOff,
          UpdateOverlap::kWait,
          UpdateOverlap::kSpeculate}) { // of what the CPU updates
      for (const MemoryTier placement : kPlacements) {
        base.optimizer.overlap = overlap;
        const std::string label = text_of(placement, 0.5) + ", overlap " +
                                  std::to_string(static_cast<int>(overlap));
        const auto options = streaming(base, placement, 0.5, folder);
        expect_same_run(train(world, options, label), expected, label);
      }
    }
  });
}

TEST(StreamedInBackward, ChangesNoBit) {
  run_ranks(2, [](World& world) {
    const TemporaryFolder folder;
    std::map<std::string, at::Tensor> expected;
    for (const double ratio : {1.0, 0.5, 0.0}) {
      EngineOptions options = streaming(
          resting_options(at::kBFloat16), MemoryTier::kHost, ratio, folder);
      options.update_in_backward = true;
      RestingNet net = make_resting_net();
      auto engine = wrap(net, options);
      for (int step = 0; step < 5; ++step) {
        torch::manual_seed(10 * step + world.rank());
        engine.backward(
            net->forward(torch::randn({5, 7}), true).square().mean());
        engine.step();
      }
      const auto values = parameters_of(engine);
      if (ratio == 1) {
        expected = values;
      }
      expect_same_bits(values, expected, std::to_string(ratio));
    }
  });
}

TEST(StreamedBesideShards, ThatAreElsewhereAreTheCpus) {
  run_ranks(2, [](World& world) {
    const TemporaryFolder folder;
    EngineOptions base = resting_options(at::kBFloat16);
    const Outcome expected = train(world, base, "resident");
    base.placement.gradients = MemoryTier::kHost;
    base.placement.parameters = MemoryTier::kHost;
    const auto options = streaming(base, MemoryTier::kHost, 0, folder);
    expect_same_run(
        train(
            world,
            options,
            "all elsewhere",
            [](const Engine& engine) { EXPECT_EQ(staging_bytes(engine), 0); }),
        expected,
        "all elsewhere");
  });
}

TEST(StreamedByBudget, LeavesRoomForTheBuffers) {
  run_ranks(2, [](World& world) {
    const TemporaryFolder folder;
    EngineOptions options = resting_options(at::kBFloat16);
    const Outcome expected = train(world, options, "resident");
    RestingNet net = make_resting_net();
    const DeviceMesh mesh = sharding::shard_mesh(world.rank(), world.size(), 0);
    const auto pages =
        sharding::plan_pages(*net, engine::pager_options(options), mesh);
    const int64_t floor = device_needs(pages, engine::pager_options(options));
    options.memory.device_bytes = floor + OffloadOptions::kMinStageBytes +
                                  page_needs(pages[0], options.optimizer).state;
    options.memory.host_bytes = 4 << 20;
    options.offload.ratio = 0;
    options.offload.stage_bytes = OffloadOptions::kMinStageBytes;
    const auto look = [&](const Engine& engine) {
      EXPECT_GT(state_bytes(engine, MemoryTier::kDevice), 0);
      EXPECT_GT(state_bytes(engine, MemoryTier::kHost), 0);
      EXPECT_EQ(staging_bytes(engine), OffloadOptions::kMinStageBytes);
      EXPECT_LE(
          total_bytes(engine.measured_memory()), *options.memory.device_bytes);
    };
    expect_same_run(train(world, options, "budget", look), expected, "budget");
    // Not even the buffers fit: an error, for they were asked for.
    options.memory.device_bytes = floor + 100;
    RestingNet other = make_resting_net();
    expect_throws(
        [&] { wrap(other, options); }, {"the memory budget", "device_bytes"});
  });
}

TEST(StreamedFaults, NameTheKeyTheValueAndTheRange) {
  run_ranks(1, [](World&) {
    RestingNet net = make_resting_net();
    EngineOptions options = resting_options(std::nullopt);
    for (const double ratio : {-0.1, 1.5, std::nan("")}) {
      options.offload.ratio = ratio;
      expect_throws(
          [&] { wrap(net, options); }, {"offload.ratio is ", "from 0 to 1"});
    }
    options.offload.ratio = 0.5;
    options.offload.stage_bytes = 100;
    expect_throws(
        [&] { wrap(net, options); },
        {"offload.stage_bytes is 100", "at least 12288"});
    options.offload.stage_bytes = 1 << 20;
    options.placement.optimizer = MemoryTier::kHost;
    options.memory.host_bytes = 8 << 10;
    expect_throws(
        [&] { wrap(net, options); },
        {"host memory for 'exp_avg", "memory.host_bytes (8192)", "Raise"});
  });
}

TEST(StreamedConfig, TakesANumberOrAuto) {
  const auto read = [](const char* ratio) {
    const runtime::ConfigReader reader(
        nlohmann::json::parse(
            std::string(R"({"offload": {"ratio": )") + ratio + "}}"),
        "c.json");
    const EngineOptions options = read_engine_options(reader);
    reader.finish();
    EXPECT_TRUE(reader.resolved()["offload"].contains("ratio"));
    return options.offload.ratio;
  };
  EXPECT_EQ(read("0.25"), 0.25);
  EXPECT_EQ(read("0"), 0.0);
  EXPECT_EQ(read("1"), 1.0);
  EXPECT_EQ(read("null"), std::nullopt);
  EXPECT_EQ(read("\"auto\""), std::nullopt);
  for (const char* wrong : {"1.5", "-1", "\"fast\"", "true"}) {
    expect_throws(
        [&] { read(wrong); }, {"c.json: offload.ratio is", "or \"auto\""});
  }
}

TEST(StreamedPieces, CoverEveryElementOnce) {
  MemoryLedger ledger;
  StreamedUpdate streamed(at::kCPU, OffloadOptions::kMinStageBytes);
  const std::vector<int64_t> sizes{1, 2000, 0, 17, 333, 5000};
  std::vector<StreamedSegment> segments;
  int64_t bytes = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    StreamedSegment segment;
    segment.master_on_host = i % 2 == 0;
    segment.tensors.master = torch::arange(sizes[i]).to(torch::kFloat);
    segment.tensors.grad = torch::full({sizes[i]}, 2.0F);
    segment.tensors.moment = torch::zeros({sizes[i]}, torch::kBFloat16);
    segments.push_back(segment);
    bytes += 6 * sizes[i];
  }
  streamed.need(bytes, static_cast<int64_t>(segments.size()));
  EXPECT_EQ(streamed.bytes(), OffloadOptions::kMinStageBytes);
  streamed.allocate(ledger);
  EXPECT_EQ(total_bytes(ledger.live_bytes()), OffloadOptions::kMinStageBytes);
  int calls = 0;
  std::vector<int64_t> seen(sizes.size(), 0);
  streamed.run(segments, [&](const std::vector<StreamedChunk>& chunks) {
    ++calls;
    for (const StreamedChunk& chunk : chunks) {
      EXPECT_EQ(chunk.begin, seen[chunk.segment]);
      seen[chunk.segment] += chunk.tensors.grad.numel();
      // Where the device has it, it is not copied.
      EXPECT_EQ(
          chunk.tensors.master.is_alias_of(
              segments[chunk.segment].tensors.master),
          !segments[chunk.segment].master_on_host);
      EXPECT_FALSE(chunk.tensors.moment.is_alias_of(
          segments[chunk.segment].tensors.moment));
      chunk.tensors.master.add_(chunk.tensors.grad);
      chunk.tensors.moment.add_(1);
    }
  });
  streamed.join();
  streamed.wait();
  EXPECT_GE(calls, 5);
  EXPECT_EQ(seen, sizes);
  for (const StreamedSegment& segment : segments) {
    const auto n = segment.tensors.master.numel();
    EXPECT_TRUE(torch::equal(
        segment.tensors.master, torch::arange(n).to(torch::kFloat) + 2));
    EXPECT_TRUE(torch::equal(
        segment.tensors.moment, torch::ones({n}, torch::kBFloat16)));
  }
}

TEST(UpdateRates, AreMeasuredForEveryRule) {
  MemoryLedger ledger;
  offload::HostMemory memory({}, ledger);
  for (const UpdateRule& rule : tests::elementwise_rules()) {
    const UpdateSample sample{
        .types = {at::kBFloat16, at::kBFloat16, std::nullopt},
        .moments = rule.optimizer().max_moments(rule.options()),
        .update = [&](const runtime::UpdateTensors& tensors) {
          rule.optimizer().update(tensors, rule.options());
        }};
    const UpdateRates rates = measure_rates(sample, memory, at::kCPU, 100'000);
    for (const double rate :
         {rates.cpu_element,
          rates.device_element,
          rates.byte_to_device,
          rates.byte_to_host}) {
      EXPECT_GT(rate, 0) << name_of(rule);
      EXPECT_LT(rate, 1e-3) << name_of(rule);
    }
  }
  EXPECT_EQ(total_bytes(ledger.live_bytes(MemoryTier::kHost)), 0);
}

} // namespace tessera::engine::streamed_update_test
