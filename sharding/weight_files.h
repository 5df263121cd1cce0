// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WeightFiles` gives access to the tensors of a safetensors checkpoint, in one
// file or several, and to parts of them.

#include "tessera/runtime/io/safetensors.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tessera::sharding {

/// A checkpoint's tensors by name. The files stay memory-mapped; only the bytes
/// that are requested are read.
class WeightFiles {
 public:
  /// @param path a .safetensors file, an index file (.json), or a folder that
  ///   contains model.safetensors or model.safetensors.index.json.
  /// @throws tessera::Error when there are no safetensors, when a file is
  ///   malformed, or when the index names a file or a tensor that does not
  ///   exist.
  static WeightFiles open(const std::filesystem::path& path);

  /// The entries live as long as this object.
  const std::map<std::string, const runtime::SafetensorsEntry*>& entries()
      const {
    return entries_;
  }
  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  WeightFiles() = default;
  void add_whole(const std::filesystem::path& file);
  void add_index(const std::filesystem::path& index);

  std::filesystem::path path_;
  std::vector<runtime::SafetensorsFile> files_;
  std::map<std::string, const runtime::SafetensorsEntry*> entries_;
};

/// A view of an entry's elements as a tensor of `sizes` whose element (i, j,
/// ...) is the entry's element offset + i * strides[0] + j * strides[1] + ...
/// With it, a slice, a transpose or a part of a fused weight is read without
/// the rest of the entry.
struct EntryView {
  const runtime::SafetensorsEntry* entry = nullptr;
  int64_t offset = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  /// The whole entry in file order.
  static EntryView whole(const runtime::SafetensorsEntry& entry);

  int64_t numel() const;
  bool is_contiguous() const;
  /// Returns whether every element lies within the entry.
  bool lies_within_entry() const;
};

/// Returns the LibTorch dtype of an entry.
/// @throws tessera::Error naming the entry when LibTorch's CPU kernels do not
///   support its type, as for 8-bit floats and unsigned integers above 8 bits.
at::ScalarType scalar_type_of(const runtime::SafetensorsEntry& entry);

/// Reads elements [first, first + target.numel()) of the view, in row-major
/// order, and converts them to the target's dtype. Needs a few MiB in addition
/// to the target.
/// @param target one-dimensional, contiguous; on any device.
void read_elements(
    const EntryView& view,
    int64_t first,
    const at::Tensor& target);

/// Reads the whole view into `target`, which must have as many elements and may
/// have any strides.
void read_whole(const EntryView& view, const at::Tensor& target);

} // namespace tessera::sharding
