// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/update_rates.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/offload/transfer_rates.h"
#include "tessera/runtime/kernels/update_runs.h"
#include "tessera/runtime/memory/stream_time.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace tessera::engine {

namespace {

// More than caches hold, but only tens of milliseconds for one core.
constexpr int64_t kCpuElements = int64_t{16} << 20;
constexpr int64_t kDeviceElements = int64_t{4} << 20;
constexpr int64_t kCopiedBytes = int64_t{32} << 20;

} // namespace

int UpdateSample::moments() const {
  return rule.optimizer().max_moments(rule.options());
}

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
  tensors.master = make(sample.master);
  tensors.grad = make(sample.gradient);
  const auto states = tensors.states();
  for (size_t i = 0; i < static_cast<size_t>(sample.moments()); ++i) {
    *states[i] = make(sample.moment);
  }
  if (sample.low_precision) {
    tensors.low_precision = make(*sample.low_precision);
  }
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const runtime::StreamTime begin = runtime::StreamTime::now(device);
    sample.rule.optimizer().update(tensors, sample.rule.options());
    best =
        std::min(best, runtime::StreamTime::now(device).seconds_since(begin));
  }
  return best / static_cast<double>(numel);
}

UpdateRates measure_rates(
    const UpdateSample& sample,
    offload::HostMemory& memory,
    c10::Device device,
    int64_t numel) {
  const auto each = static_cast<int64_t>(c10::elementSize(sample.master));
  UpdateRates rates;
  rates.cpu_element =
      measure_update(sample, at::kCPU, std::min(numel, kCpuElements));
  rates.device_element =
      measure_update(sample, device, std::min(numel, kDeviceElements));
  const offload::TransferRates transfers = offload::measure_transfers(
      memory,
      device,
      std::max<int64_t>(
          1, std::min({numel * each, kCopiedBytes, memory.free_bytes() / 4})));
  rates.byte_to_device = transfers.byte_to_device;
  rates.byte_to_host = transfers.byte_to_host;
  return rates;
}

} // namespace tessera::engine
