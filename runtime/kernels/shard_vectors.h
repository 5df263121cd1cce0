// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardVectors` loads and stores the arrays of a shard as vectors of one type,
// whatever their storage formats. Only the per-ISA sources include this, see
// vec_loop.h.

#include "tessera/runtime/kernels/flat_shard.h"
#include "tessera/runtime/kernels/vec_loop.h"

namespace tessera::runtime::detail {

/// Loads widen, stores round. The formats are template parameters.
///
/// A loop keeps this object, and its rule, in local variables of its own
/// function. Through a reference, the compiler would have to read
/// them again after every store.
template <
    typename Vec,
    typename Shard,
    LowPrecision kGrad,
    LowPrecision kState,
    LowPrecision kLow>
class ShardVectors {
 public:
  explicit ShardVectors(const Shard& shard)
      : shard_(shard), grad_scale_(shard.rule.grad_scale) {}

  template <typename... Count>
  Vec master(int64_t i, Count... count) const {
    return Vec::load(shard_.master + i, count...);
  }
  /// Multiplied by grad_scale. Checks before that whether it is finite.
  template <typename... Count>
  Vec grad(int64_t i, Count... count) {
    Vec grad = load_as<kGrad, Vec>(shard_.grad, i, count...);
    not_finite_ = fma(grad, 0, not_finite_);
    return grad * grad_scale_;
  }
  template <typename... Count>
  Vec state(int k, int64_t i, Count... count) const {
    return load_as<kState, Vec>(shard_.states[k], i, count...);
  }

  template <int kStates, typename... Count>
  void store_states(const Vec* state, int64_t i, Count... count) const {
    with_rounding<kState>([&]<bool kStochastic>() {
      put_states<kStates, kStochastic>(state, i, count...);
    });
  }
  /// Stores the master and its rounded copy.
  template <typename... Count>
  void store_master(Vec master, int64_t i, Count... count) const {
    master.store(shard_.master + i, count...);
    with_rounding<kLow>(
        [&]<bool kStochastic>() { put_low<kStochastic>(master, i, count...); });
  }
  /// Both, with one branch for all that is rounded to bfloat16.
  template <int kStates, typename... Count>
  void store_all(const Vec* state, Vec master, int64_t i, Count... count)
      const {
    if constexpr (kState == LowPrecision::kNone) {
      store_states<kStates>(state, i, count...);
      store_master(master, i, count...);
    } else {
      master.store(shard_.master + i, count...);
      with_rounding<kState>([&]<bool kStochastic>() {
        put_states<kStates, kStochastic>(state, i, count...);
        put_low<kStochastic>(master, i, count...);
      });
    }
  }

  /// Includes the weights: after the states, their loads would start too late.
  template <int kStates>
  void prefetch_all(int64_t i) const {
    prefetch<Vec>(shard_.master + i);
    for (int k = 0; k < kStates; ++k) {
      prefetch<Vec>(address_as<kState, Vec>(shard_.states[k], i));
    }
    prefetch<Vec>(address_as<kGrad, Vec>(shard_.grad, i));
  }

  /// Whether all gradients so far were finite.
  bool grads_finite() const {
    typename Vec::Scalar lanes[Vec::kWidth];
    not_finite_.store(lanes);
    for (const auto lane : lanes) {
      if (lane != 0) {
        return false;
      }
    }
    return true;
  }

 private:
  /// Calls body with the rounding to this format as a template argument.
  template <LowPrecision kFormat, typename Body>
  void with_rounding(Body body) const {
    if constexpr (kFormat == LowPrecision::kBFloat16) {
      if (shard_.rounding.enabled) {
        body.template operator()<true>();
        return;
      }
    }
    body.template operator()<false>();
  }
  template <int kStates, bool kStochastic, typename... Count>
  void put_states(const Vec* state, int64_t i, Count... count) const {
    for (int k = 0; k < kStates; ++k) {
      store_as<kState, kStochastic>(
          state[k], shard_.states[k], 1 + k, i, count...);
    }
  }
  template <bool kStochastic, typename... Count>
  void put_low(Vec master, int64_t i, Count... count) const {
    if constexpr (kLow != LowPrecision::kNone) {
      store_as<kLow, kStochastic>(master, shard_.low_precision, 0, i, count...);
    }
  }
  template <LowPrecision kFormat, bool kStochastic, typename... Count>
  void store_as(Vec values, void* array, int number, int64_t i, Count... count)
      const {
    if constexpr (kFormat == LowPrecision::kNone) {
      values.store(static_cast<typename Vec::Scalar*>(array) + i, count...);
    } else if constexpr (kFormat == LowPrecision::kFloat16) {
      values.store_float16(static_cast<uint16_t*>(array) + i, count...);
    } else {
      auto* bits = static_cast<uint16_t*>(array) + i;
      if constexpr (kStochastic) {
        const RoundingKey& key = shard_.rounding;
        const auto first = static_cast<uint32_t>(key.first + i);
        const auto noise = Vec::noise(key.key0, second_key(key, number), first);
        values.store_bfloat16_with(noise, bits, count...);
      } else {
        values.store_bfloat16(bits, count...);
      }
    }
  }

  // A copy: through a reference, the compiler would have to read the pointers
  // again after every store.
  const Shard shard_;
  const Vec grad_scale_;
  // Zero, or NaN once a gradient was not finite.
  Vec not_finite_ = Vec(0);
};

/// Calls body with the lanes of a shard.
/// @tparam kReadsGrad, kWritesMaster what body does; without these no code is
///   generated for each format.
template <
    typename Vec,
    bool kReadsGrad = true,
    bool kWritesMaster = true,
    typename Shard,
    typename Body>
auto with_lanes(const Shard& shard, Body body) {
  using enum LowPrecision;
  return with_format<kReadsGrad>(shard.grad_format, [&]<LowPrecision kGrad>() {
    return with_format<kWritesMaster>(
        shard.low_precision_format, [&]<LowPrecision kLow>() {
          if (shard.state_format == kBFloat16) {
            return body(
                ShardVectors<Vec, Shard, kGrad, kBFloat16, kLow>(shard));
          }
          return body(ShardVectors<Vec, Shard, kGrad, kNone, kLow>(shard));
        });
  });
}

} // namespace tessera::runtime::detail
