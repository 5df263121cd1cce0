// SPDX-License-Identifier: Apache-2.0
#pragma once
// few_rows_loop() is the loop of few_rows_linear(), over the vectors of one
// instruction set. Only sources compiled for one include it; everything has
// internal linkage, so that no code is shared with code that runs anywhere.

#include "tessera/runtime/kernels/few_rows_linear.h"

#include <cstdint>

namespace tessera::runtime {

namespace {

/// kRows x kColumns elements of the result, from `row` and `column` on. Each
/// is summed lane by lane over k, then over the lanes: in the same order for
/// all numbers of rows and columns.
template <typename Vec, int kRows, int kColumns>
inline void few_rows_block(const FewRows& all, int64_t row, int64_t column) {
  Vec sums[kRows][kColumns];
  for (auto& of_row : sums) {
    for (Vec& sum : of_row) {
      sum = Vec::zero();
    }
  }
  const float* const x = all.x + row * all.k;
  const float* const weight = all.weight + column * all.k;
  int64_t i = 0;
  for (; i + Vec::kWidth <= all.k; i += Vec::kWidth) {
    Vec local[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      local[c] = Vec::load(weight + c * all.k + i);
    }
    for (int r = 0; r < kRows; ++r) {
      const Vec value = Vec::load(x + r * all.k + i);
      for (int c = 0; c < kColumns; ++c) {
        sums[r][c].add_product(value, local[c]);
      }
    }
  }
  if (i < all.k) {
    for (int r = 0; r < kRows; ++r) {
      const Vec value = Vec::load(x + r * all.k + i, all.k - i);
      for (int c = 0; c < kColumns; ++c) {
        sums[r][c].add_product(
            value, Vec::load(weight + c * all.k + i, all.k - i));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      const float bias = all.bias == nullptr ? 0 : all.bias[column + c];
      all.y[(row + r) * all.n + column + c] = sums[r][c].sum() + bias;
    }
  }
}

/// All rows of some columns, whose weights stay in the cache.
template <typename Vec, int kColumns>
inline void few_rows_columns(const FewRows& all, int64_t column) {
  int64_t row = 0;
  for (; row + 4 <= all.rows; row += 4) {
    few_rows_block<Vec, 4, kColumns>(all, row, column);
  }
  for (; row + 2 <= all.rows; row += 2) {
    few_rows_block<Vec, 2, kColumns>(all, row, column);
  }
  if (row < all.rows) {
    few_rows_block<Vec, 1, kColumns>(all, row, column);
  }
}

template <typename Vec, int kColumns>
inline void few_rows_loop(const FewRows& all, int64_t begin, int64_t end) {
  int64_t column = begin;
  if (all.rows == 1) { // more streams of weights
    for (; column + 2 * kColumns <= end; column += 2 * kColumns) {
      few_rows_block<Vec, 1, 2 * kColumns>(all, 0, column);
    }
  }
  for (; column + kColumns <= end; column += kColumns) {
    few_rows_columns<Vec, kColumns>(all, column);
  }
  for (; column < end; ++column) {
    few_rows_columns<Vec, 1>(all, column);
  }
}

} // namespace

} // namespace tessera::runtime
