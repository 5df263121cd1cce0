// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DevicePeak` is the rate of matrix products that a device reaches at most, to
// which that of a training step is compared. Here are also the rates that data
// sheets give.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace tessera::runtime {

/// Operations per second of matrix products.
struct DevicePeak {
  double flops_per_s = 0;
  /// Whether it was measured here, because no data sheet is known: then it is
  /// what the library reaches, not what the device could.
  bool is_measured = false;
  /// "NVIDIA H100 PCIe", "cpu": what it is the peak of.
  std::string device;
};

/// What a data sheet says of a device, without structured sparsity; products of
/// 16 bits are those that are added up in float32.
/// @param name as the driver gives it, e.g. "NVIDIA A100-SXM4-80GB".
/// @param uses_tf32 float32 products may be computed in TF32.
/// @return nothing if the device, or its rate for the type, is not known.
std::optional<double> known_peak_flops(
    std::string_view name,
    c10::ScalarType dtype,
    bool uses_tf32);

/// What a data sheet says of the memory of a device, in bytes/s.
/// @param name as for known_peak_flops().
/// @return nothing if the device is not known.
std::optional<double> known_memory_rate(std::string_view name);

/// The peak of a device from its data sheet, or else the best of some products
/// of matrices of `dtype`, with this process's threads: about 50 ms, once per
/// device and type. Blocks.
DevicePeak device_peak(c10::Device device, c10::ScalarType dtype);

} // namespace tessera::runtime
