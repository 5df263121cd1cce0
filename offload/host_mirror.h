// SPDX-License-Identifier: Apache-2.0
#pragma once
// A flat shard's master weights on the host, for weights that are elsewhere.

#include "tessera/runtime/memory/memory_ledger.h"

#include <ATen/core/Tensor.h>

namespace tessera {

/// A copy on the host of a flat tensor on another device. Copies block.
class HostMirror {
 public:
  /// @param original [numel], outlives the mirror.
  /// @param dtype of the copy. @param ledger where it is counted.
  HostMirror(at::Tensor original, at::ScalarType dtype, MemoryLedger& ledger);

  /// [numel] on the host.
  const at::Tensor& tensor() const {
    return tensor_;
  }

  /// Takes the original's values over.
  void load();
  /// Gives the values back to the original.
  void store();

 private:
  at::Tensor original_;
  at::Tensor tensor_;
};

} // namespace tessera
