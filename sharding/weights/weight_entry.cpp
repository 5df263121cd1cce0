// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weights/weight_entry.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/checksum.h"
#include "tessera/sharding/tensors/tensor_io.h"

#include <ATen/ops/empty.h>

namespace tessera::sharding {

void DataCheck::verify() const {
  if (is_good_) {
    return;
  }
  const std::string found = runtime::checksum_of(data_);
  TESSERA_CHECK(
      found == checksum_,
      "{} has the checksum {}; the manifest says {}; the checkpoint is damaged: load another one",
      label_,
      found,
      checksum_);
  is_good_ = true;
}

WeightEntry full_entry(const runtime::SafetensorsEntry& entry) {
  WeightEntry full{entry.name, entry.dtype, entry.shape, {}};
  if (!entry.data.empty()) {
    full.regions.push_back(
        {{std::vector<int64_t>(entry.shape.size(), 0),
          entry.shape,
          {0, row_major_strides(entry.shape)}},
         entry.data});
  }
  return full;
}

void read_regions(
    const WeightEntry& entry,
    std::span<const FileRegion> regions,
    std::span<const TensorBlock> here,
    const at::Tensor& target) {
  for (const FileRegion& region : regions) {
    const StoredElements elements{entry.name, entry.dtype, region.data};
    for (const CommonBlock& common : intersect(here, {&region.block, 1})) {
      if (region.check) {
        region.check->verify();
      }
      read_block(elements, common, target);
    }
  }
}

void verify_regions(
    std::span<const FileRegion> regions,
    std::span<const TensorBlock> here) {
  for (const FileRegion& region : regions) {
    if (region.check && !intersect(here, {&region.block, 1}).empty()) {
      region.check->verify();
    }
  }
}

at::Tensor loaded_tensor(const WeightEntry& entry) {
  at::Tensor tensor =
      at::empty(entry.shape, loaded_dtype_of(entry.name, entry.dtype));
  const TensorBlock full{
      std::vector<int64_t>(entry.shape.size(), 0),
      entry.shape,
      {0, row_major_strides(entry.shape)}};
  read_regions(entry, entry.regions, {&full, 1}, tensor);
  return tensor;
}

} // namespace tessera::sharding
