// SPDX-License-Identifier: Apache-2.0
#pragma once
// `kResidualNormOf` computes residual norms of rows with the vectors of an
// instruction set. Only the per-ISA sources include this, see vec_loop.h.
// Beside what vectors have, it takes kept(mask, Vec()), the numbers 0 and 1 of
// kWidth bytes.

#include "tessera/runtime/kernels/residual_norm_kernels.h"
#include "tessera/runtime/kernels/vec_loop.h"

#include <math.h>
#include <string.h>

namespace tessera::runtime::detail {

/// Elements of rows in their format.
template <typename Vec, LowPrecision kFormat>
struct ResidualRow {
  static constexpr int64_t kWidth = Vec::kWidth;

  template <typename... Count>
  static Vec load(const void* row, int64_t i, Count... count) {
    return load_as<kFormat, Vec>(row, i, count...);
  }
  template <typename... Count>
  static void store(Vec values, void* row, int64_t i, Count... count) {
    if constexpr (kFormat == LowPrecision::kNone) {
      values.store(static_cast<float*>(row) + i, count...);
    } else if constexpr (kFormat == LowPrecision::kBFloat16) {
      values.store_bfloat16(static_cast<uint16_t*>(row) + i, count...);
    } else {
      values.store_float16(static_cast<uint16_t*>(row) + i, count...);
    }
  }
  /// Null if `matrix` is.
  static const void* of(const void* matrix, int64_t first) {
    return matrix == nullptr ? nullptr
                             : address_as<kFormat, Vec>(matrix, first);
  }
  static void* of(void* matrix, int64_t first) {
    return const_cast<void*>(of(static_cast<const void*>(matrix), first));
  }
  /// The factors of a branch's elements: `scale`, or 0 where they are dropped.
  static Vec factor(const uint8_t* mask, float scale, int64_t i) {
    return mask == nullptr ? Vec(scale) : kept(mask + i, Vec()) * Vec(scale);
  }
  static Vec factor(
      const uint8_t* mask,
      float scale,
      int64_t i,
      int64_t count) {
    if (mask == nullptr) {
      return scale;
    }
    uint8_t rest[kWidth] = {};
    memcpy(rest, mask + i, static_cast<size_t>(count));
    return kept(rest, Vec()) * Vec(scale);
  }
  /// The last elements, and behind them `rest`.
  static Vec with_rest(Vec values, int64_t count, float rest) {
    alignas(64) float lanes[kWidth];
    values.store(lanes);
    for (int64_t k = count; k < kWidth; ++k) {
      lanes[k] = rest;
    }
    return Vec::load(lanes);
  }
  static Vec with_rest(Vec values, float /*rest*/) {
    return values;
  }
};

/// The sum of a row's terms.
template <typename Vec>
float row_total(Vec sum) {
  float lanes[Vec::kWidth];
  sum.store(lanes);
  float total = 0;
  for (const float lane : lanes) {
    total += lane;
  }
  return total;
}

template <typename Vec, LowPrecision kFormat>
void residual_norm_row(const ResidualNormRows& all, int64_t row) {
  using Row = ResidualRow<Vec, kFormat>;
  const int64_t features = all.features;
  const int64_t first = row * features;
  const auto count_of = static_cast<float>(features);
  const void* in = Row::of(all.x, first);
  if (all.branch != nullptr) {
    const void* branch = Row::of(all.branch, first);
    const uint8_t* mask = all.mask == nullptr ? nullptr : all.mask + first;
    void* sum = Row::of(all.sum, first);
    for_each_vector<Vec>(0, features, [&](int64_t i, auto... count) {
      Row::store(
          fma(Row::load(branch, i, count...),
              Row::factor(mask, all.branch_scale, i, count...),
              Row::load(in, i, count...)),
          sum,
          i,
          count...);
    });
    in = sum; // rounded, as backward reads it
  }
  float mean = 0;
  if (all.centered) {
    Vec sum = 0.0F;
    for_each_vector<Vec>(0, features, [&](int64_t i, auto... count) {
      sum = sum + Row::load(in, i, count...);
    });
    mean = row_total(sum) / count_of;
  }
  Vec squares = 0.0F;
  for_each_vector<Vec>(0, features, [&](int64_t i, auto... count) {
    const Vec centered =
        Row::with_rest(Row::load(in, i, count...), count..., mean) - Vec(mean);
    squares = fma(centered, centered, squares);
  });
  const float rstd = 1 / sqrtf(row_total(squares) / count_of + all.eps);
  all.statistics[2 * row] = mean;
  all.statistics[2 * row + 1] = rstd;
  void* out = Row::of(all.y, first);
  for_each_vector<Vec>(0, features, [&](int64_t i, auto... count) {
    Vec value = (Row::load(in, i, count...) - Vec(mean)) * Vec(rstd);
    if (all.weight != nullptr) {
      value = value * Vec::load(all.weight + i, count...);
    }
    if (all.bias != nullptr) {
      value = value + Vec::load(all.bias + i, count...);
    }
    Row::store(value, out, i, count...);
  });
}

template <typename Vec, LowPrecision kFormat>
void residual_norm_backward_row(
    const ResidualNormGradients& all,
    int64_t row,
    float* weights,
    float* biases) {
  using Row = ResidualRow<Vec, kFormat>;
  const int64_t features = all.features;
  const int64_t first = row * features;
  const auto count_of = static_cast<float>(features);
  const void* in = Row::of(all.sum, first);
  const void* from = Row::of(all.gradient_y, first);
  const Vec mean = all.statistics[2 * row];
  const Vec rstd = all.statistics[2 * row + 1];
  // Behind the last element gradients are 0.
  Vec products = 0.0F;
  Vec sums = 0.0F;
  for_each_vector<Vec>(0, features, [&](int64_t i, auto... count) {
    const Vec gradient = Row::load(from, i, count...);
    const Vec normed = (Row::load(in, i, count...) - mean) * rstd;
    const Vec product = gradient * normed;
    if (all.weight == nullptr) {
      products = products + product;
      sums = sums + gradient;
    } else {
      const Vec weight = Vec::load(all.weight + i, count...);
      products = fma(product, weight, products);
      sums = fma(gradient, weight, sums);
    }
    if (weights != nullptr) {
      (Vec::load(weights + i, count...) + product).store(weights + i, count...);
    }
    if (biases != nullptr) {
      (Vec::load(biases + i, count...) + gradient).store(biases + i, count...);
    }
  });
  const Vec product_mean = row_total(products) / count_of;
  const Vec sum_mean = all.centered ? row_total(sums) / count_of : 0.0F;
  const void* passed = Row::of(all.gradient_sum, first);
  const uint8_t* mask = all.mask == nullptr ? nullptr : all.mask + first;
  void* gradient_x = Row::of(all.gradient_x, first);
  void* gradient_branch = Row::of(all.gradient_branch, first);
  for_each_vector<Vec>(0, features, [&](int64_t i, auto... count) {
    Vec gradient = Row::load(from, i, count...);
    if (all.weight != nullptr) {
      gradient = gradient * Vec::load(all.weight + i, count...);
    }
    const Vec normed = (Row::load(in, i, count...) - mean) * rstd;
    Vec result = (gradient - sum_mean - normed * product_mean) * rstd;
    if (passed != nullptr) {
      result = result + Row::load(passed, i, count...);
    }
    Row::store(result, gradient_x, i, count...);
    if (gradient_branch != nullptr) {
      Row::store(
          result * Row::factor(mask, all.branch_scale, i, count...),
          gradient_branch,
          i,
          count...);
    }
  });
}

template <typename Vec>
void residual_norm_rows(
    const ResidualNormRows& all,
    int64_t begin,
    int64_t end) {
  with_format(all.type, [&]<LowPrecision kFormat>() {
    for (int64_t row = begin; row < end; ++row) {
      residual_norm_row<Vec, kFormat>(all, row);
    }
  });
}

template <typename Vec>
void residual_norm_backward_rows(
    const ResidualNormGradients& all,
    int64_t begin,
    int64_t end,
    float* weights,
    float* biases) {
  with_format(all.type, [&]<LowPrecision kFormat>() {
    for (int64_t row = begin; row < end; ++row) {
      residual_norm_backward_row<Vec, kFormat>(all, row, weights, biases);
    }
  });
}

} // namespace tessera::runtime::detail
