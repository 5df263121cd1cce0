// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ColumnChecks` checks the tensors of a file of examples against a model's
// inputs.

#include "tessera/zoo/inputs/example_files.h"
#include "tessera/zoo/inputs/example_options.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::zoo {

/// All checks throw tessera::Error naming the file, the tensor, what was found
/// and what is expected.
class ColumnChecks {
 public:
  using Column = ExampleFiles::Column;

  /// @param files, options outlive this.
  /// @param architecture of the model, for messages.
  ColumnChecks(
      const ExampleFiles& files,
      const ExampleOptions& options,
      std::string architecture)
      : files_(files),
        options_(options),
        architecture_(std::move(architecture)) {}

  const ExampleFiles& files() const {
    return files_;
  }
  const ExampleOptions& options() const {
    return options_;
  }
  const std::string& architecture() const {
    return architecture_;
  }

  /// All columns are inputs of models.
  void names() const;
  /// All columns are non-empty and have a type that their input accepts.
  void types(bool labels_may_be_floats) const;

  /// Calls `use` with the values of a column, in parts.
  void for_each_rows(
      const Column& column,
      const std::function<void(const at::Tensor&)>& use) const;

  const Column& need(const std::string& name, const char* remedy = "") const;
  void refuse(const std::string& name, const char* reason) const;
  /// The shape of a column's rows, if the column exists.
  void shape(const std::string& name, const std::vector<int64_t>& wanted) const;
  void dims(const Column& column, size_t wanted, const char* label) const;
  /// The sequence length is a multiple of ExampleOptions::sequence_multiple.
  void divides(const Column& ids) const;
  /// The values, of which there are few, are as in check_range().
  /// @param bound 0: any values.
  void range(const Column& column, int64_t bound) const;
  /// The values, of which there are few, are 0 and 1.
  void flags(const Column& column) const;

  /// "'FILE': 'NAME'".
  std::string place(const std::string& name) const;

 private:
  /// Calls `use` with the column's values, many rows at a time.

  const ExampleFiles& files_;
  const ExampleOptions& options_;
  std::string architecture_;
};

/// Whether a file's type is not an integer type.
bool is_floating(runtime::SafetensorsDtype dtype);

/// @throws tessera::Error if a value is not in 0 .. bound - 1, naming the file,
///     the tensor and the first such value; labels may also be -100, which
///     means none.
void check_range(
    const ExampleFiles& files,
    const std::string& name,
    const at::Tensor& numbers,
    int64_t bound);

} // namespace tessera::zoo
