// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/update_rates.h"

#include "tessera/engine/optim/state_needs.h"
#include "tessera/offload/transfer_rates.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/update_runs.h"
#include "tessera/runtime/memory/stream_time.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace tessera::engine {

namespace {

// More than caches hold, but only tens of milliseconds for one core.
constexpr int64_t kCpuElements = int64_t{16} << 20;
constexpr int64_t kDeviceElements = int64_t{4} << 20;
constexpr int64_t kCopiedBytes = int64_t{32} << 20;

/// One step of the sample's kernel.
struct OneUpdate {
  runtime::UpdateTensors tensors;

  template <typename Run>
  static std::array<Run, 1> one(const Run& run) {
    return {run};
  }
  void operator()(const AdamWOptions&) const {
    adamw_runs_(one(runtime::AdamWRun{tensors, {}}));
  }
  void operator()(const AdamOptions&) const {
    adamw_runs_(one(runtime::AdamWRun{tensors, {}}));
  }
  void operator()(const SgdOptions& options) const {
    runtime::SgdStep step;
    step.momentum = options.momentum;
    step.step = 2;
    runtime::sgd_runs_(one(runtime::SgdRun{tensors, step}));
  }
  void operator()(const LionOptions&) const {
    runtime::lion_runs_(one(runtime::LionRun{tensors, {}}));
  }
  template <typename Options>
  void operator()(const Options&) const {
    TESSERA_FAIL(
        "an update that uses more than one element at a time cannot be measured");
  }
};

} // namespace

double measure_update(
    const UpdateSample& sample,
    c10::Device device,
    int64_t numel) {
  constexpr int kRounds = 4; // the first one also touches the memory
  const c10::NoGradGuard no_grad;
  const auto make = [&](at::ScalarType dtype) {
    return at::zeros({numel}, at::TensorOptions().dtype(dtype).device(device));
  };
  OneUpdate update;
  update.tensors.master = make(sample.master);
  update.tensors.grad = make(sample.gradient);
  const int moments = max_moments(sample.rule);
  if (moments > 0) {
    update.tensors.moment = make(sample.moment);
  }
  if (moments > 1) {
    update.tensors.moment_sq = make(sample.moment);
  }
  if (sample.low_precision) {
    update.tensors.low_precision = make(*sample.low_precision);
  }
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const runtime::StreamTime begin = runtime::StreamTime::now(device);
    std::visit(update, sample.rule);
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
