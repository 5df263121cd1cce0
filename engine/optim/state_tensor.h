// SPDX-License-Identifier: Apache-2.0
#pragma once
// A flat tensor of optimizer state, in memory or stored elsewhere.

#include "tessera/runtime/memory/shard_store.h"

#include <ATen/core/Tensor.h>

#include <memory>

namespace tessera {

class StateTensor {
 public:
  explicit StateTensor(at::Tensor tensor);
  /// @param shard where it rests; in memory if it can be worked on there.
  explicit StateTensor(std::unique_ptr<StoredShard> shard);

  bool in_memory() const {
    return tensor_.defined();
  }
  int64_t numel() const;
  at::ScalarType dtype() const;

  /// In memory: the tensor itself. Undefined elsewhere.
  const at::Tensor& tensor() const {
    return tensor_;
  }
  /// Elsewhere: where it rests.
  StoredShard& shard() {
    return *shard_;
  }

  /// The values in memory: the tensor itself, or a copy. Blocks.
  at::Tensor load();
  /// After what load() returned was written to: takes it over. Blocks.
  void store(const at::Tensor& values);

 private:
  std::unique_ptr<StoredShard> shard_;
  at::Tensor tensor_;
};

} // namespace tessera
