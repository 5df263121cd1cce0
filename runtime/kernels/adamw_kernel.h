// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdamWKernel` is the arithmetic of AdamW, written once for the vectors of any
// instruction set. Only the per-ISA sources include this; each instantiates it
// with its own vectors, so that no function compiled for one instruction set is
// shared with code that runs on any machine.
//
// [Note: the bits of AdamW] torch::optim::AdamW runs one ATen operator after
// another. The AVX2 and AVX-512 builds of ATen's CPU kernels, compared value by
// value with the operators of LibTorch 2.11, do the following, in the vector
// body and in the tail alike, at any offset:
//   add_(g, alpha)        one fma: fma(g, alpha, m)
//   addcmul_(g, g, value) one multiplication, one fma: fma(value * g, g, v)
//   addcdiv_(m, d, value) not fused: p + (value * m) / d
//   div by a scalar       a true division, not a product with its inverse
//   scalars               rounded from double to the tensor's type, once
// ATen's baseline build (ATEN_CPU_CAPABILITY=default, or a processor without
// AVX2) fuses nothing and gives different bits; the kernels here always do the
// above. sqrt is the exception: ATen calls a vector math library, which on some
// processors is off by one unit in the last place. Here it is correctly rounded
// (IEEE 754): the same bits on every machine, on CPU and on CUDA. NaNs appear
// in the same places, but their bits may differ.

#include "tessera/runtime/kernels/adam_moments.h"
#include "tessera/runtime/kernels/shard_lanes.h"

#include <cstdint>

namespace tessera::runtime {

namespace detail {

template <typename Vec>
class AdamWLoop {
 public:
  using T = typename Vec::Scalar;

  /// An AdamWKernel.
  static bool step(const AdamWShard<T>& shard, int64_t begin, int64_t end) {
    const AdamWLoop shared(shard.scalars);
    return with_lanes<Vec>(shard, [&](auto lanes) {
      const AdamWLoop loop = shared; // see ShardLanes
      for_each_vector<Vec>(begin, end, [&](int64_t i, auto... count) {
        prefetch_all(lanes, i);
        Vec master = lanes.master(i, count...);
        Vec grad = loop.with_l2(lanes.grad(i, count...), master);
        Vec exp_avg = lanes.moment(i, count...);
        Vec exp_avg_sq = lanes.moment_sq(i, count...);
        loop.moments_.update(grad, exp_avg, exp_avg_sq);
        master = loop.new_master(master, exp_avg, sqrt(exp_avg_sq));
        lanes.store_moment(exp_avg, i, count...);
        lanes.store_moment_sq(exp_avg_sq, i, count...);
        lanes.store_master(master, i, count...);
      });
      return lanes.grads_finite();
    });
  }

 private:
  Vec decay_;
  Vec l2_;
  bool has_l2_;
  Vec minus_step_size_;
  AdamMoments<Vec> moments_;

  explicit AdamWLoop(const AdamWScalars<T>& s)
      : decay_(Vec::broadcast(s.decay)),
        l2_(Vec::broadcast(s.l2)),
        has_l2_(s.l2 != 0),
        minus_step_size_(Vec::broadcast(s.minus_step_size)),
        moments_(s) {}

  Vec with_l2(Vec grad, Vec master) const {
    return has_l2_ ? fma(master, l2_, grad) : grad;
  }

  Vec new_master(Vec master, Vec exp_avg, Vec root) const {
    return master * decay_ +
           minus_step_size_ * exp_avg / moments_.denominator(root);
  }

  // Includes the weights: after the moments, their loads would start too late.
  template <typename Lanes>
  static void prefetch_all(const Lanes& lanes, int64_t i) {
    lanes.prefetch_master(i);
    lanes.prefetch_moment(i);
    lanes.prefetch_moment_sq(i);
    lanes.prefetch_grad(i);
  }
};

} // namespace detail

} // namespace tessera::runtime
