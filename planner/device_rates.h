// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DeviceRates` are the rates from which times of a step are estimated.

#include "tessera/planner/operator_rates.h"

#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::planner {

/// Operations and bytes per second, as achieved, not as advertised.
struct DeviceRates {
  double flops_16bit = 0; ///< of a device, matrix products
  double flops_32bit = 0;
  /// Of the CPU, products of matrices of 32 bits whose factors are rounded to
  /// bfloat16 (CpuMatmul::kBfloat16); 0: not known.
  double flops_rounded = 0;
  double attention_16bit = 0; ///< operations, fused attention of 16 bits
  double device_memory = 0; ///< bytes, read and written
  double in_node = 0; ///< bytes out of a device to others of its node
  double between_nodes = 0; ///< bytes out of a device to other nodes
  double device_to_host = 0; ///< bytes, of a device
  double host_to_device = 0;
  double host_update = 0; ///< bytes of a node's CPUs in an optimizer's update
  /// Bytes of a node's disks, in either direction: one NVMe disk of PCIe 4.
  double nvme = 3e9;
  /// Of single operators on the device, in place of the rates above; null: not
  /// measured.
  std::shared_ptr<const OperatorRates> operators;
  /// What is planned rounds the factors of its products: they take as long as
  /// `flops_rounded` says, or, where that is not known, as others of 32 bits.
  bool rounds_products = false;
};

void visit_fields(runtime::OptionFields& fields, DeviceRates& rates);

/// Which rate stands in for one that a plan needs and that is not known, in a
/// line; nothing if none does.
std::optional<std::string> assumed_rate(const DeviceRates& rates);

/// What of a data sheet's rates of a device is taken.
enum class RateUse {
  /// Half of products and attention, 80 % of memory: of whole steps of
  /// well-tuned training,
  /// with all that an estimate leaves out.
  kSteps,
  /// 69 % of products, 45 % of fused attention, 90 % of memory: of single large
  /// kernels.
  kKernels,
};

/// Rates of devices that are known by name: "v100", "a100", "h100", "h200",
/// "rtx2080ti", "rtx3090", "rtx4090", "cpu", in small letters. Products and
/// memory are fractions of data sheets (runtime/profile/device_peak.h); see
/// RateUse.
/// @throws tessera::Error naming those that are known.
DeviceRates known_rates(const std::string& name, RateUse use = RateUse::kSteps);

/// The name whose rates are those of a device.
/// @param driver_name as the driver gives it, "NVIDIA H100 80GB HBM3".
/// @return nothing if none has the rates of its data sheet.
std::optional<std::string> rates_name(const std::string& driver_name);

/// The data sheet's rate of products, in operations/s; nothing of "cpu".
std::optional<double> peak_flops(
    const std::string& name,
    c10::ScalarType dtype);

} // namespace tessera::planner
