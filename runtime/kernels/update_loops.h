// SPDX-License-Identifier: Apache-2.0
#pragma once
// `update_kernels()` applies the rules of update_rules.h to arrays, with the
// vectors of an instruction set. Only the per-ISA sources include this, see
// vec_loop.h.

#include "tessera/runtime/kernels/shard_vectors.h"
#include "tessera/runtime/kernels/update_kernels.h"

#include <algorithm>
#include <cstdint>

namespace tessera::runtime::detail {

/// An UpdateKernel.
template <typename Vec, typename Shard>
bool update_range(const Shard& shard, int64_t begin, int64_t end) {
  using Rule = typename Shard::Rule;
  return with_lanes<Vec>(shard, [&](auto lanes) {
    const Rule rule = shard.rule; // see ShardVectors
    const auto step = [&]<int kStates>() {
      for_each_vector<Vec>(begin, end, [&](int64_t i, auto... count) {
        lanes.template prefetch_all<kStates>(i);
        Vec master = lanes.master(i, count...);
        const Vec grad = lanes.grad(i, count...);
        Vec state[std::max(kStates, 1)];
        if constexpr (kStates == 0) {
          rule.update(master, grad);
        } else {
          for (int k = 0; k < kStates; ++k) {
            state[k] = lanes.state(k, i, count...);
          }
          rule.update(master, grad, state);
        }
        lanes.template store_all<kStates>(state, master, i, count...);
      });
      return lanes.grads_finite();
    };
    if constexpr (requires { Rule::kMayHaveNoState; }) {
      if (shard.states[0] == nullptr) {
        return step.template operator()<0>();
      }
    }
    return step.template operator()<Rule::kStates>();
  });
}

template <typename Vec>
double total(Vec values) {
  typename Vec::Scalar lanes[Vec::kWidth];
  values.store(lanes);
  double sum = 0;
  for (const auto lane : lanes) {
    sum += static_cast<double>(lane);
  }
  return sum;
}

/// The first half of LAMB: the moments, and the sums of squares of weights and
/// direction.
template <typename Vec>
LambSums lamb_moments(
    const LambShard<typename Vec::Scalar>& shard,
    int64_t begin,
    int64_t end) {
  return with_lanes<Vec, true, false>(shard, [&](auto lanes) {
    const auto rule = shard.rule; // see ShardVectors
    LambSums sums;
    // Sums over a few vectors are accurate enough in T; longer ones are not.
    constexpr int64_t kBlock = 16 * Vec::kWidth;
    for (int64_t block = begin; block < end; block += kBlock) {
      Vec weights = 0;
      Vec direction = 0;
      const int64_t stop = std::min(block + kBlock, end);
      for_each_vector<Vec>(block, stop, [&](int64_t i, auto... count) {
        const Vec master = lanes.master(i, count...);
        Vec exp_avg = lanes.state(0, i, count...);
        Vec exp_avg_sq = lanes.state(1, i, count...);
        rule.update_moments(lanes.grad(i, count...), exp_avg, exp_avg_sq);
        const Vec moments[] = {exp_avg, exp_avg_sq};
        lanes.template store_states<2>(moments, i, count...);
        // Uses the stored moments, because the second half reads those.
        const Vec step = rule.direction(
            master, lanes.state(0, i, count...), lanes.state(1, i, count...));
        weights = fma(master, master, weights);
        direction = fma(step, step, direction);
      });
      sums.weights += total(weights);
      sums.direction += total(direction);
    }
    sums.grads_finite = lanes.grads_finite();
    return sums;
  });
}

/// The second half: updates the weights, with the rate that follows from the
/// norms.
template <typename Vec>
void lamb_weights(
    const LambShard<typename Vec::Scalar>& shard,
    int64_t begin,
    int64_t end) {
  with_lanes<Vec, false>(shard, [&](auto lanes) {
    const auto rule = shard.rule; // see ShardVectors
    for_each_vector<Vec>(begin, end, [&](int64_t i, auto... count) {
      const Vec master = lanes.master(i, count...);
      const Vec step = rule.direction(
          master, lanes.state(0, i, count...), lanes.state(1, i, count...));
      lanes.store_master(fma(step, rule.minus_lr, master), i, count...);
    });
  });
}

template <typename Vec>
void widen(
    const uint16_t* bits,
    LowPrecision format,
    int64_t count,
    typename Vec::Scalar* values) {
  with_format(format, [&]<LowPrecision kFormat>() {
    if constexpr (kFormat != LowPrecision::kNone) {
      for_each_vector<Vec>(0, count, [&](int64_t i, auto... rest) {
        load_as<kFormat, Vec>(bits, i, rest...).store(values + i, rest...);
      });
    }
  });
}

template <typename Vec, typename... Steps>
UpdateKernels<typename Vec::Scalar> update_kernels(StepList<Steps...>) {
  using T = typename Vec::Scalar;
  return {
      {&update_range<Vec, ShardOf<T, Steps>>}...,
      &lamb_moments<Vec>,
      &lamb_weights<Vec>,
      &widen<Vec>};
}

} // namespace tessera::runtime::detail
