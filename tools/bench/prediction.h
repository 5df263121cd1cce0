// SPDX-License-Identifier: Apache-2.0
#pragma once
// What bandwidths mean for an optimizer step whose state is not on the device.

#include <cstdint>
#include <optional>

namespace tessera::tools {

/// Bytes per second; none: not measured.
struct Bandwidths {
  double host_update = 0; ///< of an in-place update, all threads
  std::optional<double> device_to_host;
  std::optional<double> host_to_device;
  std::optional<double> disk_read;
  std::optional<double> disk_write;
};

/// What one parameter moves.
struct BytesPerParameter {
  /// Adam on the host: master weight, two moments and gradient read, the first
  /// three written; float32.
  static constexpr double kUpdate = 28;
  /// Of those, what rests on a disk in each direction: weight and moments.
  static constexpr double kState = 12;
  double gradient = 4; ///< from the device
  double weight = 2; ///< back to it
};

/// Seconds of one step.
struct StepPrediction {
  double update = 0;
  double gradients_to_host = 0; ///< 0 without a device
  double weights_to_device = 0;
  double state_from_disk = 0; ///< what it takes if the state rests there
  double state_to_disk = 0;
  /// With the state in host memory and a device that updates a part of it as it
  /// streams by: the part that is left to the CPU (offload.ratio) when both
  /// take equally long, and the time. Without a device 1 and 0.
  double ratio = 1;
  double split = 0;

  /// With the state in host memory: one after the other, and at the best
  /// overlap, where the slowest counts.
  double serial() const;
  double overlapped() const;
  /// The same with the state on the disk; reads and writes share it.
  double overlapped_with_disk() const;
};

StepPrediction predict_step(
    double parameters,
    const BytesPerParameter& bytes,
    const Bandwidths& bandwidths);

} // namespace tessera::tools
