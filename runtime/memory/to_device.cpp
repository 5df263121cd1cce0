// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/to_device.h"

#include <ATen/DeviceAccelerator.h>

namespace tessera::runtime {

at::Tensor pinned_for(const at::Tensor& host, c10::Device device) {
  return at::isAccelerator(device.type()) && host.is_cpu() && !host.is_pinned()
             ? host.pin_memory()
             : host;
}

at::Tensor to_device(const at::Tensor& host, c10::Device device) {
  return pinned_for(host, device).to(device, /*non_blocking=*/true);
}

} // namespace tessera::runtime
