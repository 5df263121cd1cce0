// SPDX-License-Identifier: Apache-2.0
// Two steps that follow the plan issue the same operators with the same memory
// to the same streams, take no memory from the device and do not wait for it:
// what capturing a step as a graph needs. Configurations that do not are listed
// with what differs.
#include "support/vdev/vdev.h"
#include "support/vdev/vdev_memory.h"
#include "tessera/engine/engine.h"
#include "tessera/sharding/lazy/move_module.h"
#include "vdev/waits.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tests::vdev::vdev_repeated_steps_test {

namespace {

constexpr int kLayers = 3;
constexpr int kStepsBefore = 4;

/// One planned step.
struct Step {
  Trace trace;
  Waits waits;
  int64_t new_bytes = 0; ///< that the allocator took from the device
};

struct Setting {
  const char* name;
  int ranks = 1;
  void (*choose)(EngineOptions&) = [](EngineOptions&) {};
  bool clips = false;
  int accumulate = 1;
  /// Of the host, in each step.
  Waits waits = {};
  bool repeats = true; ///< false: another sequence in each step
};

void PrintTo(const Setting& setting, std::ostream* out) { // NOLINT: GoogleTest
  *out << setting.name;
}

int64_t reserved_bytes(c10::Device device) {
  return DeviceMemory::instance()
      .getDeviceStats(device.index())
      .reserved_bytes[0]
      .current;
}

std::vector<Step> planned_steps(World& world, const Setting& setting) {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(32, 32));
    net->push_back(torch::nn::GELU());
    net->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
  }
  move_module(*net, world.device());
  EngineOptions options;
  options.log_memory = false;
  options.sharding.groups.min_group_numel = 0;
  setting.choose(options);
  auto engine = wrap(net, options);
  const at::Tensor x =
      torch::randn({8, 32}, world.device())
          .to(options.precision.parameters.value_or(at::kFloat));
  const auto step = [&] {
    for (int micro = 0; micro < setting.accumulate; ++micro) {
      engine.backward(net->forward(x).to(at::kFloat).square().mean());
    }
    if (setting.clips) {
      engine.clip_grad_norm(1e-3);
    }
    engine.step();
  };
  for (int i = 0; i < kStepsBefore; ++i) {
    step();
  }
  std::vector<Step> steps(2);
  for (Step& each : steps) {
    const int64_t before = reserved_bytes(world.device());
    Runtime::instance().begin_trace();
    each.waits = waits_of(step);
    each.trace = Runtime::instance().end_trace();
    each.new_bytes = reserved_bytes(world.device()) - before;
  }
  return steps;
}

/// The first line in which the traces differ; empty if they do not.
std::string difference(const Trace& a, const Trace& b) {
  for (const auto& [stream, lines] : a) {
    const auto found = b.find(stream);
    if (found == b.end()) {
      return "stream " + std::to_string(stream) + " has work in one step only";
    }
    const auto& others = found->second;
    const auto [one, other] =
        std::mismatch(lines.begin(), lines.end(), others.begin(), others.end());
    if (one != lines.end() || other != others.end()) {
      return "stream " + std::to_string(stream) + ", command " +
             std::to_string(one - lines.begin()) + ": " +
             (one == lines.end() ? "nothing" : *one) + "; then " +
             (other == others.end() ? "nothing" : *other);
    }
  }
  return a.size() == b.size() ? "" : "the second step uses more streams";
}

void shard(EngineOptions& options) {
  options.sharding.zero_stage = 3;
}

/// Updates in step(), so that all work is that of the calling thread.
void keep_state_on_host(EngineOptions& options, double ratio) {
  options.placement.optimizer = MemoryTier::kHost;
  options.optimizer.overlap = UpdateOverlap::kOff;
  options.offload.ratio = ratio;
}

std::vector<Setting> settings() {
  return {
      {.name = "plain"},
      {.name = "clipped", .clips = true},
      {.name = "accumulated", .accumulate = 2},
      {.name = "bfloat16",
       .choose =
           [](EngineOptions& options) {
             options.precision.parameters = at::kBFloat16;
           },
       .clips = true},
      {.name = "update_in_backward",
       .choose =
           [](EngineOptions& options) { options.update_in_backward = true; }},
      {.name = "zero1_2_ranks",
       .ranks = 2,
       .choose =
           [](EngineOptions& options) { options.sharding.zero_stage = 1; },
       .clips = true},
      {.name = "zero3_2_ranks", .ranks = 2, .choose = shard, .clips = true},
      {.name = "zero3_prefetch_2_ranks",
       .ranks = 2,
       .choose =
           [](EngineOptions& options) {
             shard(options);
             options.sharding.prefetch_depth = 2;
           },
       .accumulate = 2},
      {.name = "gradients_on_host",
       .choose =
           [](EngineOptions& options) {
             options.placement.gradients = MemoryTier::kHost;
           }},
      {.name = "state_streamed",
       .choose =
           [](EngineOptions& options) { keep_state_on_host(options, 0); }},
      {.name = "state_updated_on_host",
       .choose = [](EngineOptions& options) { keep_state_on_host(options, 1); },
       // See vdev_host_waits_test.cpp: of a linear layer and of a norm each.
       .waits = {3 * 2 * kLayers, 0}},
  };
}

class RepeatedSteps : public ::testing::TestWithParam<Setting> {};

} // namespace

TEST_P(RepeatedSteps, IssueTheSameWork) {
  const Setting& setting = GetParam();
  run_ranks_on_vdev(setting.ranks, {Policy::Order::kEager}, [&](World& world) {
    const auto steps = planned_steps(world, setting);
    EXPECT_FALSE(steps[0].trace.empty());
    for (const Step& step : steps) {
      EXPECT_EQ(step.waits, setting.waits);
      EXPECT_EQ(step.new_bytes, 0);
    }
    const std::string found = difference(steps[0].trace, steps[1].trace);
    EXPECT_EQ(found.empty(), setting.repeats) << found;
  });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    RepeatedSteps,
    ::testing::ValuesIn(settings()),
    [](const auto& info) { return std::string(info.param.name); });

} // namespace tessera::tests::vdev::vdev_repeated_steps_test
