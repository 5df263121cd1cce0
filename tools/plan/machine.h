// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Machine` is what a planned job runs on: memory, and the rates from which
// step times are estimated.

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::tools {

/// Operations and bytes per second, as achieved, not as advertised.
struct Rates {
  double flops_16bit = 0; ///< of a device, matrix products
  double flops_32bit = 0;
  double device_memory = 0; ///< bytes, read and written
  double in_node = 0; ///< bytes out of a device to others of its node
  double between_nodes = 0; ///< bytes out of a device to other nodes
  double device_to_host = 0; ///< bytes, of a device
  double host_to_device = 0;
  double host_update = 0; ///< bytes of a node's CPUs in an optimizer's update
};

void visit_fields(runtime::OptionFields& fields, Rates& rates);

struct Machine {
  int devices = 1;
  int devices_per_node = 8;
  c10::DeviceType device = c10::kCUDA;
  int64_t device_bytes = 0; ///< of a device
  /// Of them: what CUDA, NCCL and cuBLAS take and LibTorch's allocator cannot
  /// use.
  int64_t reserved_bytes = 0;
  std::optional<int64_t> host_bytes; ///< of a node; nothing: no offload
  Rates rates;

  int64_t room() const {
    return device_bytes - reserved_bytes;
  }
  /// What of host memory is a rank's.
  int64_t host_bytes_of_rank() const {
    return host_bytes.value_or(0) / std::min(devices, devices_per_node);
  }
};

/// Rates of devices that are known by name: "a100", "h100", "rtx3090", "cpu".
/// @throws tessera::Error naming those that are known.
Rates known_rates(const std::string& name);

/// Rates from the JSON of `tessera bench --json` or `tessera bench comm
/// --output`; what it does not measure stays as in `rates`.
Rates measured_rates(const nlohmann::json& bench, Rates rates);

} // namespace tessera::tools
