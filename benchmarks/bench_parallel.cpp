// SPDX-License-Identifier: Apache-2.0
// Tensor and pipeline parallelism on CPU ranks, one thread each:
//
//   tessera launch --nproc 2 -- bench_parallel
//
// - cross-entropy of logits divided over the ranks, compared with gathering
//   them and LibTorch's cross-entropy: time, and peak memory in addition to the
//   logits;
// - an MLP under sequence parallelism, whose activations are exchanged in one
//   piece and in several, compared with sequential operators: time, and memory
//   kept for backward;
// - a step of each pipeline schedule, one pipeline stage per rank, next to
//   the simulator's prediction from the times of one rank alone.
//
// Candidates take turns, and medians are printed, so that a load on the machine
// hits all of them. With fewer cores than ranks the second part says nothing.

#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/model_chunk_graph.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/pipeline/simulate_schedule.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/tensor_parallel/overlapped_linear.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_loss.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace tessera::parallel_bench {

namespace {

using runtime::cpu_bytes_live;
using runtime::cpu_bytes_peak;
using sharding::enter_layer;
using sharding::enter_linear;
using sharding::leave_layer;
using sharding::leave_linear;

using Tensors = std::vector<at::Tensor>;

constexpr int kRounds = 11;

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - start;
  return taken.count();
}

double median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Measured {
  double seconds = 0; ///< median
  double peak_bytes = 0; ///< peak in addition to what was there before
};

Measured measure(Communicator& group, const std::function<void()>& work) {
  work();
  std::vector<double> times;
  const int64_t before = cpu_bytes_live();
  runtime::reset_cpu_bytes_peak();
  for (int i = 0; i < kRounds; ++i) {
    group.barrier();
    times.push_back(seconds(work));
  }
  return {median(times), static_cast<double>(cpu_bytes_peak() - before)};
}

void compare_losses(World& world) {
  constexpr int64_t kTokens = 1024;
  constexpr int64_t kVocab = 50257;
  const auto group = world.new_communicator("tensor");
  const sharding::DimSplit vocab(kVocab, world.size());
  torch::manual_seed(1);
  const at::Tensor logits =
      torch::randn({kTokens, vocab.length(world.rank())}).requires_grad_();
  const at::Tensor target = torch::randint(kVocab, {kTokens}, at::kLong);
  const auto report = [&](const char* name, const Measured& measured) {
    if (world.rank() == 0) {
      std::printf(
          "%-24s %8.1f ms %8.1f MiB\n",
          name,
          measured.seconds * 1e3,
          measured.peak_bytes / (1 << 20));
    }
  };
  if (world.rank() == 0) {
    std::printf(
        "cross-entropy of %ld tokens, vocabulary %ld over %d ranks, forward "
        "and backward; the logits of a rank are %.1f MiB\n",
        static_cast<long>(kTokens),
        static_cast<long>(kVocab),
        world.size(),
        static_cast<double>(logits.nbytes()) / (1 << 20));
  }
  report("gathered (LibTorch)", measure(*group, [&] {
           const at::Tensor full = gather_parts(logits, 1, vocab, *group);
           at::cross_entropy_loss(full, target).backward();
           logits.mutable_grad().reset();
         }));
  report(
      "vocabulary-parallel", measure(*group, [&] {
        vocab_parallel_cross_entropy(logits, target, vocab, *group).backward();
        logits.mutable_grad().reset();
      }));
}

/// Column and row layer over the ranks, forward and backward.
void compare_borders(World& world) {
  constexpr int64_t kTokens = 2048;
  constexpr int64_t kFeatures = 1024;
  const auto group = world.new_communicator("borders");
  const int64_t own = kTokens / world.size();
  const int64_t inner = 4 * kFeatures / world.size();
  torch::manual_seed(world.rank());
  const at::Tensor x = torch::randn({own, kFeatures}).requires_grad_();
  const at::Tensor up =
      (torch::randn({inner, kFeatures}) / 32).requires_grad_();
  const at::Tensor down =
      (torch::randn({kFeatures, inner}) / 64).requires_grad_();
  if (world.rank() == 0) {
    std::printf(
        "MLP of %ld features over %d ranks, %ld tokens, sequence-parallel\n",
        static_cast<long>(kFeatures),
        world.size(),
        static_cast<long>(kTokens));
  }
  const auto run = [&](const char* name, const auto& forward) {
    const int64_t before = cpu_bytes_live();
    at::Tensor y = forward();
    const double kept = static_cast<double>(cpu_bytes_live() - before);
    y = at::Tensor();
    const Measured measured = measure(*group, [&] {
      forward().sum().backward();
      for (const at::Tensor& leaf : {x, up, down}) {
        leaf.mutable_grad().reset();
      }
    });
    if (world.rank() == 0) {
      std::printf(
          "%-24s %8.1f ms %8.1f MiB kept\n",
          name,
          measured.seconds * 1e3,
          kept / (1 << 20));
    }
  };
  TensorParallel tp{.group = group.get(), .sequence = true, .sequence_dim = 0};
  run("sequential", [&] {
    const at::Tensor inside = at::linear(enter_layer(x, tp), up).relu();
    return leave_layer(at::linear(inside, down), tp);
  });
  for (const int64_t pieces : {1, 2, 4, 8}) {
    tp.pieces = pieces;
    run(("pieces: " + std::to_string(pieces)).c_str(), [&] {
      const at::Tensor inside = enter_linear(x, {{up, {}}}, tp).front().relu();
      return leave_linear(inside, down, tp);
    });
  }
}

/// Some linear layers, as many in each piece.
struct Layers {
  static constexpr int64_t kFeatures = 768;
  static constexpr int64_t kRows = 256;

  explicit Layers(int count) {
    for (int i = 0; i < count; ++i) {
      weights.push_back(
          (torch::randn({kFeatures, kFeatures}) / 30).requires_grad_());
    }
  }

  Tensors forward(const Tensors& inputs, bool last) const {
    at::Tensor x = inputs.empty() ? torch::ones({kRows, kFeatures}) : inputs[0];
    for (const at::Tensor& weight : weights) {
      x = at::linear(x, weight).tanh();
    }
    return {last ? x.mean() : x};
  }

  Tensors weights;
};

/// The times of a piece on a rank that has nothing else to do.
pipeline::ModelChunkCost time_model_chunk(const Layers& layers) {
  std::vector<double> forwards;
  std::vector<double> inputs;
  std::vector<double> weights;
  for (int i = 0; i < kRounds; ++i) {
    const at::Tensor x =
        torch::ones({Layers::kRows, Layers::kFeatures}).requires_grad_();
    Tensors y;
    forwards.push_back(seconds([&] { y = layers.forward({x}, false); }));
    pipeline::ModelChunkGraph graph({x}, y);
    inputs.push_back(seconds([&] { graph.backward_input(y); }));
    weights.push_back(seconds([&] { graph.backward_weight(); }));
  }
  return {median(forwards), median(inputs), median(weights)};
}

void compare_schedules(World& world) {
  constexpr int kMicroBatches = 8;
  constexpr int kLayers = 8; // of a stage
  const auto group = world.new_communicator("bench");
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  runtime::RingChannels ring(world, "stages", ranks, at::kCPU);
  if (world.rank() == 0) {
    std::printf(
        "pipeline of %d stages, %d micro-batches: measured, simulated\n",
        world.size(),
        kMicroBatches);
  }
  for (const auto& [name, kind] : pipeline_schedule_names()) {
    const int chunks = kind == PipelineScheduleKind::kInterleaved ? 2 : 1;
    const PipelineShape shape{
        world.size(),
        (kMicroBatches + world.size() - 1) / world.size() * world.size(),
        chunks};
    std::vector<Layers> model_chunks;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      model_chunks.emplace_back(kLayers / chunks);
    }
    // One rank after the other, so that each has its core.
    pipeline::ModelChunkCost cost;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank == world.rank()) {
        cost = time_model_chunk(model_chunks[0]);
      }
      group->barrier();
    }
    const PipelineSchedule schedule = make_schedule(kind, shape);
    PipelineExecutor executor(schedule, world.size() > 1 ? &ring : nullptr);
    PipelineCallbacks callbacks;
    callbacks.forward = [&](int chunk, int, const Tensors& inputs) {
      const bool last =
          shape.model_chunk(world.rank(), chunk) == shape.model_chunks() - 1;
      return model_chunks[static_cast<size_t>(chunk)].forward(inputs, last);
    };
    const Measured step = measure(*group, [&] { executor.run(callbacks); });
    const pipeline::SimulatedPipeline simulated = simulate_schedule(
        schedule,
        std::vector<pipeline::ModelChunkCost>(
            static_cast<size_t>(shape.model_chunks()), cost));
    if (world.rank() == 0) {
      std::printf(
          "%-12s %8.1f ms %8.1f ms, bubble %4.1f %%, peak of rank 0 %6.1f "
          "MiB\n",
          name.c_str(),
          step.seconds * 1e3,
          simulated.makespan * 1e3,
          simulated.bubble_fraction * 100,
          step.peak_bytes / (1 << 20));
    }
  }
}

} // namespace

} // namespace tessera::parallel_bench

int main() {
  tessera::runtime::install_cpu_memory_counter();
  at::set_num_threads(1);
  tessera::World& world = tessera::init();
  tessera::parallel_bench::compare_losses(world);
  tessera::parallel_bench::compare_borders(world);
  tessera::parallel_bench::compare_schedules(world);
  return 0;
}
