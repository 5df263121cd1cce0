// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/update_rates.h"

#include "tessera/offload/stores/transfer_rates.h"
#include "tessera/runtime/memory/tensor_bytes.h"
#include "tessera/runtime/streams/stream_time.h"

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

/// Tensors of an update of `numel` elements.
class SampleTensors {
 public:
  SampleTensors(const UpdateSample& sample, c10::Device device, int64_t numel)
      : sample_(sample), device_(device), numel_(numel) {
    const auto make = [&](at::ScalarType dtype) {
      return at::zeros(
          {numel}, at::TensorOptions().dtype(dtype).device(device));
    };
    tensors_.master = make(sample.types.master);
    tensors_.grad = make(sample.types.gradient);
    const auto states = tensors_.states();
    for (size_t i = 0; i < static_cast<size_t>(sample.moments); ++i) {
      *states[i] = make(sample.types.moment);
    }
    if (sample.types.rounds()) {
      tensors_.low_precision = make(sample.types.weight);
    }
  }

  /// Seconds of one update. Blocks, on a device too.
  double update() {
    const c10::NoGradGuard no_grad;
    const runtime::StreamTime begin = runtime::StreamTime::now(device_);
    sample_.update(tensors_);
    return runtime::StreamTime::now(device_).seconds_since(begin);
  }
  /// Of the fastest of several.
  double fastest_update() {
    constexpr int kRounds = 4; // the first one also touches the memory
    double best = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      best = std::min(best, update());
    }
    return best;
  }
  double per_element(double seconds) const {
    return seconds / static_cast<double>(numel_);
  }

 private:
  const UpdateSample& sample_;
  c10::Device device_;
  int64_t numel_;
  runtime::UpdateTensors tensors_;
};

} // namespace

UpdateRates measure_rates(
    const UpdateSample& sample,
    HostMemory& memory,
    c10::Device device,
    int64_t numel) {
  UpdateRates rates;
  {
    SampleTensors on_device(sample, device, std::min(numel, kDeviceElements));
    rates.device_element = on_device.per_element(on_device.fastest_update());
  }
  TransferSample copies(
      memory,
      device,
      std::max<int64_t>(
          1,
          std::min(
              {runtime::bytes_of(numel, sample.types.master),
               kCopiedBytes,
               memory.free_bytes() / 4})));
  copies.measure();
  SampleTensors on_cpu(sample, at::kCPU, std::min(numel, kCpuElements));
  const double alone = on_cpu.fastest_update();
  // Both use the host's memory, and in a step both are under way.
  constexpr int kRounds = 4;
  double beside = 0;
  const TransferRates transfers = copies.measure_during(kRounds * alone, [&] {
    for (int round = 0; round < kRounds; ++round) {
      beside += on_cpu.update() / kRounds;
    }
  });
  rates.cpu_element = on_cpu.per_element(std::max(alone, beside));
  rates.byte_to_device = transfers.byte_to_device;
  rates.byte_to_host = transfers.byte_to_host;
  return rates;
}

} // namespace tessera::offload
