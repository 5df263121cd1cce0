// SPDX-License-Identifier: Apache-2.0
#pragma once
// Examples for any model, as tensors in files.

#include "tessera/runtime/io/safetensors.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Safetensors files whose tensors have the names of a model's inputs; row i of
/// each is example i. Several files count as one behind the other. Mapped: what
/// is not looked at is not read.
class ExampleFiles {
 public:
  /// What a file has of each example under one name.
  struct Column {
    std::string name;
    SafetensorsDtype dtype;
    std::vector<int64_t> row_shape; ///< without the number of examples
  };

  /// @param path a file, or a folder, of which all *.safetensors are taken in
  ///     the order of their names.
  /// @throws tessera::Error naming file and tensor when there is none, when
  ///     tensors differ in their numbers of rows, or files in their names,
  ///     types and shapes of rows.
  explicit ExampleFiles(const std::filesystem::path& path);

  /// How many examples there are.
  size_t size() const {
    return starts_.back();
  }
  const std::filesystem::path& path() const {
    return path_;
  }
  const std::vector<Column>& columns() const {
    return columns_;
  }
  /// Null where there is none of that name.
  const Column* find(const std::string& name) const;
  /// All names, for messages.
  std::string names() const;

  /// A copy of these rows: [rows, ...row_shape] on the CPU; of unsigned numbers
  /// of 2 and 4 bytes int64, else of the file's type.
  at::Tensor read(const Column& column, std::span<const size_t> rows) const;

 private:
  void add(SafetensorsFile file);

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<size_t> starts_{0}; ///< first example of each file, and the end
  std::vector<Column> columns_;
};

/// "[rows, 3, 8]" of {3, 8}.
std::string shape_text(const std::vector<int64_t>& row_shape);

/// "I64 [rows, 3, 8]".
std::string show(const ExampleFiles::Column& column);

} // namespace tessera::zoo
