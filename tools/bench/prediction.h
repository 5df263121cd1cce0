// SPDX-License-Identifier: Apache-2.0
#pragma once
// predict_step() predicts the duration of an optimizer step with offloaded
// state from measured bandwidths.

#include <cstdint>
#include <optional>

namespace tessera::tools {

/// Bytes per second; nullopt if not measured.
struct Bandwidths {
  double host_update = 0; ///< of an in-place update with all threads
  std::optional<double> device_to_host;
  std::optional<double> host_to_device;
  std::optional<double> disk_read;
  std::optional<double> disk_write;
};

/// Bytes moved per parameter.
struct BytesPerParameter {
  /// Adam on the host: reads master weight, two moments and gradient, and
  /// writes the first three; float32.
  static constexpr double kUpdate = 28;
  /// The part of it that is on a disk, in each direction: weight and moments.
  static constexpr double kState = 12;
  double gradient = 4; ///< device to host
  double weight = 2; ///< host to device
};

/// Seconds per step.
struct StepPrediction {
  double update = 0;
  double gradients_to_host = 0; ///< 0 without a device
  double weights_to_device = 0;
  double state_from_disk = 0; ///< if the state is on a disk
  double state_to_disk = 0;
  /// With the state in host memory and a device that updates part of it as a
  /// stream: the fraction left to the CPU (offload.ratio) at which both take
  /// equally long, and that time. Without a device 1 and 0.
  double ratio = 1;
  double split = 0;

  /// With the state in host memory: transfers and update one after the other,
  /// and with perfect overlap, limited by the slowest.
  double serial() const;
  double overlapped() const;
  /// The same as overlapped(), with the state on the disk, whose bandwidth
  /// reads and writes share.
  double overlapped_with_disk() const;
};

StepPrediction predict_step(
    double parameters,
    const BytesPerParameter& bytes,
    const Bandwidths& bandwidths);

} // namespace tessera::tools
