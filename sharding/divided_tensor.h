// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tensor that all ranks of a group have, and of which each keeps a part.

#include "tessera/runtime/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// What it takes to put the tensor together again. Elements are divided evenly
/// in the order in which they lie in memory; strides come back as they were.
class DividedTensor {
 public:
  /// @param whole the same on all ranks.
  DividedTensor(const at::Tensor& whole, Communicator& group);

  /// This rank's part [numel / ranks, rounded up], in memory of its own. Called
  /// once: the whole is let go.
  at::Tensor take_part();

  /// The whole from every rank's part. Collective; blocks.
  at::Tensor gather(const at::Tensor& part) const;

 private:
  Communicator* group_;
  at::Tensor flat_; ///< until take_part()
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
};

} // namespace tessera
