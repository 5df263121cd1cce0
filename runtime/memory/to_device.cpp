// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/to_device.h"

#include "tessera/runtime/profile/span_recorder.h"

#include <ATen/DeviceAccelerator.h>

namespace tessera::runtime {

at::Tensor pinned_for(const at::Tensor& host, c10::Device device) {
  return at::isAccelerator(device.type()) && host.is_cpu() && !host.is_pinned()
             ? host.pin_memory()
             : host;
}

at::Tensor to_device(const at::Tensor& host, c10::Device device) {
  if (device.is_cpu()) {
    return host.to(device);
  }
  const TraceSpan span(
      TraceLane::kToDevice,
      "batch",
      device,
      static_cast<int64_t>(host.nbytes()));
  return pinned_for(host, device).to(device, /*non_blocking=*/true);
}

} // namespace tessera::runtime
