// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arithmetic of AdamW, once, over the vectors of an instruction set. Only
// the per-ISA sources include this; each instantiates it with vectors of its
// own, so that no function compiled for one instruction set is shared with
// code that runs on any machine.
//
// [Note: the bits of AdamW]
// torch::optim::AdamW runs one ATen operator after the other. Compared with
// LibTorch 2.11's operators value by value, the AVX2 and AVX-512 builds of
// ATen's CPU kernels do this, in the vector body and in the tail alike, at any
// offset:
//   add_(g, alpha)        one fma: fma(g, alpha, m)
//   addcmul_(g, g, value) one multiplication, one fma: fma(value * g, g, v)
//   addcdiv_(m, d, value) not fused: p + (value * m) / d
//   div by a scalar       a true division, not a product with its inverse
//   scalars               rounded from double to the tensor's type, once
// ATen's baseline build (ATEN_CPU_CAPABILITY=default, or a processor without
// AVX2) fuses nothing and so gives other bits; here it is always the above.
// sqrt is the exception: ATen hands it to a vector math library, which on some
// processors is not correctly rounded (see libtorch_sqrt.h).
// The bits of a NaN are not part of the promise, that there is one is.

#include "tessera/runtime/kernels/adamw_shard.h"
#include "tessera/runtime/kernels/vec_loop.h"

#include <cstdint>

namespace tessera {

/// The AdamW update for one instruction set. All work on elements
/// [begin, end) of the shard.
template <typename T>
struct AdamWKernel {
  /// The whole update in one pass, with correctly rounded square roots.
  void (*step)(const AdamWShard<T>&, int64_t begin, int64_t end);
  /// The first half of the update: both moments.
  void (*moments)(const AdamWShard<T>&, int64_t begin, int64_t end);
  /// The second half: the weights. roots[0] is the square root of
  /// exp_avg_sq[begin].
  void (*weights)(
      const AdamWShard<T>&,
      const T* roots,
      int64_t begin,
      int64_t end);
};

namespace detail {

template <typename Vec>
class AdamWLoop {
 public:
  using T = typename Vec::Scalar;

  static AdamWKernel<T> kernel() {
    return {&step, &moments, &weights};
  }

 private:
  // A copy: through a reference, every store would force the compiler to read
  // the pointers again.
  const AdamWShard<T> shard_;
  Vec grad_scale_{Vec::broadcast(shard_.scalars.grad_scale)};
  Vec decay_{Vec::broadcast(shard_.scalars.decay)};
  Vec l2_{Vec::broadcast(shard_.scalars.l2)};
  bool has_l2_ = shard_.scalars.l2 != 0;
  Vec beta1_{Vec::broadcast(shard_.scalars.beta1)};
  Vec one_minus_beta1_{Vec::broadcast(shard_.scalars.one_minus_beta1)};
  Vec beta2_{Vec::broadcast(shard_.scalars.beta2)};
  Vec one_minus_beta2_{Vec::broadcast(shard_.scalars.one_minus_beta2)};
  Vec sqrt_bias2_{Vec::broadcast(shard_.scalars.sqrt_bias_correction2)};
  Vec eps_{Vec::broadcast(shard_.scalars.eps)};
  Vec minus_step_size_{Vec::broadcast(shard_.scalars.minus_step_size)};

  explicit AdamWLoop(const AdamWShard<T>& shard) : shard_(shard) {}

  template <typename... Count>
  Vec update_exp_avg(Vec grad, int64_t i, Count... count) const {
    Vec old = Vec::load(shard_.exp_avg + i, count...);
    Vec updated = fma(grad, one_minus_beta1_, old * beta1_);
    updated.store(shard_.exp_avg + i, count...);
    return updated;
  }

  template <typename... Count>
  Vec update_exp_avg_sq(Vec grad, int64_t i, Count... count) const {
    Vec old = Vec::load(shard_.exp_avg_sq + i, count...);
    Vec updated = fma(one_minus_beta2_ * grad, grad, old * beta2_);
    updated.store(shard_.exp_avg_sq + i, count...);
    return updated;
  }

  template <LowPrecision kFormat, typename... Count>
  void update_weights(Vec exp_avg, Vec root, int64_t i, Count... count) const {
    Vec denom = root / sqrt_bias2_ + eps_;
    Vec old = Vec::load(shard_.master + i, count...);
    Vec updated = old * decay_ + minus_step_size_ * exp_avg / denom;
    updated.store(shard_.master + i, count...);
    store_rounded<kFormat>(updated, shard_.low_precision, i, count...);
  }

  template <LowPrecision kFormat, typename... Count>
  Vec load_grad(int64_t i, Count... count) const {
    Vec grad = load_as<kFormat, Vec>(shard_.grad, i, count...) * grad_scale_;
    if (has_l2_) {
      grad = fma(Vec::load(shard_.master + i, count...), l2_, grad);
    }
    return grad;
  }

  static void step(const AdamWShard<T>& shard, int64_t begin, int64_t end) {
    const AdamWLoop loop(shard);
    with_format(shard.grad_format, [&]<LowPrecision kGrad>() {
      with_format(shard.low_precision_format, [&]<LowPrecision kFormat>() {
        for_each_vector<Vec>(begin, end, [&](int64_t i, auto... count) {
          loop.template prefetch_ahead<kGrad>(i);
          Vec grad = loop.template load_grad<kGrad>(i, count...);
          Vec exp_avg = loop.update_exp_avg(grad, i, count...);
          Vec exp_avg_sq = loop.update_exp_avg_sq(grad, i, count...);
          loop.template update_weights<kFormat>(
              exp_avg, sqrt(exp_avg_sq), i, count...);
        });
      });
    });
  }

  static void moments(const AdamWShard<T>& shard, int64_t begin, int64_t end) {
    const AdamWLoop loop(shard);
    with_format(shard.grad_format, [&]<LowPrecision kGrad>() {
      for_each_vector<Vec>(begin, end, [&](int64_t i, auto... count) {
        loop.template prefetch_ahead<kGrad>(i);
        Vec grad = loop.template load_grad<kGrad>(i, count...);
        loop.update_exp_avg(grad, i, count...);
        loop.update_exp_avg_sq(grad, i, count...);
      });
    });
  }

  static void weights(
      const AdamWShard<T>& shard,
      const T* roots,
      int64_t begin,
      int64_t end) {
    const AdamWLoop loop(shard);
    with_format(shard.low_precision_format, [&]<LowPrecision kFormat>() {
      for_each_vector<Vec>(begin, end, [&](int64_t i, auto... count) {
        Vec exp_avg = Vec::load(shard.exp_avg + i, count...);
        Vec root = Vec::load(roots + (i - begin), count...);
        loop.template update_weights<kFormat>(exp_avg, root, i, count...);
      });
    });
  }

  // The weights too: after the moments, their loads would start too late.
  template <LowPrecision kGrad>
  void prefetch_ahead(int64_t i) const {
    prefetch<Vec>(shard_.master + i);
    prefetch<Vec>(address_as<kGrad, Vec>(shard_.grad, i));
    prefetch<Vec>(shard_.exp_avg + i);
    prefetch<Vec>(shard_.exp_avg_sq + i);
  }
};

} // namespace detail

} // namespace tessera
