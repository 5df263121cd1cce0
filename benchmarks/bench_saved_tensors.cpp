// SPDX-License-Identifier: Apache-2.0
// What it costs that an operator saves a tensor: as LibTorch does it, with our
// hooks in place and nothing to do, within a budget, and when bytes move.
//
//   bench_saved_tensors --benchmark_enable_random_interleaving=true
//       --benchmark_repetitions=9 --benchmark_report_aggregates_only=true
//
// An iteration is exp() of a tensor that requires a gradient, and the end of
// its graph: it saves its result. `none` runs before the hooks are first put in
// place only if it is run alone; beside the others it is `off`.

#include "tessera/offload/activations/host_activation_sink.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <memory>
#include <optional>

namespace tessera {

namespace {

constexpr int64_t kMiB = 1 << 20;

void save(benchmark::State& state, int64_t numel) {
  at::set_num_threads(1);
  const auto x = torch::zeros({numel}).requires_grad_();
  for (auto _ : state) {
    benchmark::DoNotOptimize(x.exp());
  }
}

void BM_SaveNone(benchmark::State& state) {
  save(state, 16);
}

/// Hooks were put in place once; no sink lives.
void BM_SaveOff(benchmark::State& state) {
  {
    const runtime::SavedTensorScope scope(
        std::make_shared<offload::HostActivationSink>(
            offload::HostActivationSinkOptions{}));
  }
  save(state, 16);
}

/// A sink lives, and the storage passes as a parameter's would.
void BM_SavePassed(benchmark::State& state) {
  offload::HostActivationSinkOptions options;
  options.passes = [](const c10::StorageImpl&) { return true; };
  const runtime::SavedTensorScope scope(
      std::make_shared<offload::HostActivationSink>(options));
  save(state, 16);
}

/// A sink lives, and all fits its budget.
void BM_SaveWithinBudget(benchmark::State& state) {
  offload::HostActivationSinkOptions options;
  options.device_bytes = kMiB;
  options.min_tensor_bytes = 0;
  const runtime::SavedTensorScope scope(
      std::make_shared<offload::HostActivationSink>(options));
  save(state, 16);
}

/// 4 MiB that are copied to the host at once; `Plain` is exp() without.
void BM_SaveMoved(benchmark::State& state) {
  offload::HostActivationSinkOptions options;
  options.device_bytes = 0;
  const runtime::SavedTensorScope scope(
      std::make_shared<offload::HostActivationSink>(options));
  save(state, kMiB);
  state.SetBytesProcessed(state.iterations() * 4 * kMiB);
}

void BM_SaveMovedPlain(benchmark::State& state) {
  save(state, kMiB);
  state.SetBytesProcessed(state.iterations() * 4 * kMiB);
}

BENCHMARK(BM_SaveNone);
BENCHMARK(BM_SaveOff);
BENCHMARK(BM_SavePassed);
BENCHMARK(BM_SaveWithinBudget);
BENCHMARK(BM_SaveMovedPlain);
BENCHMARK(BM_SaveMoved);

} // namespace

} // namespace tessera

BENCHMARK_MAIN();
