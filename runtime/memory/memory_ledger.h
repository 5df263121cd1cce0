// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MemoryLedger` allocates the engine's long-lived buffers and counts their
// bytes by purpose and tier.

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

/// Where bytes are.
enum class MemoryTier {
  kDevice, ///< device of the parameters, which may be the CPU
  kHost, ///< offloaded to host memory
  kNvme, ///< offloaded to files on a local disk
};

inline constexpr size_t kMemoryTierCount = 3;

/// "device", "host", "nvme".
const char* name_of(MemoryTier tier);

enum class MemoryPurpose {
  kParameters, ///< this rank's shards of the weights
  kGradients, ///< this rank's shards of the gradients
  kOptimizerState, ///< master weights and moments
  kGatherSlots, ///< unsharded weights while they are in use
  kReduceSlots, ///< whole gradients until they are reduced
  kStaging, ///< buffers for data in transit between tiers
  kActivations, ///< tensors saved for backward that rest on the host
  kSnapshot, ///< copy of the state that is saved in the background
  kLibraries, ///< what CUDA, NCCL and cuBLAS take, as measured
};

inline constexpr size_t kMemoryPurposeCount = 9;

/// "parameters", "gradients", ...
const char* name_of(MemoryPurpose purpose);

/// Bytes by purpose.
using MemoryBytes = std::array<int64_t, kMemoryPurposeCount>;

/// Sum over all purposes.
int64_t total_bytes(const MemoryBytes& bytes);

/// Bytes by tier and purpose.
using TierBytes = std::array<MemoryBytes, kMemoryTierCount>;

/// Formats a table for the log with one row per purpose, under `title`;
/// those from staging on only if they are used.
std::string memory_table(const std::string& title, const MemoryBytes& bytes);

/// As above with one column per tier, if any tier but the device is used.
std::string memory_table(const std::string& title, const TierBytes& bytes);

/// Allocates buffers and counts the live bytes of each purpose. Buffers may
/// outlive the ledger. Thread-safe.
class MemoryLedger {
 public:
  MemoryLedger();

  /// Returns [numel], uninitialized, contiguous, aligned to 64 bytes. On the
  /// CPU, large buffers use huge pages if the system offers them.
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

  /// Counts bytes that were allocated elsewhere, until the last copy of the
  /// returned pointer is destroyed.
  std::shared_ptr<void> count(
      MemoryPurpose purpose,
      MemoryTier tier,
      int64_t bytes);

  /// Bytes that are live now.
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
