// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ExampleFiles` reads training examples for any model from safetensors files.

#include "tessera/runtime/io/safetensors.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Safetensors files whose tensors are named after a model's inputs; row i of
/// each tensor is example i. Several files are concatenated. The files are
/// memory-mapped: only what is accessed is read.
class ExampleFiles {
 public:
  /// One tensor of the files, with one row per example.
  struct Column {
    std::string name;
    runtime::SafetensorsDtype dtype;
    std::vector<int64_t> row_shape; ///< without the dimension of examples
  };

  /// @param path a file, or a folder, all *.safetensors of which are read in
  ///     the order of their names.
  /// @throws tessera::Error naming file and tensor if there is no file, if
  ///     tensors differ in their numbers of rows, or files in the names, types
  ///     or row shapes of their tensors.
  explicit ExampleFiles(const std::filesystem::path& path);

  /// The number of examples.
  size_t size() const {
    return starts_.back();
  }
  const std::filesystem::path& path() const {
    return path_;
  }
  const std::vector<Column>& columns() const {
    return columns_;
  }
  /// The column of that name; null if there is none.
  const Column* find(const std::string& name) const;
  /// All names, for messages.
  std::string names() const;

  /// Copies rows: [rows, ...row_shape] on the CPU; unsigned integers of 2 and 4
  /// bytes become int64, other types are kept.
  at::Tensor read(const Column& column, std::span<const size_t> rows) const;

 private:
  void add(runtime::SafetensorsFile file);

  std::filesystem::path path_;
  std::vector<runtime::SafetensorsFile> files_;
  std::vector<size_t> starts_{0}; ///< first example of each file, and the end
  std::vector<Column> columns_;
};

/// "[rows, 3, 8]" of {3, 8}.
std::string shape_text(const std::vector<int64_t>& row_shape);

/// "I64 [rows, 3, 8]".
std::string show(const ExampleFiles::Column& column);

} // namespace tessera::zoo
