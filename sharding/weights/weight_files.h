// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WeightFiles` opens a safetensors checkpoint, in one file or several.

#include "tessera/runtime/io/safetensors.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace tessera::sharding {

/// A checkpoint's tensors by name. The files stay memory-mapped; only the bytes
/// that are requested are read. Copies share the files.
class WeightFiles {
 public:
  /// @param path a .safetensors file, an index file (.json), or a folder that
  ///   contains model.safetensors or model.safetensors.index.json.
  /// @throws tessera::Error when there are no safetensors, when a file is
  ///   malformed, or when the index names a file or a tensor that does not
  ///   exist.
  static WeightFiles open(const std::filesystem::path& path);

  /// The entries live as long as this object or a copy of it.
  const std::map<std::string, const runtime::SafetensorsEntry*>& entries()
      const;
  /// Null if there is no tensor of that name.
  const runtime::SafetensorsEntry* find(const std::string& name) const;
  const std::filesystem::path& path() const;

 private:
  struct Opened;
  explicit WeightFiles(std::shared_ptr<const Opened> opened);

  std::shared_ptr<const Opened> opened_;
};

} // namespace tessera::sharding
