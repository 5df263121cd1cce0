// SPDX-License-Identifier: Apache-2.0
// The loops of products in bfloat16 with AVX512-BF16. This file is compiled for
// it, so nothing in it may be called before the processor has been checked.
#include "tessera/runtime/kernels/bfloat16_panels.h"

#include <immintrin.h>

#include <algorithm>

namespace tessera::runtime {

namespace {

using Blocks = Bfloat16Blocks;
using Pair = Bfloat16Pair;
constexpr int64_t kLanes = 16;

int64_t vectors_of(int64_t columns) {
  return (columns + kLanes - 1) / kLanes;
}

/// The first `count` of 16 lanes.
__mmask16 first_lanes(int64_t count) {
  return count >= kLanes ? __mmask16{0xffff}
                         : static_cast<__mmask16>((1U << count) - 1);
}

/// 16 lines of 16 pairs.
struct Square {
  __m512i lines[kLanes];
};

__m512i as_pairs(__m512bh rounded) {
  return reinterpret_cast<__m512i>(rounded);
}

/// 16 pairs (low[i], high[i]), rounded.
__m512i interleaved(__m512 low, __m512 high) {
  alignas(64) static constexpr uint16_t kOrder[2 * kLanes] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(
      _mm512_load_si512(kOrder), as_pairs(_mm512_cvtne2ps_pbh(high, low)));
}

/// Lines become columns.
void transpose(Square& square) {
  __m512i(&rows)[kLanes] = square.lines;
  __m512i t[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  constexpr int kEven = 0x88; // of the lanes of 128 bits
  constexpr int kOdd = 0xdd;
  for (int i = 0; i < kLanes; i += 8) {
    for (int j = i; j < i + 4; ++j) {
      t[j] = _mm512_shuffle_i32x4(rows[j], rows[j + 4], kEven);
      t[j + 4] = _mm512_shuffle_i32x4(rows[j], rows[j + 4], kOdd);
    }
  }
  for (int j = 0; j < 8; ++j) {
    rows[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], kEven);
    rows[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], kOdd);
  }
}

/// Pairs of neighbours in contiguous lines: line i has those of `count`
/// elements, at most 32. Lines from `lines` on, and pairs beyond, are 0.
void load_along(
    const float* data,
    int64_t stride,
    int64_t lines,
    int64_t count,
    Square& square) {
  const __mmask16 low = first_lanes(count);
  const __mmask16 high = first_lanes(std::max<int64_t>(count - kLanes, 0));
  for (int64_t i = 0; i < kLanes; ++i) {
    const float* line = data + i * stride;
    square.lines[i] = i < lines
                          ? as_pairs(_mm512_cvtne2ps_pbh(
                                _mm512_maskz_loadu_ps(high, line + kLanes),
                                _mm512_maskz_loadu_ps(low, line)))
                          : _mm512_setzero_si512();
  }
}

/// Pairs of elements of neighbouring contiguous lines: line i has those of
/// lines 2 i and 2 i + 1, of which there are `lines`, at most 32. Pairs from
/// `width` on, and lines beyond, are 0.
void load_across(
    const float* data,
    int64_t stride,
    int64_t lines,
    int64_t width,
    Square& square) {
  const __mmask16 mask = first_lanes(width);
  const auto load = [&](int64_t line) {
    return line < lines ? _mm512_maskz_loadu_ps(mask, data + line * stride)
                        : _mm512_setzero_ps();
  };
  for (int64_t i = 0; i < kLanes; ++i) {
    square.lines[i] = interleaved(load(2 * i), load(2 * i + 1));
  }
}

/// Rounds `rows` rows of a's columns of the block.
void round_rows(
    const Bfloat16Operand& a,
    const Bfloat16Panels& block,
    int64_t row,
    int64_t rows,
    Pair* rounded) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    const int64_t lines = std::min(rows - r, kLanes);
    for (int64_t p = 0; p < block.pairs(); p += kLanes) {
      const int64_t count = std::min(block.depth - 2 * p, 2 * kLanes);
      const float* from = a.data + (row + r) * a.row_stride +
                          (block.row + 2 * p) * a.column_stride;
      Square square;
      if (a.column_stride == 1) {
        load_along(from, a.row_stride, lines, count, square);
      } else {
        load_across(from, a.column_stride, count, lines, square);
        transpose(square);
      }
      for (int64_t i = 0; i < lines; ++i) {
        _mm512_store_si512(
            rounded + (r + i) * Blocks::kRoundedStride + p, square.lines[i]);
      }
    }
  }
}

/// Rounded rows times one panel.
struct PanelProduct {
  const Pair* rows;
  const Pair* panel;
  int64_t pairs;
  __mmask16 last; ///< columns of the last vector
  bool adds;
  const float* bias;
  float* out;
  int64_t out_stride;
};

/// Rows [row, row + R), a panel of V vectors.
template <int64_t R, int64_t V>
void multiply_tile(const PanelProduct& all, int64_t row) {
  const auto columns = [&](int64_t v) {
    return v == V - 1 ? all.last : __mmask16{0xffff};
  };
  __m512 sums[R][V];
  for (int64_t v = 0; v < V; ++v) {
    const __m512 start =
        all.bias == nullptr
            ? _mm512_setzero_ps()
            : _mm512_maskz_loadu_ps(columns(v), all.bias + v * kLanes);
    for (int64_t r = 0; r < R; ++r) {
      sums[r][v] = start;
    }
  }
  const Pair* a = all.rows + row * Blocks::kRoundedStride;
  for (int64_t p = 0; p < all.pairs; ++p) {
    __m512bh b[V];
    for (int64_t v = 0; v < V; ++v) {
      b[v] = reinterpret_cast<__m512bh>(
          _mm512_load_si512(all.panel + (p * V + v) * kLanes));
    }
    for (int64_t r = 0; r < R; ++r) {
      const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(
          static_cast<int>(a[r * Blocks::kRoundedStride + p])));
      for (int64_t v = 0; v < V; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], pair, b[v]);
      }
    }
  }
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t v = 0; v < V; ++v) {
      float* to = all.out + (row + r) * all.out_stride + v * kLanes;
      const __m512 sum =
          all.adds
              ? _mm512_add_ps(sums[r][v], _mm512_maskz_loadu_ps(columns(v), to))
              : sums[r][v];
      _mm512_mask_storeu_ps(to, columns(v), sum);
    }
  }
}

template <int64_t V>
void multiply_panel(const PanelProduct& all, int64_t rows) {
  int64_t row = 0;
  for (; row + Blocks::kTileRows <= rows; row += Blocks::kTileRows) {
    multiply_tile<Blocks::kTileRows, V>(all, row);
  }
  if (row + 4 <= rows) {
    multiply_tile<4, V>(all, row);
    row += 4;
  }
  for (; row < rows; ++row) {
    multiply_tile<1, V>(all, row);
  }
}

} // namespace

void pack_bfloat16_panels(
    const Bfloat16Operand& b,
    const Bfloat16Panels& block,
    int64_t begin,
    int64_t end) {
  const int64_t pairs = block.pairs();
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * Blocks::kTileColumns;
    const int64_t width = std::min(block.columns - first, Blocks::kTileColumns);
    const int64_t vectors = vectors_of(width);
    Pair* to = block.panel(panel);
    for (int64_t v = 0; v < vectors; ++v) {
      const int64_t lanes = std::min(width - v * kLanes, kLanes);
      const float* column =
          b.data + (block.column + first + v * kLanes) * b.column_stride;
      for (int64_t p = 0; p < pairs; p += kLanes) {
        const int64_t count = std::min(block.depth - 2 * p, 2 * kLanes);
        const float* from = column + (block.row + 2 * p) * b.row_stride;
        Square square;
        if (b.row_stride == 1) {
          load_along(from, b.column_stride, lanes, count, square);
          transpose(square);
        } else {
          load_across(from, b.row_stride, count, lanes, square);
        }
        const int64_t stored = std::min(pairs - p, kLanes);
        for (int64_t i = 0; i < stored; ++i) {
          _mm512_store_si512(
              to + ((p + i) * vectors + v) * kLanes, square.lines[i]);
        }
      }
    }
  }
}

void multiply_bfloat16_rows(
    const Bfloat16Operand& a,
    const Bfloat16Panels& block,
    const Bfloat16Result& result,
    int64_t begin,
    int64_t end,
    Bfloat16Pair* rounded) {
  for (int64_t row = begin; row < end; row += Blocks::kRows) {
    const int64_t rows = std::min(end - row, Blocks::kRows);
    round_rows(a, block, row, rows, rounded);
    for (int64_t first = 0; first < block.columns;
         first += Blocks::kTileColumns) {
      const int64_t width =
          std::min(block.columns - first, Blocks::kTileColumns);
      const int64_t column = block.column + first;
      const PanelProduct product{
          rounded,
          block.panel(first / Blocks::kTileColumns),
          block.pairs(),
          first_lanes(width - (vectors_of(width) - 1) * kLanes),
          result.adds,
          result.bias == nullptr ? nullptr : result.bias + column,
          result.data + row * result.row_stride + column,
          result.row_stride};
      switch (vectors_of(width)) {
        case 1:
          multiply_panel<1>(product, rows);
          break;
        case 2:
          multiply_panel<2>(product, rows);
          break;
        default:
          multiply_panel<3>(product, rows);
      }
    }
  }
}

} // namespace tessera::runtime
