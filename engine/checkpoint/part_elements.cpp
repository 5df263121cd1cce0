// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/part_elements.h"

#include <algorithm>
#include <limits>

namespace tessera::engine {

namespace {

/// Where a part lies in the memory of the whole: element e of the part is
/// element start + e / row * pitch + e % row of the whole, or start + e without
/// a pitch.
struct PartRows {
  int64_t start = 0;
  int64_t row = 0;
  int64_t pitch = 0;
};

PartRows rows_of(
    std::span<const int64_t> sizes,
    const std::optional<DimPart>& part) {
  if (!part) {
    return {};
  }
  int64_t outer = 1;
  int64_t inner = 1;
  const auto dim = static_cast<size_t>(part->dim);
  for (size_t d = 0; d < sizes.size(); ++d) {
    (d < dim ? outer : inner) *= d == dim ? 1 : sizes[d];
  }
  const int64_t start = part->begin * inner;
  const int64_t row = (part->end - part->begin) * inner;
  const int64_t pitch = sizes[dim] * inner;
  return outer == 1 || row == pitch ? PartRows{start, 0, 0}
                                    : PartRows{start, row, pitch};
}

/// Elements of the whole, seen as a table of rows of some pitch.
struct ElementBlock {
  int64_t row;
  int64_t rows;
  int64_t column;
  int64_t columns;
  int64_t at; ///< in the stretch
  int64_t pitch; ///< from row to row, there
};

/// Elements [from, from + numel) of columns [column, column + columns) of the
/// table, counted row by row: the end of a row, full rows, the beginning of
/// one.
void add_blocks(
    int64_t column,
    int64_t columns,
    int64_t from,
    int64_t numel,
    int64_t at,
    std::vector<ElementBlock>& blocks) {
  const auto add = [&](int64_t rows, int64_t skipped, int64_t taken) {
    if (rows > 0 && taken > 0) {
      blocks.push_back(
          {from / columns, rows, column + skipped, taken, at, taken});
      from += rows * taken;
      at += rows * taken;
      numel -= rows * taken;
    }
  };
  const int64_t skipped = from % columns;
  if (skipped > 0) {
    add(1, skipped, std::min(numel, columns - skipped));
  }
  add(numel / columns, 0, columns);
  add(1, 0, numel);
}

std::vector<ElementBlock> blocks_of(
    const PartRows& part,
    const PartStretch& stretch,
    int64_t pitch) {
  std::vector<ElementBlock> blocks;
  if (part.pitch == pitch) {
    add_blocks(part.start, part.row, stretch.offset, stretch.numel, 0, blocks);
  } else if (part.pitch == 0) {
    add_blocks(0, pitch, part.start + stretch.offset, stretch.numel, 0, blocks);
  } else { // rows of several of the table's rows
    for (int64_t done = 0; done < stretch.numel;) {
      const int64_t element = stretch.offset + done;
      const int64_t skipped = element % part.row;
      const int64_t taken = std::min(part.row - skipped, stretch.numel - done);
      add_blocks(
          0,
          pitch,
          part.start + element / part.row * part.pitch + skipped,
          taken,
          done,
          blocks);
      done += taken;
    }
  }
  return blocks;
}

} // namespace

std::vector<int64_t> row_major_strides(std::span<const int64_t> sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * sizes[d];
  }
  return strides;
}

int64_t numel_of(std::span<const int64_t> sizes, const DimPart& part) {
  int64_t numel = part.end - part.begin;
  for (size_t d = 0; d < sizes.size(); ++d) {
    numel *= static_cast<int64_t>(d) == part.dim ? 1 : sizes[d];
  }
  return numel;
}

std::vector<CommonRuns> common_runs(
    std::span<const int64_t> sizes,
    const PartStretch& a,
    const PartStretch& b) {
  const PartRows a_rows = rows_of(sizes, a.part);
  const PartRows b_rows = rows_of(sizes, b.part);
  // Rows of an earlier dimension consist of rows of a later one.
  int64_t pitch = std::numeric_limits<int64_t>::max();
  for (const PartRows& rows : {a_rows, b_rows}) {
    pitch = rows.pitch > 0 ? std::min(pitch, rows.pitch) : pitch;
  }
  std::vector<CommonRuns> common;
  const std::vector<ElementBlock> b_blocks = blocks_of(b_rows, b, pitch);
  for (const ElementBlock& x : blocks_of(a_rows, a, pitch)) {
    for (const ElementBlock& y : b_blocks) {
      const int64_t row = std::max(x.row, y.row);
      const int64_t rows = std::min(x.row + x.rows, y.row + y.rows) - row;
      const int64_t column = std::max(x.column, y.column);
      const int64_t columns =
          std::min(x.column + x.columns, y.column + y.columns) - column;
      if (rows > 0 && columns > 0) {
        common.push_back(
            {rows,
             columns,
             x.at + (row - x.row) * x.pitch + column - x.column,
             x.pitch,
             y.at + (row - y.row) * y.pitch + column - y.column,
             y.pitch});
      }
    }
  }
  return common;
}

} // namespace tessera::engine
