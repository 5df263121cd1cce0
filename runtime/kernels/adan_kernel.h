// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdanLoop` is the arithmetic of Adan, written once for the vectors of any
// instruction set. Only the per-ISA sources include this, see vec_loop.h.

#include "tessera/runtime/kernels/adan_shard.h"
#include "tessera/runtime/kernels/shard_lanes.h"

#include <cstdint>

namespace tessera::runtime {

namespace detail {

template <typename Vec>
class AdanLoop {
 public:
  using T = typename Vec::Scalar;

  /// One step, on elements [begin, end) of the shard. Returns whether their
  /// gradients were all finite.
  static bool step(const AdanShard<T>& shard, int64_t begin, int64_t end) {
    const AdanLoop shared(shard.scalars);
    return with_lanes<Vec>(shard, [&](auto lanes) {
      const AdanLoop loop = shared; // see ShardLanes
      for_each_vector<Vec>(begin, end, [&](int64_t i, auto... count) {
        lanes.prefetch_master(i);
        lanes.prefetch_moment(i);
        lanes.prefetch_moment_sq(i);
        lanes.prefetch_moment_diff(i);
        lanes.prefetch_previous_grad(i);
        lanes.prefetch_grad(i);
        Vec master = lanes.master(i, count...);
        Vec grad = lanes.grad(i, count...);
        Vec exp_avg = lanes.moment(i, count...);
        Vec exp_avg_sq = lanes.moment_sq(i, count...);
        Vec exp_avg_diff = lanes.moment_diff(i, count...);
        const Vec diff = loop.is_first_
                             ? Vec::broadcast(0)
                             : grad - lanes.previous_grad(i, count...);
        loop.update(grad, diff, exp_avg, exp_avg_sq, exp_avg_diff);
        master = loop.new_master(master, exp_avg, exp_avg_sq, exp_avg_diff);
        lanes.store_moment(exp_avg, i, count...);
        lanes.store_moment_sq(exp_avg_sq, i, count...);
        lanes.store_moment_diff(exp_avg_diff, i, count...);
        lanes.store_previous_grad(grad, i, count...);
        lanes.store_master(master, i, count...);
      });
      return lanes.grads_finite();
    });
  }

 private:
  Vec beta1_;
  Vec one_minus_beta1_;
  Vec beta2_;
  Vec one_minus_beta2_;
  Vec beta3_;
  Vec one_minus_beta3_;
  Vec sqrt_bias_correction3_;
  Vec eps_;
  Vec minus_step_size_;
  Vec minus_step_size_diff_;
  Vec decay_;
  Vec divisor_;
  bool is_first_;

  explicit AdanLoop(const AdanScalars<T>& s)
      : beta1_(Vec::broadcast(s.beta1)),
        one_minus_beta1_(Vec::broadcast(s.one_minus_beta1)),
        beta2_(Vec::broadcast(s.beta2)),
        one_minus_beta2_(Vec::broadcast(s.one_minus_beta2)),
        beta3_(Vec::broadcast(s.beta3)),
        one_minus_beta3_(Vec::broadcast(s.one_minus_beta3)),
        sqrt_bias_correction3_(Vec::broadcast(s.sqrt_bias_correction3)),
        eps_(Vec::broadcast(s.eps)),
        minus_step_size_(Vec::broadcast(s.minus_step_size)),
        minus_step_size_diff_(Vec::broadcast(s.minus_step_size_diff)),
        decay_(Vec::broadcast(s.decay)),
        divisor_(Vec::broadcast(s.divisor)),
        is_first_(s.is_first) {}

  void update(
      Vec grad,
      Vec diff,
      Vec& exp_avg,
      Vec& exp_avg_sq,
      Vec& exp_avg_diff) const {
    const Vec ahead = fma(diff, beta2_, grad);
    exp_avg = fma(grad, one_minus_beta1_, exp_avg * beta1_);
    exp_avg_diff = fma(diff, one_minus_beta2_, exp_avg_diff * beta2_);
    exp_avg_sq = fma(one_minus_beta3_ * ahead, ahead, exp_avg_sq * beta3_);
  }

  Vec new_master(Vec master, Vec exp_avg, Vec exp_avg_sq, Vec exp_avg_diff)
      const {
    const Vec direction =
        fma(exp_avg_diff, minus_step_size_diff_, exp_avg * minus_step_size_);
    const Vec denominator = sqrt(exp_avg_sq) / sqrt_bias_correction3_ + eps_;
    return (master * decay_ + direction / denominator) / divisor_;
  }
};

} // namespace detail

} // namespace tessera::runtime
