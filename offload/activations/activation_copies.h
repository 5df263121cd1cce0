// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ActivationCopies` copies saved storages to the host and back, concurrently
// with computation.

#include "tessera/offload/activations/host_activation_pool.h"
#include "tessera/runtime/streams/stream_lane.h"

#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>

namespace tessera::offload {

/// One lane to the host and one back; events order them, and the host waits for
/// neither. For the CPU, host memory is other memory of the same kind, and
/// copies are complete when the functions return. Not thread-safe.
class ActivationCopies {
 public:
  /// @param host_bytes limit of host memory; nothing: what the host has.
  ActivationCopies(c10::Device device, std::optional<int64_t> host_bytes);
  /// Blocks until no copy uses the host memory.
  ~ActivationCopies();
  ActivationCopies(const ActivationCopies&) = delete;
  ActivationCopies& operator=(const ActivationCopies&) = delete;

  /// Copies `from` as it is after everything issued to `streams` so far.
  /// @param done receives the marks that must be waited for before `from` is
  ///   freed or changed, or the copy is read.
  /// @return undefined if the host has no room.
  HostBlock copy_out(
      const c10::Storage& from,
      const runtime::StreamSet& streams,
      runtime::StreamMarks& done);

  /// Copies to a new storage on the device, in memory of the current stream.
  /// @param done the marks of the copy to the host; receives the marks that
  ///   must be waited for before the storage is used or freed, or the piece is
  ///   given back.
  c10::Storage copy_in(const HostBlock& from, runtime::StreamMarks& done);

  void give_back(HostBlock& block) {
    pool_.give_back(block);
  }

  /// Bytes of all slabs on the host.
  int64_t slab_bytes() const {
    return pool_.slab_bytes();
  }

  c10::Device device() const {
    return device_;
  }

 private:
  c10::Device device_;
  HostActivationPool pool_;
  runtime::StreamLane to_host_;
  runtime::StreamLane to_device_;
};

} // namespace tessera::offload
