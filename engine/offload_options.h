// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OffloadOptions` says which activations and optimizer state move between the
// device and the host during training.

#include <cstdint>
#include <optional>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

enum class OffloadActivations {
  kOff, ///< no hooks; operators save tensors as usual
  /// Offloads the arguments of checkpointed blocks that ask for it
  /// (CheckpointOptions::inputs_on_host).
  kBlocks,
  /// Offloads what exceeds MemoryBudget::activation_bytes, oldest first.
  kAuto,
  /// Copies every tensor to the host as soon as it is saved and frees what
  /// exceeds prefetch_bytes (and activation_bytes, if given) on the device.
  kAll,
};

struct OffloadOptions {
  OffloadActivations activations = OffloadActivations::kOff;
  /// Smaller storages stay on the device.
  int64_t min_tensor_bytes = 64 << 10;
  /// The most bytes that are copied back ahead of their use in backward.
  int64_t prefetch_bytes = 64 << 20;
  /// Limit of host memory for activations, a part of MemoryBudget::host_bytes.
  /// Nothing: what is left of host_bytes or, without that, what the host has.
  std::optional<int64_t> activation_host_bytes;

  /// The fraction of elements, among the groups whose optimizer state is not on
  /// the device, that the CPU updates, in whole groups; the state of the other
  /// groups is streamed through the device, which updates it there. 1: all on
  /// the CPU; 0: all on the device. Nothing: the fraction at which both take
  /// equally long, as measured at the start; 1 if parameters are on the CPU.
  /// Groups whose optimizer uses more than one element at a time (LAMB,
  /// Adafactor, Muon, a user's), or whose weights or gradients are not on the
  /// device either, are updated by the CPU and not counted.
  std::optional<double> ratio;
  /// The most device memory that streamed state passes through.
  int64_t stage_bytes = 96 << 20;
};

void visit_fields(runtime::OptionFields& fields, OffloadOptions& options);

/// @param activation_bytes MemoryBudget::activation_bytes.
/// @throws tessera::Error naming the option, its value and the allowed range.
void check(const OffloadOptions& options, int64_t activation_bytes);

} // namespace tessera
