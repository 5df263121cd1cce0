// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parameters, gradients and optimizer state of a device's parameters on the
// device, on the host and in files, and divided among them, in float32 and with
// master weights, updated by the CPU, streamed through the device, and beside
// the computation: the same bits.

#include "engine/checkpoint/checkpoint_support.h"
#include "tessera/engine/memory/library_memory.h"
#include "tessera/offload/updates/streamed_update.h"
#include "tessera/offload/updates/update_statistics.h"
#include "tessera/sharding/lazy/move_module.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::tests::device_placement {

/// How a small net is trained.
struct Setting {
  OptimizerOptions optimizer;
  MemoryBudget memory;
  PlacementOptions placement;
  OffloadOptions offload;
  std::optional<at::ScalarType> precision;
  bool update_in_backward = false;
  /// In every other step; norms of gradients on the host are added up in
  /// another order.
  bool clips = false;
  /// Where it is saved, and loaded after more steps, which are lost.
  std::filesystem::path checkpoints;
  int64_t width = 13;
};

inline std::map<std::string, at::Tensor> train(
    const World& world,
    const Setting& setting) {
  torch::manual_seed(1);
  const int64_t width = setting.width;
  auto net = torch::nn::Sequential(
      torch::nn::Linear(7, width),
      torch::nn::Tanh(),
      torch::nn::Linear(width, width),
      torch::nn::Tanh(),
      torch::nn::Linear(width, 3));
  move_module(*net, world.device());
  auto options = group_per_layer();
  options.optimizer = setting.optimizer;
  options.precision.parameters = setting.precision;
  options.memory = setting.memory;
  options.placement = setting.placement;
  options.offload = setting.offload;
  options.update_in_backward = setting.update_in_backward;
  auto engine = wrap(net, options);
  const auto steps = [&](int count) {
    for (int step = 0; step < count; ++step) {
      for (int micro = 0; micro < (setting.update_in_backward ? 1 : 2);
           ++micro) {
        torch::manual_seed(100 * world.rank() + 2 * step + micro);
        const auto x = torch::randn({5, 7}).to(world.device());
        engine.backward(net->forward(x).square().mean());
      }
      if (setting.clips) {
        engine.clip_grad_norm(step % 2 == 0 ? 1e-3 : 1e9);
      }
      engine.step();
    }
  };
  if (setting.checkpoints.empty()) {
    steps(6);
  } else {
    steps(3);
    engine.save(setting.checkpoints);
    steps(1);
    engine.load(setting.checkpoints);
    steps(3);
  }
  if (setting.clips) {
    EXPECT_EQ(
        engine.stats().updates.taken > 0,
        setting.optimizer.overlap == UpdateOverlap::kSpeculate);
  }
  auto values = values_of(engine, *net);
  for (auto& [name, value] : values) {
    value = value.cpu();
  }
  return values;
}

inline const std::vector<std::optional<at::ScalarType>>& precisions() {
  static const std::vector<std::optional<at::ScalarType>> all{
      std::nullopt, at::kBFloat16};
  return all;
}

/// State on the host and in files, updated by the CPU; then parameters and
/// gradients too.
/// @param saves whether checkpoints are written and loaded.
inline void expect_bits_of_host_state(
    const World& world,
    const std::vector<UpdateRule>& rules,
    const std::filesystem::path& folder,
    bool saves) {
  int trainings = 0;
  for (const UpdateRule& rule : rules) {
    for (const auto precision : precisions()) {
      Setting setting;
      setting.optimizer.rule = rule;
      setting.precision = precision;
      setting.offload.ratio = 1;
      const auto train_at = [&](const std::string& where) {
        if (saves) { // of each training in a folder of its own
          setting.checkpoints = folder / std::to_string(trainings++) / where;
        }
        return train(world, setting);
      };
      const auto device = train_at("device");
      setting.memory.nvme_path = folder;
      setting.memory.host_bytes = 64 << 20;
      setting.placement.optimizer = MemoryTier::kHost;
      expect_equal(train_at("host"), device, name_of(rule));
      setting.placement.optimizer = MemoryTier::kNvme;
      expect_equal(train_at("nvme"), device, name_of(rule));
      for (const MemoryTier tier : {MemoryTier::kHost, MemoryTier::kNvme}) {
        setting.placement.parameters = tier;
        setting.placement.gradients = tier;
        expect_equal(
            train_at(std::string("all_") + name_of(tier)),
            device,
            name_of(rule));
      }
      // Updated on the device, which the weights pass through.
      setting.placement.gradients.reset();
      setting.placement.optimizer = MemoryTier::kDevice;
      expect_equal(train_at("weights_nvme"), device, name_of(rule));
      if (world.size() == 1) {
        // Parameters, gradients and the state of the last layer.
        setting.placement.parameters.reset();
        setting.placement.gradients.reset();
        setting.placement.optimizer = std::nullopt;
        setting.memory.device_bytes =
            4700 + engine::library_bytes(world, world.device());
        expect_equal(train_at("mixed"), device, name_of(rule));
      }
    }
  }
}

/// Updates beside forward and backward against those after it.
inline void expect_bits_of_overlapped_updates(
    const World& world,
    const std::vector<std::optional<at::ScalarType>>& all_precisions,
    const std::filesystem::path& folder) {
  for (const auto precision : all_precisions) {
    for (const MemoryTier placement : {MemoryTier::kHost, MemoryTier::kNvme}) {
      for (const bool in_backward : {false, true}) {
        Setting setting;
        setting.placement.optimizer = placement;
        setting.memory.nvme_path = folder;
        setting.offload.ratio = 1;
        setting.precision = precision;
        setting.update_in_backward = in_backward;
        setting.clips = !in_backward;
        setting.optimizer.overlap = UpdateOverlap::kOff;
        const auto serial = train(world, setting);
        setting.optimizer.overlap = UpdateOverlap::kWait;
        expect_equal(train(world, setting), serial, "wait");
        if (!in_backward) {
          setting.optimizer.overlap = UpdateOverlap::kSpeculate;
          expect_equal(train(world, setting), serial, "speculate");
        }
      }
    }
  }
}

/// State that passes through the device. It is the device's own update in
/// either case, so that roots do not matter.
/// @param ratios of the state that the CPU updates; none: it is measured.
inline void expect_bits_of_streamed_state(
    const World& world,
    const std::vector<UpdateRule>& rules,
    const std::vector<std::optional<double>>& ratios,
    const std::filesystem::path& folder,
    bool saves) {
  int trainings = 0;
  for (const UpdateRule& rule : rules) {
    for (const auto precision : precisions()) {
      Setting setting;
      setting.optimizer.rule = rule;
      setting.precision = precision;
      setting.width = 300;
      setting.memory.nvme_path = folder;
      // A layer's state passes in several pieces.
      setting.offload.stage_bytes = OffloadOptions::kMinStageBytes;
      const auto train_at = [&](const char* where) {
        if (saves) {
          setting.checkpoints = folder / std::to_string(trainings++) / where;
        }
        return train(world, setting);
      };
      const auto device = train_at("resident");
      for (const std::optional<double> ratio : ratios) {
        setting.offload.ratio = ratio;
        setting.placement.optimizer = MemoryTier::kHost;
        expect_equal(train_at("host_streamed"), device, name_of(rule));
        setting.placement.optimizer = MemoryTier::kNvme;
        expect_equal(train_at("nvme_streamed"), device, name_of(rule));
      }
    }
  }
}

} // namespace tessera::tests::device_placement
