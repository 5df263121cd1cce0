// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arithmetic of LAMB, once, over the vectors of an instruction set. Only
// the per-ISA sources include this, see vec_loop.h.

#include "tessera/runtime/kernels/lamb_shard.h"
#include "tessera/runtime/kernels/vec_loop.h"

#include <algorithm>
#include <cstdint>

namespace tessera {

namespace detail {

template <typename Vec>
class LambLoop {
 public:
  using T = typename Vec::Scalar;

  /// The first half: the moments, and the squares of weights and direction.
  static LambSums moments(
      const LambShard<T>& shard,
      int64_t begin,
      int64_t end) {
    const LambLoop loop(shard);
    LambSums sums;
    with_format(shard.grad_format, [&]<LowPrecision kGrad>() {
      // Vectors of a few squares are exact enough; more of them are not.
      constexpr int64_t kBlock = 16 * Vec::kWidth;
      for (int64_t block = begin; block < end; block += kBlock) {
        Vec weights = Vec::broadcast(0);
        Vec direction = Vec::broadcast(0);
        const int64_t stop = std::min(block + kBlock, end);
        for_each_vector<Vec>(block, stop, [&](int64_t i, auto... count) {
          Vec master = Vec::load(loop.shard_.master + i, count...);
          Vec step = loop.template update<kGrad>(master, i, count...);
          weights = fma(master, master, weights);
          direction = fma(step, step, direction);
        });
        sums.weights += total(weights);
        sums.direction += total(direction);
      }
    });
    return sums;
  }

  /// The second half: the weights, at the rate that the norms gave.
  static void weights(const LambShard<T>& shard, int64_t begin, int64_t end) {
    const LambLoop loop(shard);
    with_format(shard.low_precision_format, [&]<LowPrecision kFormat>() {
      for_each_vector<Vec>(begin, end, [&](int64_t i, auto... count) {
        Vec master = Vec::load(loop.shard_.master + i, count...);
        Vec exp_avg = Vec::load(loop.shard_.exp_avg + i, count...);
        Vec exp_avg_sq = Vec::load(loop.shard_.exp_avg_sq + i, count...);
        Vec step = loop.direction(master, exp_avg, exp_avg_sq);
        Vec updated = fma(step, loop.minus_lr_, master);
        updated.store(loop.shard_.master + i, count...);
        store_rounded<kFormat>(updated, loop.shard_.low_precision, i, count...);
      });
    });
  }

 private:
  const LambShard<T> shard_; // a copy, see AdamWLoop
  Vec grad_scale_{Vec::broadcast(shard_.scalars.grad_scale)};
  Vec beta1_{Vec::broadcast(shard_.scalars.beta1)};
  Vec one_minus_beta1_{Vec::broadcast(shard_.scalars.one_minus_beta1)};
  Vec beta2_{Vec::broadcast(shard_.scalars.beta2)};
  Vec one_minus_beta2_{Vec::broadcast(shard_.scalars.one_minus_beta2)};
  Vec bias1_{Vec::broadcast(shard_.scalars.bias_correction1)};
  Vec sqrt_bias2_{Vec::broadcast(shard_.scalars.sqrt_bias_correction2)};
  Vec eps_{Vec::broadcast(shard_.scalars.eps)};
  Vec weight_decay_{Vec::broadcast(shard_.scalars.weight_decay)};
  Vec minus_lr_{Vec::broadcast(shard_.scalars.minus_lr)};

  explicit LambLoop(const LambShard<T>& shard) : shard_(shard) {}

  Vec direction(Vec master, Vec exp_avg, Vec exp_avg_sq) const {
    Vec denom = sqrt(exp_avg_sq) / sqrt_bias2_ + eps_;
    return fma(master, weight_decay_, exp_avg / bias1_ / denom);
  }

  template <LowPrecision kGrad, typename... Count>
  Vec update(Vec master, int64_t i, Count... count) const {
    Vec grad = load_as<kGrad, Vec>(shard_.grad, i, count...) * grad_scale_;
    Vec exp_avg = Vec::load(shard_.exp_avg + i, count...);
    exp_avg = fma(grad, one_minus_beta1_, exp_avg * beta1_);
    exp_avg.store(shard_.exp_avg + i, count...);
    Vec exp_avg_sq = Vec::load(shard_.exp_avg_sq + i, count...);
    exp_avg_sq = fma(one_minus_beta2_ * grad, grad, exp_avg_sq * beta2_);
    exp_avg_sq.store(shard_.exp_avg_sq + i, count...);
    return direction(master, exp_avg, exp_avg_sq);
  }

  static double total(Vec values) {
    T lanes[Vec::kWidth];
    values.store(lanes);
    double sum = 0;
    for (const T lane : lanes) {
      sum += static_cast<double>(lane);
    }
    return sum;
  }
};

} // namespace detail

} // namespace tessera
