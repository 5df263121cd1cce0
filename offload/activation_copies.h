// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies of saved storages to the host and back, beside what computes.

#include "tessera/offload/activation_room.h"
#include "tessera/runtime/memory/stream_lane.h"

#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// One lane to the host and one back; events order them, the host waits for
/// neither. For the CPU, host memory is other memory of the same kind, and
/// copies are done when the functions return. Not thread-safe.
class ActivationCopies {
 public:
  /// @param host_bytes limit of the host memory; none: what there is.
  ActivationCopies(c10::Device device, std::optional<int64_t> host_bytes);

  /// Copies what all that has been issued to `streams` so far makes of `from`.
  /// @param done receives what whoever frees or changes `from`, or reads the
  ///   copy, waits for.
  /// @return undefined when the host has no room.
  HostPiece copy_out(
      const c10::Storage& from,
      const StreamSet& streams,
      StreamMarks& done);

  /// A new storage on the device, of the current stream's memory.
  /// @param done what made the copy; receives what whoever uses or frees the
  ///   storage, or gives the piece back, waits for.
  c10::Storage copy_in(const HostPiece& from, StreamMarks& done);

  void give_back(HostPiece& piece) {
    room_.give_back(piece);
  }

  /// Bytes of all slabs on the host.
  int64_t slab_bytes() const {
    return room_.slab_bytes();
  }

  c10::Device device() const {
    return device_;
  }

 private:
  c10::Device device_;
  ActivationRoom room_;
  StreamLane to_host_;
  StreamLane to_device_;
};

} // namespace tessera
