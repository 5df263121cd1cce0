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
    return in_memory_;
  }
  int64_t numel() const;
  at::ScalarType dtype() const;

  /// In memory: the tensor itself, after a device that was at it. Undefined
  /// elsewhere.
  at::Tensor tensor() const {
    return shard_ != nullptr ? shard_->in_place() : tensor_;
  }
  /// Where it rests, if that is not just a tensor; else null.
  StoredShard* shard() const {
    return shard_.get();
  }

  /// The values in memory: the tensor itself, or a copy. Blocks.
  at::Tensor load();
  /// After what load() returned was written to: takes it over. Blocks.
  void store(const at::Tensor& values);

 private:
  std::unique_ptr<StoredShard> shard_;
  at::Tensor tensor_; ///< without a shard
  bool in_memory_;
};

} // namespace tessera
