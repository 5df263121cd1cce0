// SPDX-License-Identifier: Apache-2.0
#pragma once
// What moves between the device and the host while a model is trained.

#include <cstdint>
#include <optional>

namespace tessera {

enum class OffloadActivations {
  kOff, ///< nothing is hooked; operators save as they always do
  /// The arguments of checkpointed blocks that ask for it
  /// (CheckpointOptions::inputs_on_host).
  kBlocks,
  /// What exceeds MemoryBudget::activation_bytes, the oldest first.
  kAuto,
  /// Everything is copied as soon as it is saved; what exceeds prefetch_bytes
  /// (and activation_bytes, if given) leaves.
  kAll,
};

struct OffloadOptions {
  OffloadActivations activations = OffloadActivations::kOff;
  /// Smaller storages stay on the device.
  int64_t min_tensor_bytes = 64 << 10;
  /// The most that comes back ahead of its use in backward.
  int64_t prefetch_bytes = 64 << 20;
  /// Limit of the host memory for activations, a part of
  /// MemoryBudget::host_bytes; none: what is left of that, or, without it, what
  /// there is.
  std::optional<int64_t> activation_host_bytes;

  /// Who updates the groups whose optimizer state is not on the device: of
  /// their elements, the fraction that the CPU updates, in whole groups; state
  /// of the rest is streamed through the device, which updates it there. 1: all
  /// by the CPU; 0: all by the device. None: so that both take equally long, as
  /// measured at the start; 1 where parameters are on the CPU. Groups whose
  /// optimizer looks at more than one element at a time (LAMB, Adafactor, Muon,
  /// a user's), or whose weights or gradients are not on the device either, are
  /// updated by the CPU and do not count.
  std::optional<double> ratio;
  /// Memory of the device that streamed state passes through, at most.
  int64_t stage_bytes = 96 << 20;
};

/// @param activation_bytes MemoryBudget::activation_bytes.
/// @throws tessera::Error naming the option, its value and what it may be.
void check(const OffloadOptions& options, int64_t activation_bytes);

} // namespace tessera
