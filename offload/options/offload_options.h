// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OffloadOptions` says how activations and optimizer state that rest on the
// host move between it and the device during training.

#include <cstdint>
#include <optional>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

struct OffloadOptions {
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
  /// The most device memory that streamed state passes through; at least
  /// kMinStageBytes.
  int64_t stage_bytes = 96 << 20;
  static constexpr int64_t kMinStageBytes = 3 * 4096;
};

void visit_fields(runtime::OptionFields& fields, OffloadOptions& options);

/// @throws tessera::Error naming the option, its value and the allowed range.
void check(const OffloadOptions& options);

} // namespace tessera
