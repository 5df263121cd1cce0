// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DividedTensor` shards a tensor that is equal on all ranks of a group and
// gathers it again.

#include "tessera/runtime/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::sharding {

/// What is needed to gather the tensor. Elements are divided evenly in memory
/// order; strides are restored.
class DividedTensor {
 public:
  /// @param whole equal on all ranks.
  DividedTensor(const at::Tensor& full, Communicator& group);

  /// Returns this rank's part, [numel / ranks, rounded up], in memory of its
  /// own. Call it once: it releases the whole.
  at::Tensor take_part();

  /// Returns the whole, from every rank's part. Collective; blocks.
  at::Tensor gather(const at::Tensor& part) const;

 private:
  Communicator* group_;
  at::Tensor flat_; ///< until take_part()
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
};

} // namespace tessera::sharding
