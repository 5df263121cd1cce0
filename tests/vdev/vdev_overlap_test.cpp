// SPDX-License-Identifier: Apache-2.0
// Updates beside the next forward on a device with streams: what waits for
// them, what is copied ahead of them, and the priority of their lanes.
#include "engine/offload/gated_updates.h"
#include "support/vdev/vdev.h"
#include "tessera/offload/updates/update_rates.h"
#include "tessera/runtime/memory/memory_ledger.h"

#include <algorithm>
#include <tuple>

namespace tessera::tests::vdev::vdev_overlap_test {

namespace {

EngineOptions unpaged() {
  EngineOptions options;
  options.sharding.shard_ranks = 1;
  return options;
}

/// By stream of its device, the commands of this name.
std::map<c10::StreamId, int64_t> commands_in(
    const Trace& trace,
    const std::string& name) {
  std::map<c10::StreamId, int64_t> commands;
  for (const auto& [stream, lines] : trace) {
    const auto number =
        std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
          return line == name || line.starts_with(name + " reads") ||
                 line.starts_with(name + " writes");
        });
    if (number > 0) {
      commands[stream % kKeysPerDevice] += number;
    }
  }
  return commands;
}

/// Expects commands of this name, and all on streams of this priority.
void expect_priority(const Trace& trace, const std::string& name, bool high) {
  const auto commands = commands_in(trace, name);
  EXPECT_FALSE(commands.empty()) << name;
  for (const auto& [stream, number] : commands) {
    EXPECT_NE(stream, 0) << name << " on the compute stream";
    EXPECT_EQ(has_high_priority(stream), high) << name;
  }
}

} // namespace

class OverlappedForward
    : public ::testing::TestWithParam<std::tuple<int, Policy>> {
 protected:
  void run(const std::function<void(World&)>& body) {
    const auto& [ranks, policy] = GetParam();
    run_ranks_on_vdev(ranks, policy, body);
  }
};

TEST_P(OverlappedForward, RunsWhileUpdatesOfLaterLayersWait) {
  run([](World& world) {
    for (const auto precision :
         {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
      EngineOptions options = unpaged();
      options.precision.parameters = precision;
      gated_updates::expect_updates_during_forward(world, options);
    }
  });
}

TEST_P(OverlappedForward, ReadersOutsideOfStepsWait) {
  run([](World& world) {
    gated_updates::expect_readers_wait(world, unpaged());
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    OverlappedForward,
    ::testing::Combine(
        ::testing::Values(1, 2),
        ::testing::ValuesIn(policies(
            {{Policy::Order::kEager},
             {Policy::Order::kLazy},
             {Policy::Order::kRandom, 1}}))),
    [](const auto& which) {
      return std::to_string(std::get<0>(which.param)) + "_ranks_" +
             std::get<1>(which.param).name();
    });

// While the CPU updates one group, the gradient of the next is on its way.
TEST(OverlappedUpdates, FetchTheGradientOfTheNextOne) {
  run_ranks_on_vdev(1, {Policy::Order::kLazy}, [](World& world) {
    EngineOptions options;
    options.precision.parameters = at::kBFloat16; // with a master on the host
    gated_updates::Training training(world, options);
    training.step(training.forward(0));
    const at::Tensor result = training.forward(1);
    UpdateGate& gate = UpdateGate::instance();
    gate.close();
    Runtime::instance().begin_trace();
    training.step(result);
    // All have been submitted by now: the second one sees the third.
    gate.let(1);
    gate.wait_for_arrivals(2);
    const auto copies =
        commands_in(Runtime::instance().end_trace(), "copy_ to the host");
    ASSERT_EQ(copies.size(), 1);
    EXPECT_EQ(copies.begin()->second, 3);
    gate.open();
    training.engine->unwrap();
  });
}

TEST(LanePriorities, AreLowForUpdatesAndHighForWhatComputeWaitsFor) {
  struct Way {
    const char* work; ///< of an update
    void (*set)(EngineOptions&);
  };
  const std::vector<Way> ways{
      {"update_kernel", // in backward
       [](EngineOptions& options) { options.update_in_backward = true; }},
      {"update_kernel", // streamed
       [](EngineOptions& options) {
         options.placement.optimizer = MemoryTier::kHost;
         options.offload.ratio = 0;
       }},
      {"update_kernel", // beside the step
       [](EngineOptions& options) {
         options.optimizer.overlap = UpdateOverlap::kWait;
       }},
      {"copy_ to the host", // of gradients, for the CPU
       [](EngineOptions& options) {
         options.placement.optimizer = MemoryTier::kHost;
         options.offload.ratio = 1;
       }}};
  for (const Way& way : ways) {
    run_ranks_on_vdev(2, {Policy::Order::kEager}, [&](World& world) {
      EngineOptions options;
      options.log_memory = false;
      options.sharding.groups.min_group_numel = 0;
      way.set(options);
      auto net = gated_updates::Training::make_net(world);
      Engine engine = wrap(net, options);
      const auto step = [&] {
        const at::Tensor x =
            torch::ones({4, gated_updates::kWidth}, world.device());
        engine.backward(net->forward(x).square().mean());
        engine.step();
      };
      for (int i = 0; i < 3; ++i) {
        step(); // the first ones are not planned yet
      }
      Runtime::instance().begin_trace();
      step();
      { const auto scope = engine.gather(); } // after all updates
      const Trace trace = Runtime::instance().end_trace();
      expect_priority(trace, way.work, false);
      expect_priority(trace, "all_gather", true);
      expect_priority(trace, "reduce_scatter", true);
    });
  }
}

// Both take of the bandwidth of host memory: what an update takes beside no
// copy is not what it takes in a step.
TEST(UpdateRates, AreThoseOfUpdatesAndCopiesTogether) {
  run_ranks_on_vdev(1, {Policy::Order::kLazy}, [](World& world) {
    MemoryLedger ledger;
    offload::HostMemory memory({.device = world.device()}, ledger);
    std::vector<int64_t> issued; ///< before each update on the CPU
    const offload::UpdateSample sample{
        .types = {at::kBFloat16, at::kBFloat16, std::nullopt},
        .moments = 2,
        .update = [&](const runtime::UpdateTensors& tensors) {
          if (tensors.master.is_cpu()) {
            issued.push_back(Runtime::instance().counters().commands);
            // Long enough for several copies.
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
          tensors.master.add_(1);
        }};
    const offload::UpdateRates rates =
        offload::measure_rates(sample, memory, world.device(), 10'000);
    ASSERT_GE(issued.size(), 5);
    EXPECT_EQ(issued[3], issued[0]); // alone
    EXPECT_GE(issued.back(), issued[0] + 4) << "nothing is copied meanwhile";
    for (const double rate :
         {rates.cpu_element,
          rates.device_element,
          rates.byte_to_device,
          rates.byte_to_host}) {
      EXPECT_GT(rate, 0);
    }
  });
}

} // namespace tessera::tests::vdev::vdev_overlap_test
