// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MemoryPlan` computes how many layers must be recomputed in backward so that
// activations fit into the device memory that the budget leaves for them.

#include "tessera/engine/report/progress_line.h"
#include "tessera/tasks/encoder_memory.h"
#include "tessera/tasks/training_config.h"

#include <string>

/// Before the engine is created: the minimum that activations need. After: how
/// many layers must be recomputed.
class MemoryPlan {
 public:
  /// Memory that no plan includes: workspaces of cuBLAS and cuDNN, and
  /// fragmentation in the allocator.
  static constexpr int64_t kCudaReserve = int64_t{256} << 20;

  MemoryPlan(
      const tessera::tasks::TrainingConfig& config,
      const tessera::zoo::EncoderConfig& model,
      c10::Device device)
      : config_(config),
        model_(model),
        shape_(
            config.batch_size,
            config.max_length,
            device,
            config.engine.precision),
        reserve_(device.is_cuda() ? kCudaReserve : 0) {}

  /// With the configured number of recomputed layers, or with as many as save
  /// memory.
  int64_t least_activation_bytes() const {
    const int64_t layers =
        config_.checkpoint_layers.value_or(layer_count() - 1);
    return activation_bytes(layers) + reserve_;
  }

  /// The configured number, or the smallest number that fits next to the
  /// memory that the engine has planned.
  int64_t checkpointed_layers(const tessera::Engine& engine) const {
    if (config_.checkpoint_layers || !config_.engine.memory.device_bytes) {
      return config_.checkpoint_layers.value_or(0);
    }
    const int64_t available_bytes =
        *config_.engine.memory.device_bytes - reserve_ -
        tessera::total_bytes(engine.planned_memory());
    // The engine has left room for this case.
    return tessera::tasks::fewest_recomputed_layers(
               model_, shape_, available_bytes)
        .value_or(layer_count() - 1);
  }

  /// The prediction, in a few lines.
  std::string summary(const tessera::Engine& engine, int64_t layers) const {
    using tessera::engine::format_bytes;
    const int64_t planned = tessera::total_bytes(engine.planned_memory());
    const int64_t activations = activation_bytes(layers);
    const auto budget = config_.engine.memory.device_bytes;
    return "activations: about " + format_bytes(activations) + " for " +
           std::to_string(shape_.rows) + " sequences of " +
           std::to_string(shape_.length) + " tokens, " +
           std::to_string(layers) + " of " + std::to_string(layer_count()) +
           " layers recomputed in backward\npredicted peak: " +
           format_bytes(planned + activations + reserve_) + ", of which " +
           format_bytes(reserve_) + " reserve" +
           (budget ? "; the budget is " + format_bytes(*budget) : "");
  }

 private:
  int64_t layer_count() const {
    return static_cast<int64_t>(model_.layers.size());
  }
  int64_t activation_bytes(int64_t layers) const {
    return tessera::tasks::encoder_activation_bytes(model_, shape_, layers);
  }

  tessera::tasks::TrainingConfig config_;
  tessera::zoo::EncoderConfig model_;
  tessera::tasks::EncoderBatchShape shape_;
  int64_t reserve_;
};
