// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is known about saved tensors: how many bytes, whose, how they moved.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Bytes are those of storages, each counted once however often it is saved.
struct ActivationStatistics {
  /// Held on the device for backward now. Parameters, buffers and what is on
  /// other devices are not counted.
  int64_t live_device_bytes = 0;
  int64_t peak_device_bytes = 0; ///< since the last reset
  /// Copies on the host now, and the most there were.
  int64_t live_host_bytes = 0;
  int64_t peak_host_bytes = 0;
  /// Host memory that was taken for such copies, in slabs that are kept.
  int64_t host_slab_bytes = 0;
  int64_t live_storages = 0; ///< saved and not yet released
  int64_t tensors_saved = 0;
  int64_t tensors_passed = 0; ///< parameters, other devices, no storage
  int64_t bytes_to_host = 0; ///< copied
  int64_t bytes_to_device = 0;
  /// Of these, ahead of their use.
  int64_t bytes_prefetched = 0;
  /// Uses in backward that had to bring a storage in themselves.
  int64_t stalls = 0;
  /// Bytes that should have left and stayed: the host had no room for them.
  int64_t bytes_refused = 0;
};

/// What one kind of operator made and others saved.
struct SavedByProducer {
  /// The autograd node of the operator that made it, e.g. "GeluBackward0";
  /// "input" for what no operator of the graph made.
  std::string producer;
  int64_t storages = 0;
  int64_t bytes = 0;
  int64_t bytes_left = 0; ///< of these, left the device
};

/// A table with one row per producer and a total, for the log.
std::string saved_activations_table(const std::vector<SavedByProducer>& rows);

/// A line for the log: what moved in the first step.
/// @param statistics of that step.
std::string first_step_text(const ActivationStatistics& statistics);

} // namespace tessera
