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
    full.pieces.push_back(
        {{std::vector<int64_t>(entry.shape.size(), 0),
          entry.shape,
          {0, row_major_strides(entry.shape)}},
         entry.data});
  }
  return full;
}

void read_pieces(
    const WeightEntry& entry,
    std::span<const WeightPiece> pieces,
    std::span<const TensorBlock> here,
    const at::Tensor& target) {
  for (const WeightPiece& piece : pieces) {
    const StoredElements elements{entry.name, entry.dtype, piece.data};
    for (const CommonBlock& common : intersect(here, {&piece.block, 1})) {
      if (piece.check) {
        piece.check->verify();
      }
      read_block(elements, common, target);
    }
  }
}

void verify_pieces(
    std::span<const WeightPiece> pieces,
    std::span<const TensorBlock> here) {
  for (const WeightPiece& piece : pieces) {
    if (piece.check && !intersect(here, {&piece.block, 1}).empty()) {
      piece.check->verify();
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
  read_pieces(entry, entry.pieces, {&full, 1}, tensor);
  return tensor;
}

} // namespace tessera::sharding
