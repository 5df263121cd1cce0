// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateKernels` is the arithmetic of SGD and Lion, written once for the
// vectors of any instruction set. Only the per-ISA sources include this, see
// vec_loop.h. SGD has the operations and rounding of torch::optim::SGD, as
// described in [Note: the bits of AdamW]: one fma for every add_(x, alpha).

#include "tessera/runtime/kernels/adan_kernel.h"
#include "tessera/runtime/kernels/lamb_kernel.h"
#include "tessera/runtime/kernels/shard_lanes.h"
#include "tessera/runtime/kernels/update_shard.h"

#include <cstdint>

namespace tessera::runtime {

/// The updates for one instruction set, on elements [begin, end) of the shard.
/// They return whether the gradients of these were all finite.
template <typename T>
struct UpdateKernels {
  bool (*sgd)(const SgdShard<T>&, int64_t begin, int64_t end);
  bool (*lion)(const LionShard<T>&, int64_t begin, int64_t end);
  bool (*adan)(const AdanShard<T>&, int64_t begin, int64_t end);
  LambSums (*lamb_moments)(const LambShard<T>&, int64_t begin, int64_t end);
  void (*lamb_weights)(const LambShard<T>&, int64_t begin, int64_t end);
  /// Converts 16-bit values to T, exactly. @param format not kNone.
  void (*widen)(
      const uint16_t* bits,
      LowPrecision format,
      int64_t count,
      T* values);
};

namespace detail {

template <typename Vec>
struct SgdRule {
  Vec momentum;
  Vec one_minus_dampening;
  Vec weight_decay;
  Vec minus_lr;
  bool has_decay;
  bool nesterov;

  template <typename Scalars>
  explicit SgdRule(const Scalars& s)
      : momentum(Vec::broadcast(s.momentum)),
        one_minus_dampening(Vec::broadcast(s.one_minus_dampening)),
        weight_decay(Vec::broadcast(s.weight_decay)),
        minus_lr(Vec::broadcast(s.minus_lr)),
        has_decay(s.weight_decay != 0),
        nesterov(s.nesterov) {}

  Vec decayed(Vec master, Vec grad) const {
    return has_decay ? fma(master, weight_decay, grad) : grad;
  }
  Vec without_moment(Vec master, Vec grad) const {
    return fma(decayed(master, grad), minus_lr, master);
  }
  Vec with_moment(Vec master, Vec grad, Vec& moment) const {
    grad = decayed(master, grad);
    moment = fma(grad, one_minus_dampening, moment * momentum);
    Vec direction = nesterov ? fma(moment, momentum, grad) : moment;
    return fma(direction, minus_lr, master);
  }
};

template <typename Vec>
struct LionRule {
  Vec decay;
  Vec beta1;
  Vec one_minus_beta1;
  Vec beta2;
  Vec one_minus_beta2;
  Vec minus_lr;

  template <typename Scalars>
  explicit LionRule(const Scalars& s)
      : decay(Vec::broadcast(s.decay)),
        beta1(Vec::broadcast(s.beta1)),
        one_minus_beta1(Vec::broadcast(s.one_minus_beta1)),
        beta2(Vec::broadcast(s.beta2)),
        one_minus_beta2(Vec::broadcast(s.one_minus_beta2)),
        minus_lr(Vec::broadcast(s.minus_lr)) {}

  Vec with_moment(Vec master, Vec grad, Vec& moment) const {
    Vec direction = sign(fma(grad, one_minus_beta1, moment * beta1));
    moment = fma(grad, one_minus_beta2, moment * beta2);
    return fma(direction, minus_lr, master * decay);
  }
};

template <typename Vec, template <typename> typename Rule, typename Shard>
bool update_range(const Shard& shard, int64_t begin, int64_t end) {
  const Rule<Vec> shared(shard.scalars);
  return with_lanes<Vec>(shard, [&](auto lanes) {
    const Rule<Vec> rule = shared; // see ShardLanes
    const auto step = [&]<bool kMoment>() {
      for_each_vector<Vec>(begin, end, [&](int64_t i, auto... count) {
        lanes.prefetch_master(i);
        lanes.prefetch_grad(i);
        Vec grad = lanes.grad(i, count...);
        Vec master = lanes.master(i, count...);
        if constexpr (kMoment) {
          lanes.prefetch_moment(i);
          Vec moment = lanes.moment(i, count...);
          master = rule.with_moment(master, grad, moment);
          lanes.store_moment(moment, i, count...);
        } else {
          master = rule.without_moment(master, grad);
        }
        lanes.store_master(master, i, count...);
      });
      return lanes.grads_finite();
    };
    if constexpr (requires(Vec v) { rule.without_moment(v, v); }) {
      if (shard.moment == nullptr) {
        return step.template operator()<false>();
      }
    }
    return step.template operator()<true>();
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

template <typename Vec>
UpdateKernels<typename Vec::Scalar> update_kernels() {
  using T = typename Vec::Scalar;
  return {
      &update_range<Vec, SgdRule, SgdShard<T>>,
      &update_range<Vec, LionRule, LionShard<T>>,
      &AdanLoop<Vec>::step,
      &LambLoop<Vec>::moments,
      &LambLoop<Vec>::weights,
      &widen<Vec>};
}

} // namespace detail

} // namespace tessera::runtime
