// SPDX-License-Identifier: Apache-2.0
// What Tessera adds: to an operator on a resident sharded parameter, and to a
// gather and a reduction over what the same bytes take in raw c10d calls.
//
//   bench_sharding                                        (operators)
//   tessera launch --nproc 2 -- bench_sharding            (and collectives)
//
// Pairs are interleaved, and the medians of ratios within pairs are printed, so
// that a load on the machine hits both halves.

#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/cpu_transport.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

namespace tessera::sharding_bench {

namespace {

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

struct Pair {
  double plain = 0; ///< median seconds
  double sharded = 0;
  double ratio = 0; ///< median of plain / ours
};

Pair compare(
    int rounds,
    const std::function<void()>& plain,
    const std::function<void()>& sharded) {
  plain();
  sharded();
  std::vector<double> plains;
  std::vector<double> times;
  std::vector<double> ratios;
  for (int i = 0; i < rounds; ++i) {
    plains.push_back(seconds(plain));
    times.push_back(seconds(sharded));
    ratios.push_back(plains.back() / times.back());
  }
  return {median(plains), median(times), median(ratios)};
}

/// A linear layer too small to take time itself.
void compare_operators(World& world) {
  constexpr int kCalls = 20000;
  constexpr int kRounds = 15;
  const torch::NoGradGuard no_grad;
  torch::nn::Linear plain(4, 4);
  torch::nn::Linear sharded(4, 4);
  EngineOptions options;
  options.log_memory = false;
  Engine engine = wrap(sharded, options);
  const GatherScope full = engine.gather();
  const at::Tensor x = torch::randn({4});
  const auto calls = [&](const at::Tensor& weight) {
    return [&] {
      for (int i = 0; i < kCalls; ++i) {
        at::mv(weight, x);
      }
    };
  };
  const Pair pair =
      compare(kRounds, calls(plain->weight), calls(sharded->weight));
  if (world.rank() == 0) {
    std::printf(
        "operator on a resident sharded parameter: %.3f us, plain %.3f us, "
        "%.3f us more\n",
        pair.sharded / kCalls * 1e6,
        pair.plain / kCalls * 1e6,
        (pair.sharded - pair.plain) / kCalls * 1e6);
  }
}

/// The page's way (Communicator, handles, checks) against the backend's call.
void compare_collectives(World& world, int64_t numel) {
  constexpr int kRounds = 25;
  const auto comm = world.new_communicator("ours");
  const auto raw = runtime::make_cpu_backend(
      c10::make_intrusive<c10d::PrefixStore>(
          world.unique_name("raw"), world.store()),
      world.rank(),
      world.size(),
      world.options().timeout);
  MemoryLedger ledger;
  at::Tensor shard = ledger.allocate_zeros(
      MemoryPurpose::kParameters, numel / world.size(), at::kFloat, at::kCPU);
  at::Tensor full = ledger.allocate_zeros(
      MemoryPurpose::kGatherSlots, numel, at::kFloat, at::kCPU);
  const Pair gather = compare(
      kRounds,
      [&] { raw->_allgather_base(full, shard)->wait(); },
      [&] { comm->all_gather(full, shard, "gather").wait(); });
  const Pair reduce = compare(
      kRounds,
      [&] { raw->_reduce_scatter_base(shard, full)->wait(); },
      [&] { comm->reduce_scatter_sum(shard, full, "reduction").wait(); });
  if (world.rank() == 0) {
    const double mib = static_cast<double>(numel) * sizeof(float) / (1 << 20);
    const auto print = [&](const char* label, const Pair& pair) {
      std::printf(
          "%s of %.2f MiB over %d ranks (%s): %.3f ms, raw %.3f ms, "
          "%.3f of raw speed\n",
          label,
          mib,
          world.size(),
          raw->getBackendName().c_str(),
          pair.sharded * 1e3,
          pair.plain * 1e3,
          pair.ratio);
    };
    print("gather", gather);
    print("reduction", reduce);
  }
}

} // namespace

} // namespace tessera::sharding_bench

int main() {
  try {
    at::set_num_threads(1);
    tessera::World& world = tessera::init();
    tessera::sharding_bench::compare_operators(world);
    for (const int64_t mi : {1, 7, 38}) {
      if (world.size() > 1) {
        tessera::sharding_bench::compare_collectives(world, mi << 20);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
