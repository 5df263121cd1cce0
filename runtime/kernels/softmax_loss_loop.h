// SPDX-License-Identifier: Apache-2.0
#pragma once
// `softmax_loss_rows()` computes losses and gradients of rows with the vectors
// of an instruction set. Only the per-ISA sources include this, see vec_loop.h.
// Beside what vectors have, it takes larger(a, b), which is b where a is NaN,
// and exponential(x) for x <= 0.

#include "tessera/runtime/kernels/softmax_loss_kernels.h"
#include "tessera/runtime/kernels/vec_loop.h"

#include <math.h>
#include <limits>
#include <type_traits>

namespace tessera::runtime::detail {

/// A row of logits in its format.
template <typename Vec, LowPrecision kFormat>
class SoftmaxRow {
 public:
  static constexpr int64_t kWidth = Vec::kWidth;

  SoftmaxRow(const SoftmaxLossRows& all, int64_t row)
      : in_(all),
        row_(row),
        data_(static_cast<Element*>(all.logits) + row * all.row_stride),
        tail_(all.classes - all.classes % kWidth) {}

  void run() const {
    const int64_t target = in_.targets[row_];
    float* const loss = in_.losses + row_;
    if (target == in_.ignore_index) {
      *loss = 0;
      if (in_.gradients) {
        fill_zeros(0);
      }
      return;
    }
    const SoftmaxLossSums sums = row_sums();
    const bool is_class = target >= 0 && target < in_.classes;
    const float logit = is_class ? element(target) : kNan;
    const float weight = is_class && in_.class_weights != nullptr
                             ? in_.class_weights[target]
                             : 1;
    const SoftmaxLossFactors factors =
        softmax_loss_factors(in_, sums, logf(sums.sum), logit, weight);
    *loss = factors.loss;
    if (in_.gradients) {
      write_gradient(factors, sums.max, is_class ? target : -1, logit);
    }
  }

  /// [Note: softmax loss] up to what other parts of the classes have.
  void write_part_sums(float* to) const {
    const int64_t target = in_.targets[row_];
    SoftmaxLossSums sums{.max = 0, .sum = 0};
    if (target != in_.ignore_index) {
      sums = row_sums();
    }
    if (sums.max == -kInfinity) { // all of them
      sums.max = std::numeric_limits<float>::lowest();
      sums.sum = 0;
    }
    to[0] = sums.max;
    to[1] = sums.sum;
    to[2] = sums.weighted;
    to[3] = target >= 0 ? element(target) : 0;
  }
  void write_part_gradient(const float* factors) const {
    const int64_t target = in_.targets[row_];
    if (target == in_.ignore_index) {
      fill_zeros(0);
      return;
    }
    write_gradient(
        {.loss = 0,
         .exponential = factors[1],
         .spread = factors[2],
         .target = factors[3]},
        factors[0],
        target,
        target >= 0 ? element(target) : 0);
  }

 private:
  using Element =
      std::conditional_t<kFormat == LowPrecision::kNone, float, uint16_t>;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  static constexpr int kChains = 4; // sums that do not wait for each other
  // Longer sums of float32 would be rounded more than logits are.
  static constexpr int64_t kSumColumns = 4096;

  template <typename... Count>
  Vec load(int64_t i, Count... count) const {
    return load_as<kFormat, Vec>(data_, i, count...);
  }
  template <typename... Count>
  void store(Vec values, int64_t i, Count... count) const {
    if constexpr (kFormat == LowPrecision::kNone) {
      values.store(data_ + i, count...);
    } else if constexpr (kFormat == LowPrecision::kBFloat16) {
      values.store_bfloat16(data_ + i, count...);
    } else {
      values.store_float16(data_ + i, count...);
    }
  }
  /// The last columns, and behind them -infinity.
  Vec load_tail() const {
    alignas(64) float values[kWidth];
    load(tail_, in_.classes - tail_).store(values);
    for (int64_t k = in_.classes - tail_; k < kWidth; ++k) {
      values[k] = -kInfinity;
    }
    return Vec::load(values);
  }
  float element(int64_t i) const {
    float values[kWidth];
    load(i, 1).store(values);
    return values[0];
  }
  void fill_zeros(int64_t begin) const {
    for_each_vector<Vec>(begin, in_.columns, [&](int64_t i, auto... count) {
      store(Vec(0.0F), i, count...);
    });
  }

  /// Calls use(chain, i) for the full vectors of columns [i, end).
  template <typename Use>
  static void for_vectors(int64_t i, int64_t end, const Use& use) {
    for (; i + kChains * kWidth <= end; i += kChains * kWidth) {
      for (int chain = 0; chain < kChains; ++chain) {
        use(chain, i + chain * kWidth);
      }
    }
    for (; i < end; i += kWidth) {
      use(0, i);
    }
  }

  /// The sum of term(i) over all full vectors, by blocks.
  template <typename Term>
  double sum_vectors(const Term& term) const {
    double sum = 0;
    for (int64_t begin = 0; begin < tail_; begin += kSumColumns) {
      Vec chains[kChains] = {0.0F, 0.0F, 0.0F, 0.0F};
      for_vectors(
          begin,
          begin + kSumColumns < tail_ ? begin + kSumColumns : tail_,
          [&](int chain, int64_t i) {
            chains[chain] = chains[chain] + term(i);
          });
      sum += total(chains);
    }
    return sum;
  }

  float row_max() const {
    Vec chains[kChains] = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};
    for_vectors(0, tail_, [&](int chain, int64_t i) {
      chains[chain] = larger(load(i), chains[chain]);
    });
    if (tail_ < in_.classes) {
      chains[0] = larger(load_tail(), chains[0]);
    }
    float result = -kInfinity;
    for (const Vec& chain : chains) {
      float lanes[kWidth];
      chain.store(lanes);
      for (const float lane : lanes) {
        result = lane > result ? lane : result;
      }
    }
    return result;
  }

  static float total(const Vec (&chains)[kChains]) {
    return total((chains[0] + chains[1]) + (chains[2] + chains[3]));
  }
  static float total(Vec values) {
    float lanes[kWidth];
    values.store(lanes);
    float sum = 0;
    for (const float lane : lanes) {
      sum += lane;
    }
    return sum;
  }

  SoftmaxLossSums row_sums() const {
    SoftmaxLossSums sums{.max = row_max(), .sum = 0};
    const Vec max = sums.max;
    double sum =
        sum_vectors([&](int64_t i) { return exponential(load(i) - max); });
    if (tail_ < in_.classes) {
      sum += total(exponential(load_tail() - max));
    }
    sums.sum = static_cast<float>(sum);
    if (in_.label_smoothing != 0) {
      add_smoothing(sums);
    }
    return sums;
  }

  void add_smoothing(SoftmaxLossSums& sums) const {
    const auto weight_at = [&](int64_t i, auto... count) {
      return Vec::load(in_.class_weights + i, count...);
    };
    const auto weighted_at = [&](int64_t i, auto... count) {
      const Vec x = load(i, count...);
      return in_.class_weights == nullptr ? x : x * weight_at(i, count...);
    };
    const int64_t rest = in_.classes - tail_;
    double weighted = sum_vectors([&](int64_t i) { return weighted_at(i); });
    if (rest > 0) {
      weighted += total(weighted_at(tail_, rest));
    }
    sums.weighted = static_cast<float>(weighted);
    sums.weights = static_cast<float>(in_.classes);
    if (in_.class_weights != nullptr) {
      double weights = sum_vectors([&](int64_t i) { return weight_at(i); });
      if (rest > 0) {
        weights += total(weight_at(tail_, rest));
      }
      sums.weights = static_cast<float>(weights);
    }
  }

  /// @param target -1: none.
  void write_gradient(
      const SoftmaxLossFactors& factors,
      float row_max,
      int64_t target,
      float logit) const {
    const Vec max = row_max;
    const Vec factor = factors.exponential;
    const Vec spread = factors.spread;
    for_each_vector<Vec>(0, in_.classes, [&](int64_t i, auto... count) {
      Vec gradient = exponential(load(i, count...) - max) * factor;
      if (factors.spread != 0) {
        gradient = gradient -
                   (in_.class_weights == nullptr
                        ? spread
                        : spread * Vec::load(in_.class_weights + i, count...));
      }
      store(gradient, i, count...);
    });
    if (target >= 0) { // anew: what is stored has been rounded
      float lanes[kWidth];
      exponential(Vec(logit) - max).store(lanes);
      const float weight =
          in_.class_weights == nullptr ? 1 : in_.class_weights[target];
      store(
          Vec(lanes[0] * factors.exponential - factors.spread * weight -
              factors.target),
          target,
          1);
    }
    fill_zeros(in_.classes);
  }

  const SoftmaxLossRows& in_;
  int64_t row_;
  Element* data_;
  int64_t tail_; // columns of full vectors
};

/// Rows [begin, end).
template <typename Vec>
void softmax_loss_rows(const SoftmaxLossRows& all, int64_t begin, int64_t end) {
  with_format(all.type, [&]<LowPrecision kFormat>() {
    for (int64_t row = begin; row < end; ++row) {
      SoftmaxRow<Vec, kFormat>(all, row).run();
    }
  });
}

template <typename Vec>
void softmax_part_sums_rows(
    const SoftmaxLossRows& all,
    float* sums,
    int64_t begin,
    int64_t end) {
  with_format(all.type, [&]<LowPrecision kFormat>() {
    for (int64_t row = begin; row < end; ++row) {
      SoftmaxRow<Vec, kFormat>(all, row).write_part_sums(sums + 4 * row);
    }
  });
}

template <typename Vec>
void softmax_part_gradient_rows(
    const SoftmaxLossRows& all,
    const float* factors,
    int64_t begin,
    int64_t end) {
  with_format(all.type, [&]<LowPrecision kFormat>() {
    for (int64_t row = begin; row < end; ++row) {
      SoftmaxRow<Vec, kFormat>(all, row).write_part_gradient(factors + 4 * row);
    }
  });
}

} // namespace tessera::runtime::detail
