// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardLanes` loads and stores the arrays of a shard as vectors of one type,
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
class ShardLanes {
 public:
  explicit ShardLanes(const Shard& shard)
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

  template <typename... Count>
  void store_state(int k, Vec values, int64_t i, Count... count) const {
    store_as<kState>(values, shard_.states[k], 1 + k, i, count...);
  }
  /// Stores the master and its rounded copy.
  template <typename... Count>
  void store_master(Vec values, int64_t i, Count... count) const {
    values.store(shard_.master + i, count...);
    if constexpr (kLow != LowPrecision::kNone) {
      store_as<kLow>(values, shard_.low_precision, 0, i, count...);
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
  template <LowPrecision kFormat, typename... Count>
  void store_as(Vec values, void* array, int number, int64_t i, Count... count)
      const {
    if constexpr (kFormat == LowPrecision::kNone) {
      values.store(static_cast<typename Vec::Scalar*>(array) + i, count...);
    } else if constexpr (kFormat == LowPrecision::kFloat16) {
      values.store_float16(static_cast<uint16_t*>(array) + i, count...);
    } else {
      auto* bits = static_cast<uint16_t*>(array) + i;
      const RoundingKey& key = shard_.rounding;
      if (key.enabled) {
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
            return body(ShardLanes<Vec, Shard, kGrad, kBFloat16, kLow>(shard));
          }
          return body(ShardLanes<Vec, Shard, kGrad, kNone, kLow>(shard));
        });
  });
}

} // namespace tessera::runtime::detail
