// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LambLoop` is the arithmetic of LAMB, written once for the vectors of any
// instruction set. Only the per-ISA sources include this, see vec_loop.h.

#include "tessera/runtime/kernels/adam_moments.h"
#include "tessera/runtime/kernels/lamb_shard.h"
#include "tessera/runtime/kernels/shard_lanes.h"

#include <algorithm>
#include <cstdint>

namespace tessera::runtime {

namespace detail {

template <typename Vec>
class LambLoop {
 public:
  using T = typename Vec::Scalar;

  /// The first half: the moments, and the sums of squares of weights and
  /// direction.
  static LambSums moments(
      const LambShard<T>& shard,
      int64_t begin,
      int64_t end) {
    const LambLoop shared(shard.scalars);
    return with_lanes<Vec, true, false>(shard, [&](auto lanes) {
      const LambLoop loop = shared; // see ShardLanes
      LambSums sums;
      // Sums over a few vectors are accurate enough in T; longer ones are not.
      constexpr int64_t kBlock = 16 * Vec::kWidth;
      for (int64_t block = begin; block < end; block += kBlock) {
        Vec weights = Vec::broadcast(0);
        Vec direction = Vec::broadcast(0);
        const int64_t stop = std::min(block + kBlock, end);
        for_each_vector<Vec>(block, stop, [&](int64_t i, auto... count) {
          Vec master = lanes.master(i, count...);
          Vec exp_avg = lanes.moment(i, count...);
          Vec exp_avg_sq = lanes.moment_sq(i, count...);
          loop.moments_.update(lanes.grad(i, count...), exp_avg, exp_avg_sq);
          lanes.store_moment(exp_avg, i, count...);
          lanes.store_moment_sq(exp_avg_sq, i, count...);
          // Uses the stored moments, because the second half reads those.
          Vec step = loop.direction(
              master, lanes.moment(i, count...), lanes.moment_sq(i, count...));
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
  static void weights(const LambShard<T>& shard, int64_t begin, int64_t end) {
    const LambLoop shared(shard.scalars);
    with_lanes<Vec, false>(shard, [&](auto lanes) {
      const LambLoop loop = shared; // see ShardLanes
      for_each_vector<Vec>(begin, end, [&](int64_t i, auto... count) {
        Vec master = lanes.master(i, count...);
        Vec step = loop.direction(
            master, lanes.moment(i, count...), lanes.moment_sq(i, count...));
        lanes.store_master(fma(step, loop.minus_lr_, master), i, count...);
      });
    });
  }

 private:
  AdamMoments<Vec> moments_;
  Vec bias_correction1_;
  Vec weight_decay_;
  Vec minus_lr_;

  explicit LambLoop(const LambScalars<T>& s)
      : moments_(s),
        bias_correction1_(Vec::broadcast(s.bias_correction1)),
        weight_decay_(Vec::broadcast(s.weight_decay)),
        minus_lr_(Vec::broadcast(s.minus_lr)) {}

  Vec direction(Vec master, Vec exp_avg, Vec exp_avg_sq) const {
    Vec denominator = moments_.denominator(sqrt(exp_avg_sq));
    return fma(
        master, weight_decay_, exp_avg / bias_correction1_ / denominator);
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

} // namespace tessera::runtime
