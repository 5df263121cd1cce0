// SPDX-License-Identifier: Apache-2.0
// AdamW on CPU: ours, LibTorch's, and a kernel that only moves the bytes.
//
// Every iteration runs a yardstick and then the candidate, on arrays of the
// same size, and the counters of_* are the median over these pairs of the
// yardstick's time over the candidate's, with the quartiles: a load on the
// machine, or a neighbour on its memory, hits both halves of a pair and changes
// the ratio little. cpu_of_* is the same of processor time, for a machine that
// others keep busy. Yardsticks are the ceiling, and LibTorch's fused AdamW with
// the passes that it needs for the same work.

#include "adamw_ceiling.h"
#include "tessera/runtime/kernels/cpu_update.h"
#include "tessera/runtime/kernels/update_segments.h"
#include "tessera/runtime/memory/host_heap.h"
#include "tessera/runtime/threads/thread_pool.h"

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

namespace {

/// What a piece of work took: by the clock, and of all threads' processor time,
/// which leaves out what other programs had of the processor meanwhile.
struct Taken {
  double wall;
  double cpu;
};

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

Taken measure(const std::function<void()>& work) {
  const double wall = seconds_of(CLOCK_MONOTONIC);
  const double cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  work();
  return {
      seconds_of(CLOCK_MONOTONIC) - wall,
      seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu};
}

/// The value that the fraction `part` of all values lies below.
double quantile(std::vector<double> values, double part) {
  const auto at =
      static_cast<size_t>(part * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

/// What the arrays hold, and on which pages.
struct Setting {
  int64_t numel;
  int threads;
  bool huge_pages; ///< as the engine's allocator asks for
  at::ScalarType moments = at::kFloat;
};

/// A tensor on fresh pages of the wanted size, whatever other tensors left.
at::Tensor array(const Setting& setting, at::ScalarType dtype, double value) {
  constexpr size_t kAlignment = 2 << 20;
  const size_t bytes = setting.numel * c10::elementSize(dtype);
  const size_t capacity = (bytes + kAlignment) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, capacity);
  if (setting.huge_pages) {
    runtime::prefer_huge_pages(data, capacity);
  }
  return at::from_blob(
             data, {setting.numel}, [](void* p) { std::free(p); }, dtype)
      .fill_(value);
}

/// The arrays of one shard, with what each candidate needs beside them.
struct Arrays {
  explicit Arrays(const Setting& setting)
      : master(array(setting, at::kFloat, 0.5)),
        grad(array(setting, at::kFloat, 0.5)),
        exp_avg(array(setting, setting.moments, 0.5)),
        exp_avg_sq(array(setting, setting.moments, 0.5)),
        narrow_grad(array(setting, at::kBFloat16, 0.5)),
        low_precision(array(setting, at::kBFloat16, 0.5)) {}

  at::Tensor master;
  at::Tensor grad;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor narrow_grad;
  at::Tensor low_precision;
  at::Tensor fused_step = at::ones({});
  runtime::AdamWStep step;
};

using Candidate = void (*)(Arrays&);

void run_ceiling(Arrays& a) {
  auto* master = a.master.mutable_data_ptr<float>();
  const auto* grad = a.grad.const_data_ptr<float>();
  auto* exp_avg = a.exp_avg.mutable_data_ptr<float>();
  auto* exp_avg_sq = a.exp_avg_sq.mutable_data_ptr<float>();
  runtime::run_cpu_updates({{a.master.numel(), [=](int64_t begin, int64_t end) {
                               adamw_ceiling(
                                   master + begin,
                                   grad + begin,
                                   exp_avg + begin,
                                   exp_avg_sq + begin,
                                   end - begin);
                               return true;
                             }}});
}

void run_tessera(Arrays& a, const at::Tensor& grad, const at::Tensor& low) {
  const runtime::UpdateSegment run{
      {a.master, grad, a.exp_avg, a.exp_avg_sq, low}, a.step};
  runtime::update_segments_({&run, 1});
  ++a.step.step;
}

void run_fp32(Arrays& a) {
  run_tessera(a, a.grad, {});
}

void run_bf16_out(Arrays& a) {
  run_tessera(a, a.grad, a.low_precision);
}

void run_bf16(Arrays& a) {
  run_tessera(a, a.narrow_grad, a.low_precision);
}

void run_stochastic(Arrays& a) {
  a.step.rounding = {
      .enabled = true, .seed = static_cast<uint64_t>(a.step.step)};
  run_bf16(a);
}

void run_fused(Arrays& a) {
  a.fused_step += 1;
  at::_fused_adamw_(
      {a.master},
      {a.grad},
      {a.exp_avg},
      {a.exp_avg_sq},
      {},
      {a.fused_step},
      a.step.lr,
      a.step.beta1,
      a.step.beta2,
      a.step.weight_decay,
      a.step.eps,
      /*amsgrad=*/false,
      /*maximize=*/false);
}

/// What LibTorch needs for bfloat16 gradients in and weights out.
void run_fused_with_casts(Arrays& a) {
  a.grad.copy_(a.narrow_grad);
  run_fused(a);
  a.low_precision.copy_(a.master);
}

struct Named {
  const char* name;
  Candidate run;
  Candidate yardstick;
  const char* yardstick_name;
  at::ScalarType moments = at::kFloat;
};

constexpr Named kCandidates[] = {
    {"ceiling", &run_ceiling, &run_ceiling, "ceiling"},
    {"tessera", &run_fp32, &run_ceiling, "ceiling"},
    {"tessera", &run_fp32, &run_fused, "fused"},
    {"fused", &run_fused, &run_ceiling, "ceiling"},
    {"tessera_bf16_out", &run_bf16_out, &run_ceiling, "ceiling"},
    {"tessera_bf16_in_out", &run_bf16, &run_ceiling, "ceiling"},
    {"tessera_bf16_in_out", &run_bf16, &run_fused_with_casts, "fused_casts"},
    {"tessera_bf16_moments",
     &run_bf16,
     &run_fused_with_casts,
     "fused_casts",
     at::kBFloat16},
    {"tessera_bf16_moments_stochastic",
     &run_stochastic,
     &run_fused_with_casts,
     "fused_casts",
     at::kBFloat16},
};

void run(benchmark::State& state, const Named& named, const Setting& setting) {
  torch::NoGradGuard no_grad;
  at::set_num_threads(setting.threads);
  runtime::configure_update_pool(
      runtime::place_update_threads({.threads = setting.threads}));
  // One set of arrays where both can use it: the memory itself is no variable.
  Arrays arrays(setting);
  Setting wide = setting;
  wide.moments = at::kFloat;
  const bool shared = setting.moments == at::kFloat;
  Arrays yardstick_arrays = shared ? arrays : Arrays(wide);
  named.yardstick(yardstick_arrays);
  named.run(arrays);
  std::vector<double> times;
  std::vector<double> ratios;
  std::vector<double> cpu_ratios;
  for (auto _ : state) {
    const Taken yardstick = measure([&] { named.yardstick(yardstick_arrays); });
    const Taken taken = measure([&] { named.run(arrays); });
    state.SetIterationTime(taken.wall);
    times.push_back(taken.wall);
    ratios.push_back(yardstick.wall / taken.wall);
    cpu_ratios.push_back(yardstick.cpu / taken.cpu);
  }
  state.counters["ms"] = 1e3 * quantile(times, 0.5);
  const auto count = [&](const std::string& name, std::vector<double>& values) {
    state.counters[name] = quantile(values, 0.5);
    state.counters[name + "_q1"] = quantile(values, 0.25);
    state.counters[name + "_q3"] = quantile(values, 0.75);
  };
  const std::string of = std::string("of_") + named.yardstick_name;
  count(of, ratios);
  count("cpu_" + of, cpu_ratios);
}

void register_all(int pairs) {
  constexpr int64_t kMi = 1 << 20;
  for (const int64_t numel : {64 * kMi, 256 * kMi}) {
    for (const int threads : {1, 2}) {
      for (const bool huge : {false, true}) {
        for (const Named& named : kCandidates) {
          const std::string name = std::string("BM_AdamW/") + named.name +
                                   "/of:" + named.yardstick_name +
                                   "/numel:" + std::to_string(numel / kMi) +
                                   "Mi/threads:" + std::to_string(threads) +
                                   (huge ? "/pages:huge" : "/pages:4k");
          const Setting setting{numel, threads, huge, named.moments};
          benchmark::RegisterBenchmark(
              name.c_str(),
              [=](benchmark::State& state) { run(state, named, setting); })
              ->UseManualTime()
              ->Iterations(pairs)
              ->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  const char* pairs = std::getenv("BENCH_PAIRS");
  tessera::register_all(pairs != nullptr ? std::atoi(pairs) : 15);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
