// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/activation_room.h"

#include "tessera/runtime/core/log.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>

namespace tessera {

ActivationRoom::ActivationRoom(bool pinned, std::optional<int64_t> limit_bytes)
    : pinned_(pinned), limit_bytes_(limit_bytes) {}

HostPiece ActivationRoom::take(int64_t bytes) {
  for (size_t i = 0; i < slabs_.size(); ++i) {
    if (HostPiece piece = take_from(i, bytes); piece.defined()) {
      return piece;
    }
  }
  if (!add_slab(bytes)) {
    return {};
  }
  return take_from(slabs_.size() - 1, bytes);
}

HostPiece ActivationRoom::take_from(size_t slab, int64_t bytes) {
  Slab& from = slabs_[slab];
  const auto offset = from.allocator.allocate(bytes);
  if (!offset) {
    return {};
  }
  return {
      from.buffer.narrow(0, *offset, bytes),
      from.marks.marks_of(*offset, *offset + bytes),
      slab,
      *offset};
}

void ActivationRoom::give_back(HostPiece& piece) {
  Slab& slab = slabs_[piece.slab];
  slab.allocator.release(piece.offset);
  slab.marks.leave(
      piece.offset, piece.offset + piece.bytes.numel(), piece.after);
  piece = {};
}

bool ActivationRoom::add_slab(int64_t bytes) {
  const int64_t rounded = (bytes + OffsetAllocator::kAlignment - 1) /
                          OffsetAllocator::kAlignment *
                          OffsetAllocator::kAlignment;
  int64_t capacity = std::max(rounded, kSlabBytes);
  if (limit_bytes_) {
    capacity = std::min(capacity, *limit_bytes_ - slab_bytes_);
  }
  if (capacity < rounded) {
    return false;
  }
  try {
    slabs_.push_back({allocate(capacity), OffsetAllocator(capacity), {}});
  } catch (const std::exception&) {
    return false; // the host's memory is full
  }
  slab_bytes_ += capacity;
  return true;
}

at::Tensor ActivationRoom::allocate(int64_t bytes) {
  const auto options = at::TensorOptions(at::kByte);
  if (pinned_) {
    try {
      return at::empty({bytes}, options.pinned_memory(true));
    } catch (const std::exception& error) {
      pinned_ = false;
      log_warning(
          "offload: the system refuses to pin ",
          bytes,
          " bytes for activations (",
          error.what(),
          "). Pageable memory is used: copies hold the device up. Raise the "
          "limit of locked memory (ulimit -l).");
    }
  }
  return at::empty({bytes}, options);
}

} // namespace tessera
