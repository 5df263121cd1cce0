// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where flat tensors rest between uses: the interface of a memory tier.

#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/pending_transfer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

/// Room for one flat tensor in a store. Until it is first written it holds
/// zeros. One thread at a time calls it; transfers of one room take effect in
/// the order in which they were begun. The destructor waits for them.
class StoredShard {
 public:
  virtual ~StoredShard() = default;

  virtual MemoryTier tier() const = 0;
  virtual int64_t numel() const = 0;
  virtual at::ScalarType dtype() const = 0;
  /// What it counts in the ledger.
  virtual int64_t bytes() const = 0;

  /// The tensor itself, [numel] on the CPU, where the tier is memory: work on
  /// it in place needs no copy. Undefined elsewhere. Blocks until transfers
  /// with a device have ended.
  virtual at::Tensor in_place() = 0;

  /// After work on in_place()'s memory was issued to the current stream of
  /// `device`: whoever uses the room from now on comes after it.
  virtual void used_on_current_stream(c10::Device /*device*/) {}

  /// Begins to copy all of it into `into`: [numel] of dtype(), contiguous, on
  /// any device. Nobody touches `into` before the end. Does not block on a
  /// disk or a device.
  virtual PendingTransfer read(const at::Tensor& into) = 0;

  /// Begins to take the values of `from` over (as above). Nobody changes
  /// `from` before the end.
  virtual PendingTransfer write(const at::Tensor& from) = 0;
};

/// One tier of one rank.
class ShardStore {
 public:
  virtual ~ShardStore() = default;

  virtual MemoryTier tier() const = 0;

  /// Takes room for `numel` elements, counted in the ledger. The store outlives
  /// it. Blocks while a disk takes the room.
  /// @param name of what will be there, for errors.
  /// @throws tessera::Error when the store's limit, the memory or the disk does
  ///   not have so much; with what is needed, what there is, and the remedy.
  virtual std::unique_ptr<StoredShard> reserve(
      const std::string& name,
      MemoryPurpose purpose,
      int64_t numel,
      at::ScalarType dtype) = 0;

  /// What reserve() of so many elements counts in the ledger.
  virtual int64_t bytes_for(int64_t numel, at::ScalarType dtype) const = 0;
};

} // namespace tessera
