// SPDX-License-Identifier: Apache-2.0
// AdamW on CPU: ours, LibTorch's, and a kernel that only moves the bytes.
//
// Every iteration runs the ceiling and then the candidate, on the same arrays,
// and the counter `of_ceiling` is the median over these pairs of ceiling time
// over candidate time: a load on the machine, or a neighbour on its memory,
// hits both halves of a pair and changes the ratio little.

#include "adamw_ceiling.h"
#include "tessera/runtime/kernels/adamw.h"
#include "tessera/runtime/kernels/parallel.h"

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

namespace {

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - start;
  return taken.count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The arrays of one shard, with what each candidate needs beside them.
struct Arrays {
  explicit Arrays(int64_t numel)
      : master(at::full({numel}, 0.5f)),
        grad(at::full({numel}, 0.5f)),
        exp_avg(at::full({numel}, 0.5f)),
        exp_avg_sq(at::full({numel}, 0.5f)),
        low_precision(at::zeros({numel}, at::kBFloat16)) {}

  at::Tensor master;
  at::Tensor grad;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor low_precision;
  at::Tensor fused_step = at::ones({});
  AdamWStep step;
};

using Candidate = std::function<void(Arrays&)>;

void run_ceiling(Arrays& a) {
  auto* master = a.master.mutable_data_ptr<float>();
  const auto* grad = a.grad.const_data_ptr<float>();
  auto* exp_avg = a.exp_avg.mutable_data_ptr<float>();
  auto* exp_avg_sq = a.exp_avg_sq.mutable_data_ptr<float>();
  parallel_for(0, a.master.numel() / 1024, 32, [&](int64_t b, int64_t e) {
    adamw_ceiling(
        master + b * 1024,
        grad + b * 1024,
        exp_avg + b * 1024,
        exp_avg_sq + b * 1024,
        (e - b) * 1024);
  });
}

void run_tessera(Arrays& a, SqrtRounding rounding, const at::Tensor& low) {
  a.step.sqrt_rounding = rounding;
  adamw_(a.master, a.grad, a.exp_avg, a.exp_avg_sq, a.step, low);
  ++a.step.step;
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

/// torch::optim::AdamW, whose state is its own.
Candidate libtorch_optimizer() {
  return
      [optimizer = std::shared_ptr<torch::optim::AdamW>()](Arrays& a) mutable {
        if (!optimizer) {
          optimizer = std::make_shared<torch::optim::AdamW>(
              std::vector<at::Tensor>{a.master});
          a.master.mutable_grad() = a.grad;
        }
        optimizer->step();
      };
}

struct Named {
  std::string name;
  std::function<Candidate()> make;
};

std::vector<Named> candidates() {
  const auto same = [](Candidate candidate) {
    return [candidate] { return candidate; };
  };
  return {
      {"ceiling", same(&run_ceiling)},
      {"tessera",
       same([](Arrays& a) { run_tessera(a, SqrtRounding::kLibTorch, {}); })},
      {"tessera_correct_sqrt",
       same([](Arrays& a) { run_tessera(a, SqrtRounding::kCorrect, {}); })},
      {"aten_fused", same(&run_fused)},
      {"libtorch_optim", &libtorch_optimizer},
      {"tessera_bf16_out", same([](Arrays& a) {
         run_tessera(a, SqrtRounding::kLibTorch, a.low_precision);
       })},
      {"tessera_correct_sqrt_bf16_out", same([](Arrays& a) {
         run_tessera(a, SqrtRounding::kCorrect, a.low_precision);
       })},
      {"aten_fused_then_bf16_copy", same([](Arrays& a) {
         run_fused(a);
         a.low_precision.copy_(a.master);
       })},
  };
}

void run(
    benchmark::State& state,
    const Candidate& candidate,
    int64_t numel,
    int threads) {
  torch::NoGradGuard no_grad;
  at::set_num_threads(threads);
  Arrays arrays(numel);
  run_ceiling(arrays);
  candidate(arrays);
  std::vector<double> times;
  std::vector<double> ratios;
  for (auto _ : state) {
    const double ceiling = seconds([&] { run_ceiling(arrays); });
    const double taken = seconds([&] { candidate(arrays); });
    state.SetIterationTime(taken);
    times.push_back(taken);
    ratios.push_back(ceiling / taken);
  }
  state.counters["median_ms"] = 1e3 * median(times);
  state.counters["of_ceiling"] = median(ratios);
  state.counters["GB/s_at_28B"] =
      28.0 * static_cast<double>(numel) / median(times) / 1e9;
}

void register_all() {
  constexpr int64_t kMi = 1 << 20;
  for (int64_t numel : {kMi, 64 * kMi}) {
    for (int threads : {1, 2}) {
      for (const Named& named : candidates()) {
        const std::string name = "BM_AdamW/" + named.name +
                                 "/numel:" + std::to_string(numel / kMi) +
                                 "Mi/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(
            name.c_str(),
            [=](benchmark::State& state) {
              run(state, named.make(), numel, threads);
            })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  tessera::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
