// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much memory of each tier the engine may take.

#include "tessera/runtime/memory/memory_ledger.h"

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera {

/// All of it is of one rank. Master weights and moments are placed by
/// OptimizerOptions::placement.
struct MemoryBudget {
  /// On the parameters' device: shards, gradients, optimizer state where it
  /// rests there, and slots. What is left over keeps groups unsharded, in place
  /// of PagerOptions::zero_stage.
  std::optional<int64_t> device_bytes;
  /// The part of device_bytes that stays free for activations.
  int64_t activation_bytes = 0;
  /// Memory of the host beside the device, a hard limit: shards that rest
  /// there, what passes through, and activations that rest there. With
  /// device_bytes, what does not fit on the device goes there: optimizer state
  /// first, then gradients, then parameters.
  std::optional<int64_t> host_bytes;
  /// A folder on a local disk, for what does not fit elsewhere. Empty: none.
  std::filesystem::path nvme_path;
  /// What may be taken there, a hard limit. Nothing: what the disk has free.
  std::optional<int64_t> nvme_bytes;
  /// Where this rank's shards of the parameters, as operators use them, and of
  /// the gradients rest between uses. Parameters that are not on the device
  /// come to it for their operators, in a world of one too. Nothing: as
  /// device_bytes has room; on the device without it. The numbers are the same
  /// wherever they rest.
  std::optional<MemoryTier> parameters;
  std::optional<MemoryTier> gradients;
};

/// @throws tessera::Error naming the option, its value and what it may be.
void check(const MemoryBudget& memory);

} // namespace tessera
