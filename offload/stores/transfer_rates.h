// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TransferSample` measures copies between the host and a device.

#include "tessera/offload/stores/host_memory.h"
#include "tessera/runtime/streams/stream_lane.h"
#include "tessera/runtime/streams/stream_time.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <functional>

namespace tessera::offload {

/// Seconds per byte while both directions are busy, as they are when state is
/// streamed through a device.
struct TransferRates {
  double byte_to_device = 0;
  double byte_to_host = 0;
};

/// Buffers that are copied in both directions at once.
class TransferSample {
 public:
  /// @param memory for the host's side, pinned if its slabs are; 2 * bytes.
  /// @param device where 2 * bytes are allocated too.
  /// @param bytes above 0.
  TransferSample(HostMemory& memory, c10::Device device, int64_t bytes);

  /// The rates of copies with nothing else under way. Blocks for about four
  /// copies in each direction.
  TransferRates measure();

  /// The rates of copies while the host does `work`, which takes about
  /// `seconds` and is called once. Blocks for as long, and somewhat longer.
  /// Call measure() first. On a device without streams, where copies keep the
  /// host busy themselves, `work` is called and the rates are those of
  /// measure().
  TransferRates measure_during(
      double seconds,
      const std::function<void()>& work);

 private:
  /// One direction.
  struct Direction {
    at::Tensor to;
    at::Tensor from;
    runtime::StreamLane lane;
    runtime::StreamTime begin;
    double alone = 0; ///< seconds of one copy

    void issue(int64_t copies);
    double seconds_since_begin() const;
  };
  TransferRates rates(double to_device, double to_host) const;

  int64_t bytes_;
  std::array<Direction, 2> directions_; ///< to the device, to the host
};

/// The seconds that one copy takes while the host is busy.
/// @param copies issued at once, when the host's work began.
/// @param all until the last one of them had ended.
/// @param busy of the host's work.
/// @param alone of one copy, with an idle host; copies after the work took as
///   long.
double seconds_while_busy(
    int64_t copies,
    double all,
    double busy,
    double alone);

} // namespace tessera::offload
