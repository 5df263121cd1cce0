// SPDX-License-Identifier: Apache-2.0
// Trains the model of text_model.h twice and prints both losses and both peak
// memories: plain, on the whole of each batch, and wrapped, where every rank
// takes its own part of the batch. The gradients that the engine averages over
// the ranks are those of the whole batch, so both train alike.
//
//   wrap_existing_module [steps]                               one process
//   tessera launch --nproc 2 -- wrap_existing_module [steps]   two ranks

#include "text_model.h"

#include "tessera/engine/engine.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

constexpr int64_t kRowsOfRank = 2;
constexpr double kLearningRate = 2e-3;

struct Run {
  std::vector<double> losses; ///< of the whole batch
  double peak_mib = 0; ///< most CPU tensor bytes alive, of this rank
};

/// The batch of all ranks: [rows, options.context + 1].
torch::Tensor next_batch(
    const TextModelOptions& options,
    int64_t rows,
    int64_t step) {
  // A sequence with something to learn: each token follows from the previous.
  torch::manual_seed(1000 + step);
  const auto start = torch::randint(options.vocabulary, {rows, 1});
  const auto walk = torch::arange(options.context + 1) * 3;
  return (start + walk).remainder(options.vocabulary);
}

torch::Tensor loss_of(TextModel& model, const torch::Tensor& tokens) {
  const auto time = tokens.size(1) - 1;
  const auto logits = model->forward(tokens.narrow(1, 0, time));
  return torch::nn::functional::cross_entropy(
      logits.reshape({-1, logits.size(-1)}),
      tokens.narrow(1, 1, time).reshape({-1}));
}

Run measure(const std::function<std::vector<double>()>& train) {
  const auto before = tessera::runtime::cpu_bytes_live();
  tessera::runtime::reset_cpu_bytes_peak();
  Run run;
  run.losses = train();
  run.peak_mib =
      static_cast<double>(tessera::runtime::cpu_bytes_peak() - before) /
      (1 << 20);
  return run;
}

Run train_plain(const TextModelOptions& options, int64_t rows, int64_t steps) {
  return measure([&] {
    torch::manual_seed(0);
    TextModel model(options);
    torch::optim::AdamW optimizer(
        model->parameters(), torch::optim::AdamWOptions(kLearningRate));
    std::vector<double> losses;
    for (int64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      auto loss = loss_of(model, next_batch(options, rows, step));
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  });
}

Run train_wrapped(
    const tessera::World& world,
    const TextModelOptions& options,
    int64_t rows,
    int64_t steps) {
  return measure([&] {
    torch::manual_seed(0);
    TextModel model(options);
    tessera::EngineOptions engine_options;
    engine_options.optimizer.lr = kLearningRate;
    auto engine = tessera::wrap(model, engine_options);
    std::vector<double> losses;
    for (int64_t step = 0; step < steps; ++step) {
      const auto batch = next_batch(options, rows, step);
      auto loss = loss_of(model, batch.chunk(world.size())[world.rank()]);
      engine.backward(loss);
      engine.step();
      const auto sum = torch::full({1}, loss.item<double>(), torch::kDouble);
      engine.sum_over_ranks(sum);
      losses.push_back(sum.item<double>() / world.size());
    }
    return losses;
  });
}

} // namespace

int main(int argc, char** argv) {
  tessera::runtime::install_cpu_memory_counter();
  try {
    const auto& world = tessera::init();
    const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 20;
    const TextModelOptions options;
    const int64_t rows = kRowsOfRank * world.size();
    const Run plain = train_plain(options, rows, steps);
    const Run wrapped = train_wrapped(world, options, rows, steps);
    if (world.rank() == 0) {
      std::printf("step   plain loss   wrapped loss (mean over the ranks)\n");
      for (int64_t step = 0; step < steps; ++step) {
        std::printf(
            "%4lld   %10.6f   %12.6f\n",
            static_cast<long long>(step),
            plain.losses[step],
            wrapped.losses[step]);
      }
      std::printf(
          "peak memory per rank: plain %.1f MiB, wrapped over %d rank(s) "
          "%.1f MiB\n",
          plain.peak_mib,
          world.size(),
          wrapped.peak_mib);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
