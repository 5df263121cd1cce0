// SPDX-License-Identifier: Apache-2.0
#include "bench/device_copy.h"

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/streams/stream_time.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace tessera::tools {

namespace {

/// The bandwidth of the fastest copy.
double measure_copy(
    const at::Tensor& to,
    const at::Tensor& from,
    c10::Device device,
    double seconds) {
  double best = 0;
  for (double passed = 0; passed < seconds;) {
    const auto start = runtime::StreamTime::now(device);
    to.copy_(from, /*non_blocking=*/true);
    const double took = runtime::StreamTime::now(device).seconds_since(start);
    best = std::max(best, static_cast<double>(to.nbytes()) / took);
    passed += took;
  }
  return best;
}

} // namespace

std::vector<DeviceBandwidth> measure_devices(int64_t bytes, double seconds) {
  const runtime::CudaBackend& cuda = runtime::load_cuda_backend();
  std::vector<DeviceBandwidth> result;
  const double each = seconds / std::max(2 * cuda.device_count, 1);
  for (int index = 0; index < cuda.device_count; ++index) {
    const c10::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
    const auto options = at::TensorOptions().dtype(at::kByte);
    const at::Tensor on_device = at::empty({bytes}, options.device(device));
    const at::Tensor pinned = at::empty({bytes}, options.pinned_memory(true));
    DeviceBandwidth measured;
    measured.index = index;
    measured.host_to_device = measure_copy(on_device, pinned, device, each);
    measured.device_to_host = measure_copy(pinned, on_device, device, each);
    result.push_back(measured);
  }
  return result;
}

} // namespace tessera::tools
