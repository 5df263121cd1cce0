// SPDX-License-Identifier: Apache-2.0
#pragma once
// The update rules of the optimizers for kWidth neighboring elements on CUDA,
// with the arithmetic of adamw_kernel.h, update_kernel.h, adan_kernel.h and
// lamb_kernel.h.
// `grad_scale` is grad_scale_of() the shard.

#include "tessera/runtime/kernels/adamw_shard.h"
#include "tessera/runtime/kernels/adan_shard.h"
#include "tessera/runtime/kernels/lamb_shard.h"
#include "tessera/runtime/kernels/update_math.cuh"
#include "tessera/runtime/kernels/update_shard.h"

namespace tessera::runtime {

namespace {

template <int kWidth, typename T>
__device__ void update_pack(
    const AdamWShard<T>& shard,
    T grad_scale,
    int64_t i) {
  const AdamWScalars<T>& s = shard.scalars;
  const ShardPacks<kWidth, AdamWShard<T>> packs{shard, i};
  auto master = packs.master();
  auto grad = packs.grad();
  auto exp_avg = packs.moment();
  auto exp_avg_sq = packs.moment_sq();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    T& p = master.values[k];
    T& m = exp_avg.values[k];
    T& v = exp_avg_sq.values[k];
    T g = mul(grad.values[k], grad_scale);
    if (s.l2 != 0) {
      g = fused(p, s.l2, g);
    }
    m = fused(g, s.one_minus_beta1, mul(m, s.beta1));
    v = fused(mul(s.one_minus_beta2, g), g, mul(v, s.beta2));
    const T denom = add(div(root(v), s.sqrt_bias_correction2), s.eps);
    p = add(mul(p, s.decay), div(mul(s.minus_step_size, m), denom));
  }
  packs.store_master(master);
  packs.store_moment(exp_avg);
  packs.store_moment_sq(exp_avg_sq);
}

template <int kWidth, typename T>
__device__ void update_pack(const SgdShard<T>& shard, T grad_scale, int64_t i) {
  const SgdScalars<T>& s = shard.scalars;
  const ShardPacks<kWidth, SgdShard<T>> packs{shard, i};
  auto master = packs.master();
  auto grad = packs.grad();
  Pack<T, kWidth> moment = grad;
  if (shard.moment != nullptr) {
    moment = packs.moment();
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    T& p = master.values[k];
    T& m = moment.values[k];
    T g = mul(grad.values[k], grad_scale);
    if (s.weight_decay != 0) {
      g = fused(p, s.weight_decay, g);
    }
    T direction = g;
    if (shard.moment != nullptr) {
      m = fused(g, s.one_minus_dampening, mul(m, s.momentum));
      direction = s.nesterov ? fused(m, s.momentum, g) : m;
    }
    p = fused(direction, s.minus_lr, p);
  }
  packs.store_master(master);
  if (shard.moment != nullptr) {
    packs.store_moment(moment);
  }
}

template <int kWidth, typename T>
__device__ void update_pack(
    const LionShard<T>& shard,
    T grad_scale,
    int64_t i) {
  const LionScalars<T>& s = shard.scalars;
  const ShardPacks<kWidth, LionShard<T>> packs{shard, i};
  auto master = packs.master();
  auto grad = packs.grad();
  auto moment = packs.moment();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    T& p = master.values[k];
    T& m = moment.values[k];
    const T g = mul(grad.values[k], grad_scale);
    const T direction = sign(fused(g, s.one_minus_beta1, mul(m, s.beta1)));
    m = fused(g, s.one_minus_beta2, mul(m, s.beta2));
    p = fused(direction, s.minus_lr, mul(p, s.decay));
  }
  packs.store_master(master);
  packs.store_moment(moment);
}

template <int kWidth, typename T>
__device__ void update_pack(
    const AdanShard<T>& shard,
    T grad_scale,
    int64_t i) {
  const AdanScalars<T>& s = shard.scalars;
  const ShardPacks<kWidth, AdanShard<T>> packs{shard, i};
  auto master = packs.master();
  auto grad = packs.grad();
  auto exp_avg = packs.moment();
  auto exp_avg_sq = packs.moment_sq();
  auto exp_avg_diff = packs.moment_diff();
  const auto previous_grad = packs.previous_grad();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    T& p = master.values[k];
    T& g = grad.values[k];
    T& m = exp_avg.values[k];
    T& v = exp_avg_sq.values[k];
    T& d = exp_avg_diff.values[k];
    g = mul(g, grad_scale);
    const T diff = s.is_first ? T{0} : add(g, -previous_grad.values[k]);
    const T ahead = fused(diff, s.beta2, g);
    m = fused(g, s.one_minus_beta1, mul(m, s.beta1));
    d = fused(diff, s.one_minus_beta2, mul(d, s.beta2));
    v = fused(mul(s.one_minus_beta3, ahead), ahead, mul(v, s.beta3));
    const T direction =
        fused(d, s.minus_step_size_diff, mul(m, s.minus_step_size));
    const T denom = add(div(root(v), s.sqrt_bias_correction3), s.eps);
    p = div(add(mul(p, s.decay), div(direction, denom)), s.divisor);
  }
  packs.store_master(master);
  packs.store_moment(exp_avg);
  packs.store_moment_sq(exp_avg_sq);
  packs.store_moment_diff(exp_avg_diff);
  packs.store_previous_grad(grad);
}

template <typename T>
__device__ T lamb_direction(const LambScalars<T>& s, T p, T m, T v) {
  const T denom = add(div(root(v), s.sqrt_bias_correction2), s.eps);
  return fused(p, s.weight_decay, div(div(m, s.bias_correction1), denom));
}

/// The second half of LAMB.
template <int kWidth, typename T>
__device__ void update_pack(
    const LambShard<T>& shard,
    T /*grad_scale*/,
    int64_t i) {
  const LambScalars<T>& s = shard.scalars;
  const T minus_lr = s.lr_factor == nullptr
                         ? s.minus_lr
                         : static_cast<T>(-mul(s.lr, *s.lr_factor));
  const ShardPacks<kWidth, LambShard<T>> packs{shard, i};
  auto master = packs.master();
  const auto exp_avg = packs.moment();
  const auto exp_avg_sq = packs.moment_sq();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    T& p = master.values[k];
    const T direction =
        lamb_direction(s, p, exp_avg.values[k], exp_avg_sq.values[k]);
    p = fused(direction, minus_lr, p);
  }
  packs.store_master(master);
}

/// The first half of LAMB; adds the squares to `sums`.
template <int kWidth, typename T>
__device__ void lamb_moments_pack(
    const LambShard<T>& shard,
    T grad_scale,
    int64_t i,
    LambSums& sums) {
  const LambScalars<T>& s = shard.scalars;
  const ShardPacks<kWidth, LambShard<T>> packs{shard, i};
  const auto master = packs.master();
  const auto grad = packs.grad();
  auto exp_avg = packs.moment();
  auto exp_avg_sq = packs.moment_sq();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    T& m = exp_avg.values[k];
    T& v = exp_avg_sq.values[k];
    const T g = mul(grad.values[k], grad_scale);
    m = fused(g, s.one_minus_beta1, mul(m, s.beta1));
    v = fused(mul(s.one_minus_beta2, g), g, mul(v, s.beta2));
  }
  packs.store_moment(exp_avg);
  packs.store_moment_sq(exp_avg_sq);
  // Uses the stored moments, because the second half reads those.
  exp_avg = packs.moment();
  exp_avg_sq = packs.moment_sq();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const T p = master.values[k];
    const T direction =
        lamb_direction(s, p, exp_avg.values[k], exp_avg_sq.values[k]);
    sums.weights += static_cast<double>(mul(p, p));
    sums.direction += static_cast<double>(mul(direction, direction));
  }
}

} // namespace

} // namespace tessera::runtime
