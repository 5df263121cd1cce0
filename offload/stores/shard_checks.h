// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_shard_transfer()` checks the tensors that are copied from or to a
// tier.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/shard_store.h"

#include <string>

namespace tessera::offload {

/// @throws tessera::Error unless `tensor` can be read from or written to
///   `shard`.
inline void check_shard_transfer(
    const std::string& name,
    const runtime::StoredShard& shard,
    const at::Tensor& tensor) {
  TESSERA_CHECK(
      tensor.defined() && tensor.is_contiguous() &&
          tensor.numel() == shard.numel() &&
          tensor.scalar_type() == shard.dtype(),
      "'{}' is stored as {} contiguous elements of type {}; it cannot be copied from or to a tensor of shape {} and type {}.",
      name,
      shard.numel(),
      shard.dtype(),
      tensor.defined() ? tensor.sizes() : c10::IntArrayRef{},
      tensor.defined() ? tensor.scalar_type() : at::ScalarType::Undefined);
}

} // namespace tessera::offload
