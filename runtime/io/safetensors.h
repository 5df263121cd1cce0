// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SafetensorsFile` reads and `SafetensorsWriter` writes safetensors files:
// eight bytes with the length of the header, a JSON header with name, dtype,
// shape and position of each tensor, then the data. Little endian throughout.
// Format: https://github.com/huggingface/safetensors.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/mapped_file.h"

namespace tessera::runtime {

enum class SafetensorsDtype {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

/// Bytes of one element.
size_t size_of(SafetensorsDtype dtype);

/// The name in files: "BF16", "F8_E4M3", ...
std::string_view name_of(SafetensorsDtype dtype);

/// The dtype with that name, if any.
std::optional<SafetensorsDtype> safetensors_dtype(std::string_view name);

/// One tensor of an open file.
struct SafetensorsEntry {
  std::string name;
  SafetensorsDtype dtype;
  std::vector<int64_t> shape; ///< Empty for a scalar; sizes may be zero.
  /// Elements in row-major order, in the mapping of the file: valid as long as
  /// the SafetensorsFile. Other writers do not always align them: copy, don't
  /// cast.
  std::span<const std::byte> data;
};

/// A read-only memory map of a safetensors file. Opening it reads and checks
/// the whole header, so the data of every entry lies inside the file; tensors
/// are read from disk on access. The file must not be truncated while it is
/// open. Move-only; thread-safe for reading.
class SafetensorsFile {
 public:
  /// @throws Error naming the file, the tensor, the value and the remedy when
  ///   the file cannot be read or is malformed.
  static SafetensorsFile open(const std::filesystem::path& path);

  /// All tensors, in the order of their data in the file.
  const std::vector<SafetensorsEntry>& entries() const {
    return entries_;
  }

  bool contains(std::string_view name) const;

  /// @throws Error naming the file and its nearest tensor name.
  const SafetensorsEntry& at(std::string_view name) const;

  /// The metadata strings of the header, for example {"format": "pt"}.
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }

  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  SafetensorsFile() = default;
  void read_header();

  std::filesystem::path path_;
  MappedFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string_view, size_t> index_; // Into entries_.
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written.
struct SafetensorsSpec {
  std::string name;
  SafetensorsDtype dtype;
  std::vector<int64_t> shape;
};

/// Writes a safetensors file: the header first, then tensors in any order. The
/// file appears under its final name at commit(). The same specs, metadata and
/// data give the same bytes, in whatever order specs and writes come: tensors
/// are sorted by element size, largest first, then by name, which aligns each
/// to its element size. Not thread-safe; blocks on the disk.
/// @throws Error from every operation, naming the file and the tensor.
class SafetensorsWriter {
 public:
  /// Allocates the whole file, so that a full disk is detected here.
  SafetensorsWriter(
      const std::filesystem::path& path,
      std::vector<SafetensorsSpec> specs,
      const std::map<std::string, std::string>& metadata = {});

  /// Writes one whole tensor; once per tensor.
  /// @param data elements in row-major order, exactly as many bytes as its spec
  ///   says.
  void write(std::string_view name, std::span<const std::byte> data);

  /// Makes the file durable and visible. Every tensor that has elements must
  /// have been written. Without commit() the destructor removes the file.
  void commit();

 private:
  struct Slot {
    uint64_t offset; // From the start of the file.
    uint64_t bytes;
    bool written = false;
  };

  AtomicFile file_;
  std::map<std::string, Slot, std::less<>> slots_;
};

} // namespace tessera::runtime
