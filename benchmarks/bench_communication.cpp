// SPDX-License-Identifier: Apache-2.0
// A training step with communication in fewer bits, next to the same step as it
// is: a stack of linear layers, so small a batch that the step mostly
// communicates.
//
//   TESSERA_TRANSPORT=gloo tessera launch --nproc 4 -- bench_communication
//
// Steps are interleaved, and medians of ratios within pairs are printed.

#include "tessera/engine/engine.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::communication_bench {

namespace {

constexpr int64_t kWidth = 1024;
constexpr int kLayers = 8;
constexpr int kRounds = 15;

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) {
      x = torch::tanh(layer(x));
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

/// A model of its own with its engine.
class Candidate {
 public:
  explicit Candidate(EngineOptions options)
      : net_(std::make_shared<StackImpl>()),
        engine_(
            wrap(std::shared_ptr<torch::nn::Module>(net_), quiet(options))) {
    for (int i = 0; i < 4; ++i) {
      step();
    }
  }

  /// @return seconds.
  double step() {
    const auto start = std::chrono::steady_clock::now();
    engine_.backward(net_->forward(x_).square().mean());
    engine_.step();
    const std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - start;
    return taken.count();
  }

 private:
  static EngineOptions quiet(EngineOptions options) {
    options.log_memory = false;
    return options;
  }

  std::shared_ptr<StackImpl> net_;
  at::Tensor x_ = torch::randn({4, kWidth});
  Engine engine_;
};

double median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void compare(
    const std::string& name,
    const EngineOptions& plain,
    const EngineOptions& saving) {
  Candidate plain_step(plain);
  Candidate saving_step(saving);
  std::vector<double> plains;
  std::vector<double> savings;
  std::vector<double> ratios;
  for (int i = 0; i < kRounds; ++i) {
    plains.push_back(plain_step.step());
    savings.push_back(saving_step.step());
    ratios.push_back(plains.back() / savings.back());
  }
  if (world().rank() == 0) {
    std::printf(
        "%-28s %7.1f ms  plain %7.1f ms  ratio %.2f\n",
        name.c_str(),
        median(savings) * 1e3,
        median(plains) * 1e3,
        median(ratios));
    std::fflush(stdout);
  }
}

int run() {
  World& job = init();
  if (job.rank() == 0) {
    std::printf(
        "%d ranks, %d layers of width %d\n",
        job.size(),
        kLayers,
        static_cast<int>(kWidth));
  }
  const EngineOptions plain;
  const auto with = [&](Compression gather, Compression reduce) {
    EngineOptions options;
    options.sharding.communication.gather = gather;
    options.sharding.communication.reduce = reduce;
    return options;
  };
  compare("BM_Step/none", plain, plain);
  compare(
      "BM_Step/gather:int8",
      plain,
      with(Compression::kInt8, Compression::kNone));
  compare("BM_Step/int8", plain, with(Compression::kInt8, Compression::kInt8));
  compare("BM_Step/fp8", plain, with(Compression::kFp8, Compression::kFp8));
  compare("BM_Step/int4", plain, with(Compression::kInt4, Compression::kInt4));
  EngineOptions full;
  full.sharding.shard_ranks = 1;
  EngineOptions one_bit = full;
  one_bit.optimizer.rule = OneBitAdamOptions{.freeze_step = 2};
  compare("BM_Step/one_bit_adam", full, one_bit);
  return 0;
}

} // namespace

} // namespace tessera::communication_bench

int main() {
  return tessera::communication_bench::run();
}
