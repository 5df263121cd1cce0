// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizers/factored_moment.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace tessera::engine {

namespace {

/// Rows of a stretch of a stack: whole ones, or a part of a single one.
struct MomentBlock {
  at::Tensor values; ///< [rows, columns of the block]
  int64_t row = 0; ///< the first one, counted over all matrices
  int64_t column = 0;
};

/// Splits the stretch into at most three kinds of blocks: the end of a row,
/// whole rows of one matrix at a time, the start of a row.
void for_each_block(
    const FactoredShape& shape,
    const at::Tensor& values,
    int64_t offset,
    const std::function<void(const MomentBlock&)>& body) {
  const int64_t end = offset + values.numel();
  for (int64_t at = offset; at < end;) {
    const int64_t row = at / shape.columns;
    const int64_t column = at % shape.columns;
    int64_t rows = (end - at) / shape.columns;
    int64_t columns = shape.columns;
    if (column != 0 || rows == 0) {
      rows = 1;
      columns = std::min(shape.columns - column, end - at);
    } else {
      rows = std::min(rows, shape.rows - row % shape.rows);
    }
    body(
        {values.narrow(0, at - offset, rows * columns).view({rows, columns}),
         row,
         column});
    at += rows * columns;
  }
}

} // namespace

std::optional<FactoredShape> FactoredShape::of(const at::Tensor& parameter) {
  const int64_t dims = parameter.dim();
  if (dims < 2) {
    return std::nullopt;
  }
  std::vector<int64_t> order(static_cast<size_t>(dims));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return parameter.stride(a) > parameter.stride(b);
  });
  const at::Tensor in_memory = parameter.detach().permute(order);
  FactoredShape shape;
  shape.rows = in_memory.size(dims - 2);
  shape.columns = in_memory.size(dims - 1);
  if (!in_memory.is_contiguous() || shape.rows <= 1 || shape.columns <= 1) {
    return std::nullopt;
  }
  shape.matrices = parameter.numel() / (shape.rows * shape.columns);
  return shape;
}

void FactoredShape::add_sums(
    const at::Tensor& values,
    int64_t offset,
    const at::Tensor& sums) const {
  for_each_block(*this, values, offset, [&](const MomentBlock& block) {
    sums.narrow(0, block.row, block.values.size(0))
        .add_(block.values.sum(1, false, at::kDouble).to(sums.device()));
    const int64_t matrix = block.row / rows;
    sums.narrow(
            0,
            matrices * rows + matrix * columns + block.column,
            block.values.size(1))
        .add_(block.values.sum(0, false, at::kDouble).to(sums.device()));
  });
}

at::Tensor FactoredShape::means_of(const at::Tensor& sums) const {
  return at::cat(
      {sums.narrow(0, 0, matrices * rows) / static_cast<double>(columns),
       sums.narrow(0, matrices * rows, matrices * columns) /
           static_cast<double>(rows)});
}

void FactoredShape::divide_by_root(
    const at::Tensor& values,
    int64_t offset,
    const at::Tensor& factors) const {
  const at::Tensor all_rows =
      factors.narrow(0, 0, matrices * rows).view({matrices, rows});
  const at::Tensor row_roots =
      (all_rows / all_rows.mean(1, /*keepdim=*/true)).sqrt_().view({-1});
  const at::Tensor column_roots =
      factors.narrow(0, matrices * rows, matrices * columns).sqrt();
  for_each_block(*this, values, offset, [&](const MomentBlock& block) {
    const int64_t matrix = block.row / rows;
    block.values.div_(
        row_roots.narrow(0, block.row, block.values.size(0)).unsqueeze(1));
    block.values.div_(column_roots.narrow(
        0, matrix * columns + block.column, block.values.size(1)));
  });
}

} // namespace tessera::engine
