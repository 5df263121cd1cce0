// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/update_rates.h"

#include "tessera/offload/stores/transfer_rates.h"
#include "tessera/runtime/memory/stream_time.h"
#include "tessera/runtime/memory/tensor_bytes.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace tessera::offload {

namespace {

// More than caches hold, but only tens of milliseconds for one core.
constexpr int64_t kCpuElements = int64_t{16} << 20;
constexpr int64_t kDeviceElements = int64_t{4} << 20;
constexpr int64_t kCopiedBytes = int64_t{32} << 20;

/// Seconds per element of the fastest of several updates of `numel` elements.
/// Blocks, on a device too.
double measure_update(
    const UpdateSample& sample,
    c10::Device device,
    int64_t numel) {
  constexpr int kRounds = 4; // the first one also touches the memory
  const c10::NoGradGuard no_grad;
  const auto make = [&](at::ScalarType dtype) {
    return at::zeros({numel}, at::TensorOptions().dtype(dtype).device(device));
  };
  runtime::UpdateTensors tensors;
  tensors.master = make(sample.types.master);
  tensors.grad = make(sample.types.gradient);
  const auto states = tensors.states();
  for (size_t i = 0; i < static_cast<size_t>(sample.moments); ++i) {
    *states[i] = make(sample.types.moment);
  }
  if (sample.types.rounds()) {
    tensors.low_precision = make(sample.types.weight);
  }
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const runtime::StreamTime begin = runtime::StreamTime::now(device);
    sample.update(tensors);
    best =
        std::min(best, runtime::StreamTime::now(device).seconds_since(begin));
  }
  return best / static_cast<double>(numel);
}

} // namespace

UpdateRates measure_rates(
    const UpdateSample& sample,
    HostMemory& memory,
    c10::Device device,
    int64_t numel) {
  UpdateRates rates;
  rates.cpu_element =
      measure_update(sample, at::kCPU, std::min(numel, kCpuElements));
  rates.device_element =
      measure_update(sample, device, std::min(numel, kDeviceElements));
  const TransferRates transfers = measure_transfers(
      memory,
      device,
      std::max<int64_t>(
          1,
          std::min(
              {runtime::bytes_of(numel, sample.types.master),
               kCopiedBytes,
               memory.free_bytes() / 4})));
  rates.byte_to_device = transfers.byte_to_device;
  rates.byte_to_host = transfers.byte_to_host;
  return rates;
}

} // namespace tessera::offload
