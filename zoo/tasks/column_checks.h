// SPDX-License-Identifier: Apache-2.0
#pragma once
// What may be wrong with one tensor of a file of examples.

#include "tessera/zoo/tasks/example_files.h"
#include "tessera/zoo/tasks/trained_head.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Checks by name. All throw tessera::Error naming the file, the tensor, what
/// was found and what is wanted.
class ColumnChecks {
 public:
  using Column = ExampleFiles::Column;

  /// @param files, head outlive this.
  /// @param sequence_multiple see ExampleOptions.
  ColumnChecks(
      const ExampleFiles& files,
      const TrainedHead& head,
      int64_t sequence_multiple)
      : files_(files), head_(head), sequence_multiple_(sequence_multiple) {}

  /// All are inputs of models.
  void names() const;
  /// All are of types that their inputs may have, and not empty.
  void types() const;

  const Column& need(const std::string& name, const char* remedy = "") const;
  void refuse(const std::string& name, const char* reason) const;
  /// Of rows, where it is there.
  void shape(const std::string& name, const std::vector<int64_t>& wanted) const;
  void dims(const Column& column, size_t wanted, const char* what) const;
  /// Ranks divide sequences.
  void divides(const Column& ids) const;

  /// "'FILE': 'NAME'".
  std::string place(const std::string& name) const;

 private:
  const ExampleFiles& files_;
  const TrainedHead& head_;
  int64_t sequence_multiple_;
};

/// Of file types that are not whole numbers.
bool is_floating(SafetensorsDtype dtype);

/// @throws tessera::Error where numbers are not within 0 .. bound - 1, naming
///     the file, the tensor and the first that is not; labels may be -100,
///     none.
void check_range(
    const ExampleFiles& files,
    const std::string& name,
    const at::Tensor& numbers,
    int64_t bound);

} // namespace tessera::zoo
