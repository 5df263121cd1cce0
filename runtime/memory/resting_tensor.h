// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RestingTensor` is a flat tensor that rests in memory of its own or in a
// store.

#include "tessera/runtime/memory/shard_store.h"

#include <ATen/core/Tensor.h>

#include <memory>

namespace tessera::runtime {

/// Copies refer to the same tensor. Not thread-safe.
class RestingTensor {
 public:
  /// Undefined.
  RestingTensor() = default;
  /// @param tensor [numel], contiguous, on any device.
  explicit RestingTensor(at::Tensor tensor);
  /// @param shard where it rests; used in place if that is memory.
  explicit RestingTensor(std::shared_ptr<StoredShard> shard);

  bool defined() const {
    return tensor_.defined() || shard_ != nullptr;
  }
  int64_t numel() const;
  at::ScalarType dtype() const;
  /// kDevice if it does not rest in a store.
  MemoryTier tier() const;
  /// Bytes that it counts in the ledger.
  int64_t bytes() const;

  /// True if the values are in addressable memory, false if in a file.
  bool in_memory() const {
    return tensor_.defined();
  }
  /// True if the values are in memory of `device`, so that operators on it can
  /// use tensor().
  bool is_on(c10::Device device) const {
    return in_memory() && tensor_.device() == device;
  }

  /// The tensor itself if it is in memory, else undefined. Blocks until
  /// transfers between it and a device have ended.
  at::Tensor tensor() const;
  /// As StoredShard::in_place_on_stream().
  at::Tensor tensor_on_stream(c10::Device device) const;

  /// As StoredShard::used_on_current_stream().
  void used_on_current_stream(c10::Device device) const;

  /// As StoredShard::read() and write(), also for memory.
  PendingTransfer read(const at::Tensor& into) const;
  PendingTransfer write(const at::Tensor& from) const;

  /// The values in memory: the tensor itself, or a copy on the CPU. Blocks.
  at::Tensor load() const;
  /// The values on `device`: the tensor itself, or a copy. Blocks.
  at::Tensor load(c10::Device device) const;
  /// Takes over the values, converting the dtype: call it after writing to what
  /// load() returned, or with other values. Blocks.
  void store(const at::Tensor& values) const;

 private:
  std::shared_ptr<StoredShard> shard_;
  at::Tensor tensor_;
};

} // namespace tessera::runtime
