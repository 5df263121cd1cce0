// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rules of update_rules.h on kWidth neighboring elements on CUDA.
// `grad_scale` is grad_scale_of() the shard.

#include "tessera/runtime/kernels/lamb_rule.h"
#include "tessera/runtime/kernels/update_math.cuh"
#include "tessera/runtime/kernels/update_rules.h"

namespace tessera::runtime {

namespace {

/// @tparam kStates the arrays of state that the run has.
template <int kWidth, int kStates, typename Shard>
__device__ void update_pack_of(
    const Shard& shard,
    typename Shard::Master grad_scale,
    int64_t i) {
  using T = typename Shard::Master;
  const ShardPacks<kWidth, Shard> packs{shard, i};
  auto masters = packs.master();
  const auto grads = packs.grad();
  // One more than needed: there are no arrays without elements.
  Pack<T, kWidth> states[kStates + 1];
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    states[k] = packs.state(k);
  }
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    CudaNumber<T> master = masters.values[e];
    const CudaNumber<T> grad = CudaNumber<T>(grads.values[e]) * grad_scale;
    if constexpr (kStates == 0) {
      shard.rule.update(master, grad);
    } else {
      CudaNumber<T> state[kStates];
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        state[k] = states[k].values[e];
      }
      shard.rule.update(master, grad, state);
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        states[k].values[e] = state[k].value;
      }
    }
    masters.values[e] = master.value;
  }
  packs.store_master(masters);
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    packs.store_state(k, states[k]);
  }
}

template <int kWidth, typename Shard>
__device__ void update_pack(
    const Shard& shard,
    typename Shard::Master grad_scale,
    int64_t i) {
  using Rule = typename Shard::Rule;
  if constexpr (requires { Rule::kMayHaveNoState; }) {
    if (shard.states[0] == nullptr) {
      update_pack_of<kWidth, 0>(shard, grad_scale, i);
      return;
    }
  }
  update_pack_of<kWidth, Rule::kStates>(shard, grad_scale, i);
}

/// The second half of LAMB.
template <int kWidth, typename T>
__device__ void update_pack(
    const LambShard<T>& shard,
    T /*grad_scale*/,
    int64_t i) {
  using Number = CudaNumber<T>;
  const LambRule<T>& rule = shard.rule;
  const T minus_lr = rule.lr_factor == nullptr
                         ? rule.minus_lr
                         : static_cast<T>(-__dmul_rn(rule.lr, *rule.lr_factor));
  const ShardPacks<kWidth, LambShard<T>> packs{shard, i};
  auto masters = packs.master();
  const auto exp_avg = packs.state(0);
  const auto exp_avg_sq = packs.state(1);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const Number master = masters.values[e];
    const Number direction = rule.direction(
        master, Number(exp_avg.values[e]), Number(exp_avg_sq.values[e]));
    masters.values[e] = fma(direction, minus_lr, master).value;
  }
  packs.store_master(masters);
}

/// The first half of LAMB; adds the squares to `sums`.
template <int kWidth, typename T>
__device__ void lamb_moments_pack(
    const LambShard<T>& shard,
    T grad_scale,
    int64_t i,
    LambSums& sums) {
  using Number = CudaNumber<T>;
  const ShardPacks<kWidth, LambShard<T>> packs{shard, i};
  const auto masters = packs.master();
  const auto grads = packs.grad();
  auto exp_avg = packs.state(0);
  auto exp_avg_sq = packs.state(1);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    Number m = exp_avg.values[e];
    Number v = exp_avg_sq.values[e];
    shard.rule.update_moments(Number(grads.values[e]) * grad_scale, m, v);
    exp_avg.values[e] = m.value;
    exp_avg_sq.values[e] = v.value;
  }
  // Uses the stored moments, because the second half reads those.
  exp_avg = packs.store_state(0, exp_avg);
  exp_avg_sq = packs.store_state(1, exp_avg_sq);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const Number master = masters.values[e];
    const Number direction = shard.rule.direction(
        master, Number(exp_avg.values[e]), Number(exp_avg_sq.values[e]));
    sums.weights += static_cast<double>((master * master).value);
    sums.direction += static_cast<double>((direction * direction).value);
  }
}

} // namespace

} // namespace tessera::runtime
