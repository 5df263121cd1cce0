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
/// A loop keeps this object, and the constants of its rule, in local variables
/// of its own function. Through a reference, the compiler would have to read
/// them again after every store.
template <
    typename Vec,
    typename Shard,
    LowPrecision kGrad,
    LowPrecision kMoment,
    LowPrecision kLow>
class ShardLanes {
 public:
  explicit ShardLanes(const Shard& shard)
      : shard_(shard),
        grad_scale_(Vec::broadcast(shard.scalars.grad_scale)),
        moment_key_(second_key(shard.rounding, RoundedArray::kMoment)),
        moment_sq_key_(second_key(shard.rounding, RoundedArray::kMomentSq)),
        moment_diff_key_(second_key(shard.rounding, RoundedArray::kMomentDiff)),
        previous_grad_key_(
            second_key(shard.rounding, RoundedArray::kPreviousGrad)) {}

  template <typename... Count>
  Vec master(int64_t i, Count... count) const {
    return Vec::load(shard_.master + i, count...);
  }
  /// Multiplied by grad_scale. Checks before that whether it is finite.
  template <typename... Count>
  Vec grad(int64_t i, Count... count) {
    Vec grad = load_as<kGrad, Vec>(shard_.grad, i, count...);
    not_finite_ = fma(grad, Vec::broadcast(0), not_finite_);
    return grad * grad_scale_;
  }
  template <typename... Count>
  Vec moment(int64_t i, Count... count) const {
    return load_as<kMoment, Vec>(shard_.moment, i, count...);
  }
  template <typename... Count>
  Vec moment_sq(int64_t i, Count... count) const {
    return load_as<kMoment, Vec>(shard_.moment_sq, i, count...);
  }
  template <typename... Count>
  Vec moment_diff(int64_t i, Count... count) const {
    return load_as<kMoment, Vec>(shard_.moment_diff, i, count...);
  }
  template <typename... Count>
  Vec previous_grad(int64_t i, Count... count) const {
    return load_as<kMoment, Vec>(shard_.previous_grad, i, count...);
  }

  template <typename... Count>
  void store_moment(Vec values, int64_t i, Count... count) const {
    store_as<kMoment>(values, shard_.moment, moment_key_, i, count...);
  }
  template <typename... Count>
  void store_moment_sq(Vec values, int64_t i, Count... count) const {
    store_as<kMoment>(values, shard_.moment_sq, moment_sq_key_, i, count...);
  }
  template <typename... Count>
  void store_moment_diff(Vec values, int64_t i, Count... count) const {
    store_as<kMoment>(
        values, shard_.moment_diff, moment_diff_key_, i, count...);
  }
  template <typename... Count>
  void store_previous_grad(Vec values, int64_t i, Count... count) const {
    store_as<kMoment>(
        values, shard_.previous_grad, previous_grad_key_, i, count...);
  }
  /// Stores the master and its rounded copy.
  template <typename... Count>
  void store_master(Vec values, int64_t i, Count... count) const {
    values.store(shard_.master + i, count...);
    if constexpr (kLow != LowPrecision::kNone) {
      store_as<kLow>(
          values, shard_.low_precision, shard_.rounding.key1, i, count...);
    }
  }

  void prefetch_master(int64_t i) const {
    prefetch<Vec>(shard_.master + i);
  }
  void prefetch_grad(int64_t i) const {
    prefetch<Vec>(address_as<kGrad, Vec>(shard_.grad, i));
  }
  void prefetch_moment(int64_t i) const {
    prefetch<Vec>(address_as<kMoment, Vec>(shard_.moment, i));
  }
  void prefetch_moment_sq(int64_t i) const {
    prefetch<Vec>(address_as<kMoment, Vec>(shard_.moment_sq, i));
  }
  void prefetch_moment_diff(int64_t i) const {
    prefetch<Vec>(address_as<kMoment, Vec>(shard_.moment_diff, i));
  }
  void prefetch_previous_grad(int64_t i) const {
    prefetch<Vec>(address_as<kMoment, Vec>(shard_.previous_grad, i));
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
  void store_as(
      Vec values,
      void* array,
      uint32_t key1,
      int64_t i,
      Count... count) const {
    if constexpr (kFormat == LowPrecision::kNone) {
      values.store(static_cast<typename Vec::Scalar*>(array) + i, count...);
    } else if constexpr (kFormat == LowPrecision::kFloat16) {
      values.store_float16(static_cast<uint16_t*>(array) + i, count...);
    } else {
      auto* bits = static_cast<uint16_t*>(array) + i;
      const RoundingKey& key = shard_.rounding;
      if (key.enabled) {
        const auto first = static_cast<uint32_t>(key.first + i);
        const auto noise = Vec::noise(key.key0, key1, first);
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
  const uint32_t moment_key_;
  const uint32_t moment_sq_key_;
  const uint32_t moment_diff_key_;
  const uint32_t previous_grad_key_;
  // Zero, or NaN once a gradient was not finite.
  Vec not_finite_ = Vec::broadcast(0);
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
          if (shard.moment_format == kBFloat16) {
            return body(ShardLanes<Vec, Shard, kGrad, kBFloat16, kLow>(shard));
          }
          return body(ShardLanes<Vec, Shard, kGrad, kNone, kLow>(shard));
        });
  });
}

} // namespace tessera::runtime::detail
