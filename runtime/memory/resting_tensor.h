// SPDX-License-Identifier: Apache-2.0
#pragma once
// A flat tensor, wherever it rests: in memory of its own, or in a store.

#include "tessera/runtime/memory/shard_store.h"

#include <ATen/core/Tensor.h>

#include <memory>

namespace tessera {

/// Copies of it are the same tensor. Not thread-safe.
class RestingTensor {
 public:
  /// None.
  RestingTensor() = default;
  /// @param tensor [numel], contiguous, on any device.
  explicit RestingTensor(at::Tensor tensor);
  /// @param shard where it rests; worked on there where that is memory.
  explicit RestingTensor(std::shared_ptr<StoredShard> shard);

  bool defined() const {
    return tensor_.defined() || shard_ != nullptr;
  }
  int64_t numel() const;
  at::ScalarType dtype() const;
  /// kDevice where no store has it.
  MemoryTier tier() const;
  /// What it counts in the ledger.
  int64_t bytes() const;

  /// Memory can be pointed at; a file cannot.
  bool in_memory() const {
    return tensor_.defined();
  }
  /// In memory of `device`, so that its operators can work on tensor().
  bool is_on(c10::Device device) const {
    return in_memory() && tensor_.device() == device;
  }

  /// In memory: the tensor itself. Undefined elsewhere. Blocks until transfers
  /// between it and a device have ended.
  at::Tensor tensor() const;

  /// As StoredShard::used_on_current_stream().
  void used_on_current_stream(c10::Device device) const;

  /// As StoredShard::read() and write(), for memory too.
  PendingTransfer read(const at::Tensor& into) const;
  PendingTransfer write(const at::Tensor& from) const;

  /// The values in memory: the tensor itself, or a copy on the CPU. Blocks.
  at::Tensor load() const;
  /// The values on `device`: the tensor itself, or a copy. Blocks.
  at::Tensor load(c10::Device device) const;
  /// After what load() returned was written to, or of other values of any
  /// dtype: takes them over. Blocks.
  void store(const at::Tensor& values) const;

 private:
  std::shared_ptr<StoredShard> shard_;
  at::Tensor tensor_;
};

} // namespace tessera
