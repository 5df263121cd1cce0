// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensors/tensor_blocks.h"

#include <c10/util/accumulate.h>

#include <algorithm>

namespace tessera::sharding {

namespace {

/// Divides a stretch of a box, in row-major order, into boxes: the end of a
/// row, full rows, the beginning of one, and so in each dimension.
class StretchBlocks {
 public:
  StretchBlocks(
      std::span<const int64_t> sizes,
      std::span<const DimRange> ranges,
      int64_t offset)
      : begin_(sizes.size(), 0), sizes_(sizes.begin(), sizes.end()) {
    for (const DimRange& range : ranges) {
      const auto dim = static_cast<size_t>(range.dim);
      begin_[dim] = range.begin;
      sizes_[dim] = range.end - range.begin;
    }
    strides_ = row_major_strides(sizes_);
    first_ = offset;
  }

  /// Adds elements [from, from + count) of dimensions `dim` and later; the
  /// indices of earlier ones are in `index`.
  void add(
      size_t dim,
      std::vector<int64_t> index,
      int64_t from,
      int64_t count) {
    if (count == 0) {
      return;
    }
    if (dim == sizes_.size()) {
      emit(dim, index, 0, 1);
      return;
    }
    const int64_t inner = strides_[dim];
    int64_t row = from / inner;
    const auto enter = [&](int64_t skipped, int64_t taken) {
      if (taken > 0) {
        index.push_back(row);
        add(dim + 1, index, skipped, taken);
        index.pop_back();
        count -= taken;
        ++row;
      }
    };
    if (const int64_t skipped = from % inner; skipped > 0) {
      enter(skipped, std::min(count, inner - skipped));
    }
    if (const int64_t rows = count / inner; rows > 0) {
      emit(dim, index, row, rows);
      row += rows;
      count -= rows * inner;
    }
    enter(0, count);
  }

  std::vector<TensorBlock> take() {
    return std::move(blocks_);
  }

 private:
  /// @param index of the dimensions before `dim`.
  void emit(
      size_t dim,
      const std::vector<int64_t>& index,
      int64_t row,
      int64_t rows) {
    TensorBlock block{begin_, sizes_, {-first_, strides_}};
    for (size_t d = 0; d <= dim && d < sizes_.size(); ++d) {
      const int64_t first = d < dim ? index[d] : row;
      block.begin[d] += first;
      block.sizes[d] = d < dim ? 1 : rows;
      block.layout.offset += first * strides_[d];
    }
    blocks_.push_back(std::move(block));
  }

  std::vector<int64_t> begin_; ///< of the box
  std::vector<int64_t> sizes_; ///< of the box
  std::vector<int64_t> strides_; ///< in the memory of the box
  int64_t first_ = 0; ///< element of the stretch
  std::vector<TensorBlock> blocks_;
};

/// Drops dimensions of one element and joins those that follow each other
/// without a gap in both places.
CommonBlock joined(const CommonBlock& block) {
  CommonBlock result{{}, {block.here.offset, {}}, {block.there.offset, {}}};
  for (size_t d = 0; d < block.sizes.size(); ++d) {
    const int64_t size = block.sizes[d];
    const int64_t here = block.here.strides[d];
    const int64_t there = block.there.strides[d];
    if (size == 1) {
      continue;
    }
    if (!result.sizes.empty() && result.here.strides.back() == size * here &&
        result.there.strides.back() == size * there) {
      result.sizes.back() *= size;
      result.here.strides.back() = here;
      result.there.strides.back() = there;
    } else {
      result.sizes.push_back(size);
      result.here.strides.push_back(here);
      result.there.strides.push_back(there);
    }
  }
  return result;
}

} // namespace

int64_t CommonBlock::numel() const {
  return c10::multiply_integers(sizes);
}

std::vector<int64_t> row_major_strides(std::span<const int64_t> sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * sizes[d];
  }
  return strides;
}

int64_t numel_of(
    std::span<const int64_t> sizes,
    std::span<const DimRange> ranges) {
  int64_t numel = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto found =
        std::find_if(ranges.begin(), ranges.end(), [&](const auto& range) {
          return range.dim == static_cast<int64_t>(d);
        });
    numel *= found == ranges.end() ? sizes[d] : found->end - found->begin;
  }
  return numel;
}

std::vector<TensorBlock> blocks_of(
    std::span<const int64_t> sizes,
    const TensorSlice& part) {
  const int64_t all = numel_of(sizes, part.ranges);
  const int64_t from = std::min(part.offset, all);
  StretchBlocks blocks(sizes, part.ranges, part.offset);
  blocks.add(0, {}, from, std::min(part.numel, all - from));
  return blocks.take();
}

std::vector<CommonBlock> intersect(
    std::span<const TensorBlock> here,
    std::span<const TensorBlock> there) {
  std::vector<CommonBlock> common;
  for (const TensorBlock& a : here) {
    for (const TensorBlock& b : there) {
      CommonBlock block{{}, a.layout, b.layout};
      bool is_empty = false;
      for (size_t d = 0; d < a.sizes.size(); ++d) {
        const int64_t begin = std::max(a.begin[d], b.begin[d]);
        const int64_t end =
            std::min(a.begin[d] + a.sizes[d], b.begin[d] + b.sizes[d]);
        is_empty = is_empty || begin >= end;
        block.sizes.push_back(end - begin);
        block.here.offset += (begin - a.begin[d]) * a.layout.strides[d];
        block.there.offset += (begin - b.begin[d]) * b.layout.strides[d];
      }
      if (!is_empty) {
        common.push_back(joined(block));
      }
    }
  }
  return common;
}

std::vector<CommonBlock> intersect(
    std::span<const int64_t> sizes,
    const TensorSlice& here,
    const TensorSlice& there) {
  if (here.ranges != there.ranges) {
    return intersect(blocks_of(sizes, here), blocks_of(sizes, there));
  }
  // In one order. Memory may have gaps, which `sizes` does not know.
  const int64_t begin = std::max(here.offset, there.offset);
  const int64_t end =
      std::min(here.offset + here.numel, there.offset + there.numel);
  if (begin >= end) {
    return {};
  }
  return {
      {{end - begin}, {begin - here.offset, {1}}, {begin - there.offset, {1}}}};
}

} // namespace tessera::sharding
