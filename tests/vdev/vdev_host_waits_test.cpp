// SPDX-License-Identifier: Apache-2.0
// How often the host waits for the device in a step that follows the plan.
#include "support/temporary_folder.h"
#include "support/vdev/vdev.h"
#include "tessera/engine/engine.h"
#include "tessera/sharding/lazy/move_module.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <ostream>
#include <string>

namespace tessera::tests::vdev::vdev_host_waits_test {

namespace {

constexpr int kLayers = 3;

/// What a step costs the host.
struct Waits {
  std::map<std::string, int64_t> reasons; ///< with how often
  int64_t pageable_copies = 0;

  bool operator==(const Waits&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Waits& waits) {
  out << waits.pageable_copies << " pageable copies";
  for (const auto& [reason, count] : waits.reasons) {
    out << ", " << count << " x " << reason;
  }
  return out;
}

Waits waits_so_far() {
  return {
      Runtime::instance().synchronization_reasons(),
      Runtime::instance().counters().pageable_copies};
}

Waits waits_since(const Waits& before) {
  Waits waits = waits_so_far();
  waits.pageable_copies -= before.pageable_copies;
  for (const auto& [reason, count] : before.reasons) {
    waits.reasons[reason] -= count;
  }
  std::erase_if(
      waits.reasons, [](const auto& reason) { return reason.second == 0; });
  return waits;
}

struct Setting {
  const char* name;
  Waits expected;
  void (*choose)(EngineOptions&) = [](EngineOptions&) {};
  bool clips = false;
};

/// Updates in step(), so that all waits are those of the calling thread.
void keep_state_on_host(EngineOptions& options, double ratio) {
  options.placement.optimizer = MemoryTier::kHost;
  options.optimizer.overlap = UpdateOverlap::kOff;
  options.offload.ratio = ratio;
}

Waits waits_of_a_step(World& world, const Setting& setting) {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(32, 32));
    net->push_back(torch::nn::GELU());
  }
  move_module(*net, world.device());
  EngineOptions options;
  options.log_memory = false;
  options.sharding.groups.min_group_numel = 0;
  setting.choose(options);
  auto engine = wrap(net, options);
  const at::Tensor x = torch::randn({8, 32}, world.device());
  const auto step = [&] {
    engine.backward(net->forward(x).square().mean());
    if (setting.clips) {
      engine.clip_grad_norm(1e-3);
    }
    engine.step();
  };
  for (int i = 0; i < 4; ++i) {
    step();
  }
  const Waits before = waits_so_far();
  step();
  return waits_since(before);
}

std::vector<Setting> settings() {
  return {
      {.name = "plain", .expected = {}},
      // The norm stays on the device until somebody reads it.
      {.name = "clipping", .expected = {}, .clips = true},
      {.name = "gradients on the host",
       .expected = {},
       .choose =
           [](EngineOptions& options) {
             options.placement.gradients = MemoryTier::kHost;
           }},
      {.name = "streamed state",
       .expected = {},
       .choose =
           [](EngineOptions& options) { keep_state_on_host(options, 0); }},
      // A layer's gradient and weights come to the CPU, and weights go back.
      {.name = "state on the host, updated there",
       .expected = {{{"synchronizeEvent", 3 * kLayers}}},
       .choose =
           [](EngineOptions& options) { keep_state_on_host(options, 1); }},
      {.name = "parameters on the host",
       .expected = {{{"synchronizeEvent", 2 * kLayers}}},
       .choose =
           [](EngineOptions& options) {
             keep_state_on_host(options, 1);
             options.placement.parameters = MemoryTier::kHost;
           }},
      {.name = "everything on the host",
       .expected = {{{"synchronizeEvent", 2 * kLayers}}},
       .choose =
           [](EngineOptions& options) {
             keep_state_on_host(options, 1);
             options.placement.parameters = MemoryTier::kHost;
             options.placement.gradients = MemoryTier::kHost;
           }},
  };
}

class HostWaits : public ::testing::TestWithParam<int> {};

} // namespace

TEST_P(HostWaits, OfAPlannedStepAreThese) {
  run_ranks_on_vdev(GetParam(), {Policy::Order::kLazy}, [](World& world) {
    for (const Setting& setting : settings()) {
      EXPECT_EQ(waits_of_a_step(world, setting), setting.expected)
          << setting.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    HostWaits,
    ::testing::Values(1, 2, 4),
    ::testing::PrintToStringParamName());

} // namespace tessera::tests::vdev::vdev_host_waits_test
