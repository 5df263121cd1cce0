// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weights/file_regions.h"

#include "tessera/runtime/core/error.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

namespace tessera::sharding {

WeightEntry transposed(WeightEntry entry) {
  if (entry.shape.size() != 2) {
    return entry;
  }
  std::swap(entry.shape[0], entry.shape[1]);
  for (FileRegion& region : entry.regions) {
    TensorBlock& block = region.block;
    for (auto* one : {&block.begin, &block.sizes, &block.layout.strides}) {
      std::swap((*one)[0], (*one)[1]);
    }
  }
  return entry;
}

WeightEntry narrowed(
    WeightEntry entry,
    int64_t dim,
    int64_t begin,
    int64_t end) {
  const auto d = static_cast<size_t>(dim);
  TESSERA_CHECK(
      d < entry.shape.size() && 0 <= begin && begin <= end &&
          end <= entry.shape[d],
      "the tensor '{}' of sizes {} has no indices [{}, {}) in dimension {}",
      entry.name,
      at::IntArrayRef(entry.shape),
      begin,
      end,
      dim);
  std::vector<FileRegion> kept;
  for (FileRegion& region : entry.regions) {
    TensorBlock& block = region.block;
    const int64_t first = std::max(block.begin[d], begin);
    const int64_t last = std::min(block.begin[d] + block.sizes[d], end);
    if (first < last) {
      block.layout.offset += (first - block.begin[d]) * block.layout.strides[d];
      block.begin[d] = first - begin;
      block.sizes[d] = last - first;
      kept.push_back(std::move(region));
    }
  }
  entry.regions = std::move(kept);
  entry.shape[d] = end - begin;
  return entry;
}

WeightEntry every(WeightEntry entry, int64_t dim, int64_t first, int64_t step) {
  const auto d = static_cast<size_t>(dim);
  TESSERA_CHECK(
      d < entry.shape.size() && 0 <= first && first < step,
      "the tensor '{}' of sizes {} has no dimension {} of which every {}th index from {} could be taken",
      entry.name,
      at::IntArrayRef(entry.shape),
      dim,
      step,
      first);
  // The number of wanted indices below `index`.
  const auto wanted_below = [&](int64_t index) {
    return index <= first ? 0 : (index - first + step - 1) / step;
  };
  std::vector<FileRegion> kept;
  for (FileRegion& region : entry.regions) {
    TensorBlock& block = region.block;
    const int64_t begin = wanted_below(block.begin[d]);
    const int64_t end = wanted_below(block.begin[d] + block.sizes[d]);
    if (begin < end) {
      int64_t& stride = block.layout.strides[d];
      block.layout.offset += (first + begin * step - block.begin[d]) * stride;
      stride *= step;
      block.begin[d] = begin;
      block.sizes[d] = end - begin;
      kept.push_back(std::move(region));
    }
  }
  entry.regions = std::move(kept);
  entry.shape[d] = wanted_below(entry.shape[d]);
  return entry;
}

WeightEntry concatenated(
    const std::string& name,
    std::span<const WeightEntry> parts,
    int64_t dim) {
  TESSERA_CHECK(!parts.empty(), "there are no parts of '{}'", name);
  const auto d = static_cast<size_t>(dim);
  WeightEntry full = parts.front();
  full.name = name;
  for (const WeightEntry& part : parts.subspan(1)) {
    std::vector<int64_t> sizes = part.shape;
    if (d < sizes.size() && d < full.shape.size()) {
      sizes[d] = full.shape[d];
    }
    TESSERA_CHECK(
        d < sizes.size() && sizes == full.shape && part.dtype == full.dtype,
        "'{}' of sizes {} ({}) and '{}' of sizes {} ({}) cannot be concatenated along dimension {}",
        parts.front().name,
        at::IntArrayRef(parts.front().shape),
        name_of(full.dtype),
        part.name,
        at::IntArrayRef(part.shape),
        name_of(part.dtype),
        dim);
    for (FileRegion region : part.regions) {
      region.block.begin[d] += full.shape[d];
      full.regions.push_back(std::move(region));
    }
    full.shape[d] += part.shape[d];
  }
  return full;
}

WeightEntry unflattened(
    const std::string& name,
    const std::vector<int64_t>& shape,
    std::span<const WeightStretch> stretches) {
  WeightEntry full{name, runtime::SafetensorsDtype::kF32, shape, {}};
  const int64_t numel = numel_of(shape, {});
  int64_t done = 0;
  for (const WeightStretch& stretch : stretches) {
    const WeightEntry& flat = *stretch.flat;
    TESSERA_CHECK(
        flat.shape.size() == 1 && flat.regions.size() <= 1 &&
            stretch.offset >= 0 && stretch.numel >= 0 &&
            stretch.offset <= flat.shape[0] - stretch.numel,
        "'{}' has the elements [{}, {}) of '{}', which has the sizes {}",
        name,
        stretch.offset,
        stretch.offset + stretch.numel,
        flat.name,
        at::IntArrayRef(flat.shape));
    full.dtype = flat.dtype;
    if (stretch.numel == 0) {
      continue;
    }
    const FileRegion& from = flat.regions.front();
    TESSERA_CHECK(
        from.block.layout.strides[0] == 1 && done + stretch.numel <= numel,
        "'{}' of sizes {} has more elements in the files",
        name,
        at::IntArrayRef(shape));
    for (TensorBlock block : blocks_of(shape, {{}, done, stretch.numel})) {
      block.layout.offset += from.block.layout.offset + stretch.offset;
      full.regions.push_back({std::move(block), from.data});
    }
    done += stretch.numel;
  }
  TESSERA_CHECK(
      done == numel,
      "of '{}', which has {} elements, only {} are in the files",
      name,
      numel,
      done);
  return full;
}

} // namespace tessera::sharding
