// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WeightEntry` is a tensor of a checkpoint, in whatever pieces its files have
// it.

#include "tessera/runtime/io/safetensors.h"
#include "tessera/sharding/tensors/tensor_blocks.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::sharding {

/// Compares bytes of a mapped file with their checksum when they are first
/// needed. Thread-safe.
class DataCheck {
 public:
  /// @param label names the bytes in errors.
  DataCheck(
      std::string label,
      std::span<const std::byte> data,
      std::string checksum)
      : label_(std::move(label)), data_(data), checksum_(std::move(checksum)) {}

  /// @throws tessera::Error if they are damaged.
  void verify() const;

  const std::string& checksum() const {
    return checksum_;
  }

 private:
  std::string label_;
  std::span<const std::byte> data_;
  std::string checksum_;
  mutable std::atomic<bool> is_good_ = false;
};

/// A box of a tensor in a mapped file.
struct FileRegion {
  TensorBlock block; ///< places count from the beginning of `data`
  std::span<const std::byte> data; ///< not aligned
  /// Null: the file has no checksums.
  std::shared_ptr<const DataCheck> check = nullptr;
};

/// Its pieces do not overlap, and have all elements.
struct WeightEntry {
  std::string name;
  runtime::SafetensorsDtype dtype = runtime::SafetensorsDtype::kF32;
  std::vector<int64_t> shape;
  std::vector<FileRegion> regions; ///< none without elements
};

/// The tensors of a checkpoint, and what keeps their files open.
struct WeightSet {
  std::map<std::string, WeightEntry> entries;
  std::vector<std::shared_ptr<const void>> files;
};

/// A tensor that a file has whole, one element after another.
WeightEntry full_entry(const runtime::SafetensorsEntry& entry);

/// Reads the elements of `here` that the pieces have, converted to the dtype of
/// `target`; see read_block().
/// @param regions of the entry, or of a part of it, in the indices of `here`.
void read_regions(
    const WeightEntry& entry,
    std::span<const FileRegion> regions,
    std::span<const TensorBlock> here,
    const at::Tensor& target);

/// Compares the checksums of the pieces that have elements of `here`.
/// @throws tessera::Error if they are damaged.
void verify_regions(
    std::span<const FileRegion> regions,
    std::span<const TensorBlock> here);

/// A copy of the entry on the CPU.
at::Tensor loaded_tensor(const WeightEntry& entry);

} // namespace tessera::sharding
