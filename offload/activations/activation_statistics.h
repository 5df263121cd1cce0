// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ActivationStatistics` counts saved tensors: their bytes, producers and
// transfers.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Bytes are those of storages; each storage counts once, however often it is
/// saved.
struct ActivationStatistics {
  /// Bytes held on the device for backward now. Parameters, buffers and tensors
  /// on other devices are not counted.
  int64_t live_device_bytes = 0;
  int64_t peak_device_bytes = 0; ///< since the last reset
  /// Bytes of copies on the host, now and at most.
  int64_t live_host_bytes = 0;
  int64_t peak_host_bytes = 0;
  /// Host memory allocated for such copies, in slabs that are kept.
  int64_t host_slab_bytes = 0;
  int64_t live_storages = 0; ///< saved and not yet released
  int64_t tensors_saved = 0;
  int64_t tensors_passed = 0; ///< parameters, other devices, no storage
  int64_t bytes_to_host = 0; ///< copied
  int64_t bytes_to_device = 0;
  /// The part of bytes_to_device that was copied ahead of its use.
  int64_t bytes_prefetched = 0;
  /// Uses in backward that had to copy a storage back themselves.
  int64_t stalls = 0;
  /// Bytes that should have left the device but stayed because the host had no
  /// room.
  int64_t bytes_refused = 0;
};

/// The saved outputs of one kind of operator.
struct SavedByProducer {
  /// The autograd node of the operator that produced them, e.g.
  /// "GeluBackward0"; "input" if no operator of the graph did.
  std::string producer;
  int64_t storages = 0;
  int64_t bytes = 0;
  int64_t bytes_left = 0; ///< the part of them that left the device
};

/// A table with one row per producer and a total, for the log.
std::string saved_activations_table(const std::vector<SavedByProducer>& rows);

/// A line for the log: what moved in the first step.
/// @param statistics of that step.
std::string first_step_text(const ActivationStatistics& statistics);

} // namespace tessera
