// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MemoryBudget` limits the memory of each tier that the engine may use.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

/// Limits per rank. What rests where by choice is in PlacementOptions.
struct MemoryBudget {
  /// Bytes on the device of the parameters: what the card has for this rank, or
  /// less. Shards, gradients, slots, optimizer state that rests there, and what
  /// CUDA, NCCL and cuBLAS have taken, which wrap() measures. What is left over
  /// keeps groups unsharded; this replaces ShardingOptions::zero_stage.
  std::optional<int64_t> device_bytes;
  /// The part of device_bytes that stays free for activations.
  int64_t activation_bytes = 0;
  /// Hard limit of host memory apart from the device: shards and activations
  /// that rest there, and staging buffers. With device_bytes, what does not fit
  /// on the device rests here: optimizer state first, then gradients, then
  /// parameters.
  std::optional<int64_t> host_bytes;
  /// A folder on a local disk for what does not fit elsewhere. Empty: none.
  std::filesystem::path nvme_path;
  /// Hard limit of bytes in nvme_path. Nothing: the free space of the disk.
  std::optional<int64_t> nvme_bytes;
};

void visit_fields(runtime::OptionFields& fields, MemoryBudget& options);

/// @throws tessera::Error naming the option, its value and the allowed range.
void check(const MemoryBudget& memory);

} // namespace tessera
