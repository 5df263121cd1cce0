// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardStore` is the interface of a memory tier in which flat tensors rest
// between uses.

#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/pending_transfer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tessera::runtime {

/// Space for one flat tensor in a store, initially zeros. Not thread-safe.
/// Transfers take effect in the order in which they begin. The destructor waits
/// for them.
class StoredShard {
 public:
  virtual ~StoredShard() = default;

  virtual MemoryTier tier() const = 0;
  virtual int64_t numel() const = 0;
  virtual at::ScalarType dtype() const = 0;
  /// Bytes that it counts in the ledger.
  virtual int64_t bytes() const = 0;

  /// The tensor itself, [numel] on the CPU, if the tier is memory, so that it
  /// can be updated in place without a copy; else undefined. Blocks until
  /// transfers with a device have ended.
  virtual at::Tensor in_place() = 0;
  /// As in_place(), for work that is issued to the current stream of `device`
  /// and noted by used_on_current_stream(): that stream waits in place of the
  /// host.
  virtual at::Tensor in_place_on_stream(c10::Device /*device*/) {
    return in_place();
  }

  /// Call this after issuing work on the memory of in_place() or
  /// in_place_on_stream() to the current stream of `device`: later uses of the
  /// space are ordered after that work.
  virtual void used_on_current_stream(c10::Device /*device*/) {}

  /// Begins to copy the whole tensor into `into`: [numel] of dtype(),
  /// contiguous, on any device. Do not touch `into` before the transfer has
  /// ended. Does not block on a disk or a device.
  virtual PendingTransfer read(const at::Tensor& into) = 0;

  /// Begins to copy the values of `from` (shape as above) into the store. Do
  /// not change `from` before the transfer has ended.
  virtual PendingTransfer write(const at::Tensor& from) = 0;
};

/// One memory tier of one rank.
class ShardStore {
 public:
  virtual ~ShardStore() = default;

  virtual MemoryTier tier() const = 0;

  /// Reserves space for `numel` elements, counted in the ledger. The store must
  /// outlive it. Blocks while disk space is allocated.
  /// @param name of the tensor, for errors.
  /// @throws tessera::Error when the limit of the store, the memory or the disk
  ///   is too small, with the bytes needed, the bytes available, and the
  ///   remedy.
  virtual std::unique_ptr<StoredShard> reserve(
      const std::string& name,
      MemoryPurpose purpose,
      int64_t numel,
      at::ScalarType dtype) = 0;
};

} // namespace tessera::runtime
