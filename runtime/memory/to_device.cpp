// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/to_device.h"

#include <ATen/DeviceAccelerator.h>

namespace tessera::runtime {

at::Tensor to_device(const at::Tensor& host, c10::Device device) {
  const bool needs_pinning =
      at::isAccelerator(device.type()) && host.is_cpu() && !host.is_pinned();
  return (needs_pinning ? host.pin_memory() : host)
      .to(device, /*non_blocking=*/true);
}

} // namespace tessera::runtime
