// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every long-lived buffer of the engine, counted by what it is for.

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

/// Where bytes are.
enum class MemoryTier {
  kDevice, ///< the device of the parameters, which may be the CPU
  kHost, ///< memory of the host beside it
  kNvme, ///< files
};

inline constexpr size_t kMemoryTierCount = 3;

/// "device", "host", "nvme".
const char* name_of(MemoryTier tier);

enum class MemoryPurpose {
  kParameters, ///< this rank's shards of the weights
  kGradients, ///< this rank's shards of the gradients
  kOptimizerState, ///< master weights and moments
  kGatherSlots, ///< where weights are whole while they are in use
  kReduceSlots, ///< where whole gradients wait for their reduction
  kStaging, ///< what passes through on its way between tiers
  kActivations, ///< tensors saved for backward that rest on the host
};

inline constexpr size_t kMemoryPurposeCount = 7;

/// "parameters", "gradients", ...
const char* name_of(MemoryPurpose purpose);

/// Bytes per purpose.
using MemoryBytes = std::array<int64_t, kMemoryPurposeCount>;

/// Sum over all purposes.
int64_t total_bytes(const MemoryBytes& bytes);

/// Bytes per tier and purpose.
using TierBytes = std::array<MemoryBytes, kMemoryTierCount>;

/// A table with one row per purpose, for the log; `title` heads it.
std::string memory_table(const std::string& title, const MemoryBytes& bytes);

/// The same with a column per tier, if there is anything beside the device.
std::string memory_table(const std::string& title, const TierBytes& bytes);

/// Allocates buffers and knows, at any time, how many bytes of each purpose
/// are alive. Buffers may outlive the ledger. Thread-safe.
class MemoryLedger {
 public:
  MemoryLedger();

  /// [numel] uninitialised, contiguous, aligned to 64 bytes. On the CPU large
  /// ones are made of huge pages where the system offers them.
  at::Tensor allocate(
      MemoryPurpose purpose,
      int64_t numel,
      at::ScalarType dtype,
      at::Device device,
      MemoryTier tier = MemoryTier::kDevice);

  /// As allocate(), filled with zeros.
  at::Tensor allocate_zeros(
      MemoryPurpose purpose,
      int64_t numel,
      at::ScalarType dtype,
      at::Device device,
      MemoryTier tier = MemoryTier::kDevice);

  /// Counts what somebody else has allocated, until the last copy of what is
  /// returned goes.
  std::shared_ptr<void> count(
      MemoryPurpose purpose,
      MemoryTier tier,
      int64_t bytes);

  /// Bytes alive now.
  MemoryBytes live_bytes(MemoryTier tier = MemoryTier::kDevice) const;

 private:
  struct Counters {
    std::array<
        std::array<std::atomic<int64_t>, kMemoryPurposeCount>,
        kMemoryTierCount>
        live{};
  };
  std::shared_ptr<Counters> counters_;
};

} // namespace tessera
