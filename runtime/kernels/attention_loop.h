// SPDX-License-Identifier: Apache-2.0
#pragma once
// `attention_unit_forward()` and `attention_unit_backward()` compute one head
// of keys of [Note: pattern attention] with the vectors of an instruction set.
// Only the per-ISA sources include this, see vec_loop.h. Beside what vectors
// have, it takes larger(a, b) and exponential(x).
//
// All is packed as float32 into panels of 16 columns, filled up with zeros, so
// that products have no rests: their rows are in fours.

#include "tessera/runtime/kernels/attention_kernels.h"
#include "tessera/runtime/kernels/vec_loop.h"

#include <math.h>
#include <limits>

namespace tessera::runtime::detail {

constexpr int64_t kAttentionFour = 4; // rows of a product at a time
constexpr float kAttentionHidden = -std::numeric_limits<float>::infinity();

constexpr int64_t attention_fours(int64_t rows) {
  return (rows + kAttentionFour - 1) / kAttentionFour * kAttentionFour;
}

/// a[row * row_stride + k * step] for 4 rows.
struct AttentionLeft {
  const float* data;
  int64_t row_stride;
  int64_t step;
};

/// Panels of 16 columns: data[panel * panel_stride + k * row_stride + column].
struct AttentionRight {
  const float* data;
  int64_t panel_stride;
  int64_t row_stride;
};

template <typename Vec, int kPanels>
void attention_product_of(
    const AttentionLeft& a,
    const AttentionRight& b,
    int64_t inner,
    float* c,
    int64_t c_stride,
    bool adds) {
  constexpr int kVecs = static_cast<int>(kAttentionPanel / Vec::kWidth);
  constexpr int kColumns = kPanels * kVecs;
  Vec sums[kAttentionFour][kColumns];
#pragma GCC unroll 4
  for (int row = 0; row < kAttentionFour; ++row) {
#pragma GCC unroll 16
    for (int i = 0; i < kColumns; ++i) {
      sums[row][i] =
          adds ? Vec::load(c + row * c_stride + i * Vec::kWidth) : Vec(0.0F);
    }
  }
  const float* left = a.data;
  const float* right = b.data;
  for (int64_t k = 0; k < inner; ++k) {
    Vec columns[kColumns];
#pragma GCC unroll 16
    for (int i = 0; i < kColumns; ++i) {
      columns[i] = Vec::load(
          right + i / kVecs * b.panel_stride + i % kVecs * Vec::kWidth);
    }
#pragma GCC unroll 4
    for (int row = 0; row < kAttentionFour; ++row) {
      const Vec factor(left[row * a.row_stride]);
#pragma GCC unroll 16
      for (int i = 0; i < kColumns; ++i) {
        sums[row][i] = fma(factor, columns[i], sums[row][i]);
      }
    }
    left += a.step;
    right += b.row_stride;
  }
#pragma GCC unroll 4
  for (int row = 0; row < kAttentionFour; ++row) {
#pragma GCC unroll 16
    for (int i = 0; i < kColumns; ++i) {
      sums[row][i].store(c + row * c_stride + i * Vec::kWidth);
    }
  }
}

/// c [rows, panels * 16] = a b, or adds it. Rows are in fours.
template <typename Vec>
void attention_product(
    AttentionLeft a,
    const AttentionRight& b,
    int64_t rows,
    int64_t panels,
    int64_t inner,
    float* c,
    int64_t c_stride,
    bool adds) {
  constexpr int64_t kMost = Vec::kWidth == kAttentionPanel ? 4 : 1;
  for (int64_t panel = 0; panel < panels;) {
    const int64_t count = panels - panel < kMost ? panels - panel : kMost;
    const AttentionRight columns{
        b.data + panel * b.panel_stride, b.panel_stride, b.row_stride};
    float* const to = c + panel * kAttentionPanel;
    for (int64_t row = 0; row < rows; row += kAttentionFour) {
      const AttentionLeft four{
          a.data + row * a.row_stride, a.row_stride, a.step};
      float* const at = to + row * c_stride;
      if constexpr (kMost == 1) {
        attention_product_of<Vec, 1>(four, columns, inner, at, c_stride, adds);
      } else if (count == 4) {
        attention_product_of<Vec, 4>(four, columns, inner, at, c_stride, adds);
      } else if (count == 3) {
        attention_product_of<Vec, 3>(four, columns, inner, at, c_stride, adds);
      } else if (count == 2) {
        attention_product_of<Vec, 2>(four, columns, inner, at, c_stride, adds);
      } else {
        attention_product_of<Vec, 1>(four, columns, inner, at, c_stride, adds);
      }
    }
    panel += count;
  }
}

template <LowPrecision kFormat>
const void* attention_row(
    const AttentionMatrix& matrix,
    int64_t batch,
    int64_t head,
    int64_t row) {
  const int64_t offset = batch * matrix.batch_stride +
                         head * matrix.head_stride + row * matrix.row_stride;
  if constexpr (kFormat == LowPrecision::kNone) {
    return static_cast<const float*>(matrix.data) + offset;
  } else {
    return static_cast<const uint16_t*>(matrix.data) + offset;
  }
}

template <LowPrecision kFormat>
void* attention_row_to(
    const AttentionMatrix& matrix,
    int64_t batch,
    int64_t head,
    int64_t row) {
  return const_cast<void*>(attention_row<kFormat>(matrix, batch, head, row));
}

/// to[i] = factor from[i]; zeros up to `padded`.
template <typename Vec, LowPrecision kFormat>
void attention_load(
    const void* from,
    int64_t columns,
    int64_t padded,
    float factor,
    float* to) {
  const Vec by(factor);
  for_each_vector<Vec>(0, columns, [&](int64_t i, auto... count) {
    (load_as<kFormat, Vec>(from, i, count...) * by).store(to + i, count...);
  });
  for (int64_t i = columns; i < padded; ++i) {
    to[i] = 0;
  }
}

template <typename Vec, LowPrecision kFormat>
void attention_store(
    const float* from,
    int64_t columns,
    float factor,
    void* to) {
  const Vec by(factor);
  for_each_vector<Vec>(0, columns, [&](int64_t i, auto... count) {
    const Vec value = Vec::load(from + i, count...) * by;
    if constexpr (kFormat == LowPrecision::kNone) {
      value.store(static_cast<float*>(to) + i, count...);
    } else if constexpr (kFormat == LowPrecision::kBFloat16) {
      value.store_bfloat16(static_cast<uint16_t*>(to) + i, count...);
    } else {
      value.store_float16(static_cast<uint16_t*>(to) + i, count...);
    }
  });
}

template <typename Vec>
float attention_sum(Vec values) {
  float each[Vec::kWidth];
  values.store(each);
  float sum = each[0];
  for (int64_t i = 1; i < Vec::kWidth; ++i) {
    sum += each[i];
  }
  return sum;
}

template <typename Vec>
float attention_largest(Vec values) {
  float each[Vec::kWidth];
  values.store(each);
  float most = each[0];
  for (int64_t i = 1; i < Vec::kWidth; ++i) {
    most = each[i] > most ? each[i] : most;
  }
  return most;
}

/// Keys or values of a component as rows of float32, [padded keys, padded].
template <typename Vec, LowPrecision kFormat>
void attention_pack_rows(
    const AttentionMatrix& from,
    const AttentionUnit& unit,
    int64_t columns,
    float* to) {
  const int64_t padded = attention_padded(columns);
  const int64_t keys = unit.component.key_end - unit.component.key_begin;
  for (int64_t i = 0; i < keys; ++i) {
    attention_load<Vec, kFormat>(
        attention_row<kFormat>(
            from, unit.batch, unit.key_head, unit.component.key_begin + i),
        columns,
        padded,
        1,
        to + i * padded);
  }
  for (int64_t i = keys * padded; i < attention_padded(keys) * padded; ++i) {
    to[i] = 0;
  }
}

/// [panels of keys, columns, 16]: transposed, of what attention_pack_rows()
/// makes of `row` at a time.
template <typename Vec, LowPrecision kFormat>
void attention_pack_columns(
    const AttentionMatrix& from,
    const AttentionUnit& unit,
    int64_t columns,
    float* row,
    float* to) {
  const int64_t keys = unit.component.key_end - unit.component.key_begin;
  for (int64_t panel = 0; panel * kAttentionPanel < keys; ++panel) {
    float* const into = to + panel * columns * kAttentionPanel;
    for (int64_t i = 0; i < kAttentionPanel; ++i) {
      const int64_t key = panel * kAttentionPanel + i;
      if (key < keys) {
        attention_load<Vec, kFormat>(
            attention_row<kFormat>(
                from,
                unit.batch,
                unit.key_head,
                unit.component.key_begin + key),
            columns,
            columns,
            1,
            row);
      }
      for (int64_t column = 0; column < columns; ++column) {
        into[column * kAttentionPanel + i] = key < keys ? row[column] : 0;
      }
    }
  }
}

/// The keys that a tile works on at a time, relative to the component's first.
struct AttentionBlock {
  int64_t begin;
  int64_t columns; ///< whole panels
  bool masked; ///< some query does not see some of them
};

/// Calls body(block) for the blocks of keys of which a query of the tile sees
/// some.
template <typename Body>
void attention_blocks(
    const AttentionUnit& unit,
    const AttentionTile& tile,
    Body body) {
  const AttentionRow& row = unit.row;
  const int64_t origin = unit.component.key_begin;
  const int64_t keys = unit.component.key_end - origin;
  const int64_t all = attention_padded(keys);
  const int64_t near_begin =
      (tile.key_begin - origin) / kAttentionPanel * kAttentionPanel;
  const int64_t near_end = attention_padded(tile.key_end - origin);
  const auto visit = [&](int64_t begin, int64_t columns) {
    const int64_t first = origin + begin;
    const int64_t last = first + columns;
    bool any = false;
    bool masked = last > unit.component.key_end;
    for (int64_t i = tile.begin; i < tile.end; ++i) {
      any = any || (row.first[i] < last && row.end[i] > first &&
                    row.first[i] < row.end[i]);
      masked = masked || row.first[i] > first || row.end[i] < last;
    }
    const int64_t bound =
        last < unit.component.key_end ? last : unit.component.key_end;
    for (int64_t key = first; key < bound; ++key) {
      any = any || (row.global != nullptr && row.global[key] != 0);
      masked = masked || (row.seen != nullptr && row.seen[key] == 0);
    }
    if (any) {
      body(AttentionBlock{begin, columns, masked});
    }
  };
  const auto range = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kAttentionKeys) {
      visit(at, end - at < kAttentionKeys ? end - at : kAttentionKeys);
    }
  };
  if (row.global != nullptr) {
    range(0, near_begin);
  }
  range(near_begin, near_end);
  if (row.global != nullptr) {
    range(near_end, all);
  }
}

/// Sets the scores of pairs that do not see each other to -infinity.
inline void attention_hide(
    const AttentionUnit& unit,
    const AttentionBlock& block,
    int64_t query,
    float* scores) {
  const AttentionRow& row = unit.row;
  const int64_t first = unit.component.key_begin + block.begin;
  const auto clamped = [&](int64_t key) {
    const int64_t at = key - first;
    return at < 0 ? 0 : at > block.columns ? block.columns : at;
  };
  const int64_t begin = clamped(row.first[query]);
  const int64_t end = clamped(row.end[query]);
  const int64_t bound = clamped(unit.component.key_end);
  const auto hide = [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      if (row.global == nullptr || i >= bound || row.global[first + i] == 0) {
        scores[i] = kAttentionHidden;
      }
    }
  };
  if (begin < end) {
    hide(0, begin);
    hide(end, block.columns);
  } else {
    hide(0, block.columns);
  }
  if (row.seen != nullptr) {
    for (int64_t i = 0; i < bound; ++i) {
      if (row.seen[first + i] == 0) {
        scores[i] = kAttentionHidden;
      }
    }
  }
}

/// What dropout multiplies a query's weights of a block with.
template <typename Vec>
void attention_keep(
    const AttentionArguments& all,
    const AttentionUnit& unit,
    const AttentionBlock& block,
    int64_t head,
    int64_t query,
    float* kept) {
  const DroppedWeights dropped = all.dropped; // which nothing writes to
  const uint64_t key = dropped.key_of(unit.batch, head, all.queries, query);
  const int64_t first = unit.component.key_begin + block.begin;
  for (int64_t i = 0; i < block.columns; ++i) {
    kept[i] = dropped.kept(key, first + i);
  }
}

/// Rows of a tile's queries, or of what has their shape: [fours, padded].
template <typename Vec, LowPrecision kFormat>
void attention_pack_tile(
    const AttentionMatrix& from,
    const AttentionUnit& unit,
    const AttentionTile& tile,
    int64_t head,
    int64_t columns,
    float factor,
    float* to) {
  const int64_t padded = attention_padded(columns);
  const int64_t rows = tile.end - tile.begin;
  for (int64_t i = 0; i < rows; ++i) {
    attention_load<Vec, kFormat>(
        attention_row<kFormat>(from, unit.batch, head, tile.begin + i),
        columns,
        padded,
        factor,
        to + i * padded);
  }
  for (int64_t i = rows * padded; i < attention_fours(rows) * padded; ++i) {
    to[i] = 0;
  }
}

/// Takes the rows' next scores into account, which become weights.
template <typename Vec>
void attention_softmax(
    int64_t columns,
    float* scores,
    float* largest,
    float* sum,
    float* out,
    int64_t out_columns) {
  Vec most(kAttentionHidden);
  for (int64_t i = 0; i < columns; i += Vec::kWidth) {
    most = larger(most, Vec::load(scores + i));
  }
  const float before = *largest;
  const float of_block = attention_largest(most);
  const float now = of_block > before ? of_block : before;
  if (now == kAttentionHidden) {
    for (int64_t i = 0; i < columns; ++i) {
      scores[i] = 0;
    }
    return;
  }
  const Vec shift(-now);
  Vec total(0.0F);
  for (int64_t i = 0; i < columns; i += Vec::kWidth) {
    const Vec weight = exponential(Vec::load(scores + i) + shift);
    weight.store(scores + i);
    total = total + weight;
  }
  if (now != before && before != kAttentionHidden) {
    const float factor = expf(before - now);
    *sum *= factor;
    const Vec by(factor);
    for (int64_t i = 0; i < out_columns; i += Vec::kWidth) {
      (Vec::load(out + i) * by).store(out + i);
    }
  }
  *sum += attention_sum(total);
  *largest = now;
}

template <typename Vec, LowPrecision kFormat>
void attention_forward_as(
    const AttentionArguments& all,
    const AttentionUnit& unit,
    float* scratch) {
  const int64_t wide = attention_padded(all.features);
  const int64_t values = attention_padded(all.value_features);
  const int64_t columns =
      attention_padded(unit.component.key_end - unit.component.key_begin);
  float* const key_panels = scratch;
  float* const value_rows = key_panels + columns * wide;
  float* const query = value_rows + columns * values;
  float* const out = query + kAttentionRows * wide;
  float* const scores = out + kAttentionRows * values;
  float kept[kAttentionKeys];
  float* const largest = scores + kAttentionRows * kAttentionKeys;
  float* const sums = largest + kAttentionRows;
  attention_pack_columns<Vec, kFormat>(
      all.key, unit, all.features, query, key_panels);
  attention_pack_rows<Vec, kFormat>(
      all.value, unit, all.value_features, value_rows);
  for (int64_t of_group = 0; of_group < all.group; ++of_group) {
    const int64_t head = unit.key_head * all.group + of_group;
    for (int64_t t = unit.component.begin; t < unit.component.end; ++t) {
      const AttentionTile& tile = unit.tiles[t];
      const int64_t rows = tile.end - tile.begin;
      attention_pack_tile<Vec, kFormat>(
          all.query, unit, tile, head, all.features, all.scale, query);
      for (int64_t i = 0; i < rows; ++i) {
        largest[i] = kAttentionHidden;
        sums[i] = 0;
      }
      for (int64_t i = 0; i < attention_fours(rows) * values; ++i) {
        out[i] = 0;
      }
      attention_blocks(unit, tile, [&](const AttentionBlock& block) {
        attention_product<Vec>(
            {query, wide, 1},
            {key_panels + block.begin * all.features,
             all.features * kAttentionPanel,
             kAttentionPanel},
            attention_fours(rows),
            block.columns / kAttentionPanel,
            all.features,
            scores,
            kAttentionKeys,
            false);
        for (int64_t i = 0; i < rows; ++i) {
          float* const row = scores + i * kAttentionKeys;
          if (block.masked) {
            attention_hide(unit, block, tile.begin + i, row);
          }
          attention_softmax<Vec>(
              block.columns,
              row,
              largest + i,
              sums + i,
              out + i * values,
              values);
          if (all.dropped.threshold != 0) {
            attention_keep<Vec>(all, unit, block, head, tile.begin + i, kept);
            for (int64_t k = 0; k < block.columns; k += Vec::kWidth) {
              (Vec::load(row + k) * Vec::load(kept + k)).store(row + k);
            }
          }
        }
        attention_product<Vec>(
            {scores, kAttentionKeys, 1},
            {value_rows + block.begin * values, kAttentionPanel, values},
            attention_fours(rows),
            values / kAttentionPanel,
            block.columns,
            out,
            values,
            true);
      });
      float* const log_sums =
          all.log_sums + (unit.batch * all.heads + head) * all.queries;
      for (int64_t i = 0; i < rows; ++i) {
        attention_store<Vec, kFormat>(
            out + i * values,
            all.value_features,
            sums[i] > 0 ? 1 / sums[i] : 0,
            attention_row_to<kFormat>(
                all.out, unit.batch, head, tile.begin + i));
        log_sums[tile.begin + i] = largest[i] + logf(sums[i]);
      }
    }
  }
}

template <typename Vec, LowPrecision kFormat>
void attention_backward_as(
    const AttentionArguments& all,
    const AttentionUnit& unit,
    float* scratch) {
  const int64_t wide = attention_padded(all.features);
  const int64_t values = attention_padded(all.value_features);
  const int64_t keys = unit.component.key_end - unit.component.key_begin;
  const int64_t columns = attention_padded(keys);
  float* const key_panels = scratch;
  float* const key_rows = key_panels + columns * wide;
  float* const key_sums = key_rows + columns * wide;
  float* const value_panels = key_sums + columns * wide;
  float* const value_sums = value_panels + columns * values;
  float* const query = value_sums + columns * values;
  float* const query_sums = query + kAttentionRows * wide;
  float* const gradient = query_sums + kAttentionRows * wide;
  float* const weights = gradient + kAttentionRows * values;
  float* const slopes = weights + kAttentionRows * kAttentionKeys;
  float* const log_sums = slopes + kAttentionRows * kAttentionKeys;
  float* const deltas = log_sums + kAttentionRows;
  float kept[kAttentionKeys];
  attention_pack_columns<Vec, kFormat>(
      all.key, unit, all.features, query, key_panels);
  attention_pack_columns<Vec, kFormat>(
      all.value, unit, all.value_features, gradient, value_panels);
  attention_pack_rows<Vec, kFormat>(all.key, unit, all.features, key_rows);
  for (int64_t i = 0; i < columns * wide; ++i) {
    key_sums[i] = 0;
  }
  for (int64_t i = 0; i < columns * values; ++i) {
    value_sums[i] = 0;
  }
  for (int64_t of_group = 0; of_group < all.group; ++of_group) {
    const int64_t head = unit.key_head * all.group + of_group;
    const float* const saved =
        all.log_sums + (unit.batch * all.heads + head) * all.queries;
    for (int64_t t = unit.component.begin; t < unit.component.end; ++t) {
      const AttentionTile& tile = unit.tiles[t];
      const int64_t rows = tile.end - tile.begin;
      attention_pack_tile<Vec, kFormat>(
          all.gradient, unit, tile, head, all.value_features, 1, gradient);
      for (int64_t i = 0; i < rows; ++i) {
        const void* const out =
            attention_row<kFormat>(all.out, unit.batch, head, tile.begin + i);
        const float* const of_row = gradient + i * values;
        Vec product(0.0F);
        for_each_vector<Vec>(
            0, all.value_features, [&](int64_t k, auto... count) {
              product =
                  fma(Vec::load(of_row + k, count...),
                      load_as<kFormat, Vec>(out, k, count...),
                      product);
            });
        deltas[i] = attention_sum(product);
        const float log_sum = saved[tile.begin + i];
        log_sums[i] = log_sum == kAttentionHidden ? 0 : log_sum;
      }
      attention_pack_tile<Vec, kFormat>(
          all.query, unit, tile, head, all.features, all.scale, query);
      for (int64_t i = 0; i < attention_fours(rows) * wide; ++i) {
        query_sums[i] = 0;
      }
      attention_blocks(unit, tile, [&](const AttentionBlock& block) {
        const int64_t panels = block.columns / kAttentionPanel;
        const int64_t fours = attention_fours(rows);
        attention_product<Vec>(
            {query, wide, 1},
            {key_panels + block.begin * all.features,
             all.features * kAttentionPanel,
             kAttentionPanel},
            fours,
            panels,
            all.features,
            weights,
            kAttentionKeys,
            false);
        attention_product<Vec>(
            {gradient, values, 1},
            {value_panels + block.begin * all.value_features,
             all.value_features * kAttentionPanel,
             kAttentionPanel},
            fours,
            panels,
            all.value_features,
            slopes,
            kAttentionKeys,
            false);
        for (int64_t i = 0; i < rows; ++i) {
          float* const row = weights + i * kAttentionKeys;
          float* const slope = slopes + i * kAttentionKeys;
          if (block.masked) {
            attention_hide(unit, block, tile.begin + i, row);
          }
          const Vec shift(-log_sums[i]);
          const Vec delta(deltas[i]);
          if (all.dropped.threshold == 0) {
            for (int64_t k = 0; k < block.columns; k += Vec::kWidth) {
              const Vec weight = exponential(Vec::load(row + k) + shift);
              weight.store(row + k);
              (weight * (Vec::load(slope + k) - delta)).store(slope + k);
            }
            continue;
          }
          attention_keep<Vec>(all, unit, block, head, tile.begin + i, kept);
          for (int64_t k = 0; k < block.columns; k += Vec::kWidth) {
            const Vec weight = exponential(Vec::load(row + k) + shift);
            const Vec keep = Vec::load(kept + k);
            (weight * keep).store(row + k);
            (weight * (Vec::load(slope + k) * keep - delta)).store(slope + k);
          }
        }
        attention_product<Vec>(
            {weights, 1, kAttentionKeys},
            {gradient, kAttentionPanel, values},
            block.columns,
            values / kAttentionPanel,
            rows,
            value_sums + block.begin * values,
            values,
            true);
        attention_product<Vec>(
            {slopes, 1, kAttentionKeys},
            {query, kAttentionPanel, wide},
            block.columns,
            wide / kAttentionPanel,
            rows,
            key_sums + block.begin * wide,
            wide,
            true);
        attention_product<Vec>(
            {slopes, kAttentionKeys, 1},
            {key_rows + block.begin * wide, kAttentionPanel, wide},
            fours,
            wide / kAttentionPanel,
            block.columns,
            query_sums,
            wide,
            true);
      });
      for (int64_t i = 0; i < rows; ++i) {
        attention_store<Vec, kFormat>(
            query_sums + i * wide,
            all.features,
            all.scale,
            attention_row_to<kFormat>(
                all.query_gradient, unit.batch, head, tile.begin + i));
      }
    }
  }
  for (int64_t i = 0; i < keys; ++i) {
    const int64_t key = unit.component.key_begin + i;
    attention_store<Vec, kFormat>(
        key_sums + i * wide,
        all.features,
        1,
        attention_row_to<kFormat>(
            all.key_gradient, unit.batch, unit.key_head, key));
    attention_store<Vec, kFormat>(
        value_sums + i * values,
        all.value_features,
        1,
        attention_row_to<kFormat>(
            all.value_gradient, unit.batch, unit.key_head, key));
  }
}

template <typename Vec>
void attention_unit_forward(
    const AttentionArguments& all,
    const AttentionUnit& unit,
    float* scratch) {
  with_format(all.type, [&]<LowPrecision kFormat>() {
    attention_forward_as<Vec, kFormat>(all, unit, scratch);
  });
}

template <typename Vec>
void attention_unit_backward(
    const AttentionArguments& all,
    const AttentionUnit& unit,
    float* scratch) {
  with_format(all.type, [&]<LowPrecision kFormat>() {
    attention_backward_as<Vec, kFormat>(all, unit, scratch);
  });
}

} // namespace tessera::runtime::detail
