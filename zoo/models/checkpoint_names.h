// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CheckpointNames` maps the tensor names of a checkpoint, current or
// historical, to a model's parameters.

#include "tessera/zoo/models/name_table.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// The names in one checkpoint's files, resolved for one model.
class CheckpointNames {
 public:
  using Pieces = std::map<std::string, std::vector<WeightPiece>, std::less<>>;

  /// @param pieces the destinations of each weight, by its name in the table.
  /// @param in_files all names of the checkpoint, for NameTable::tied; may be
  ///     empty.
  CheckpointNames(
      NameTable table,
      Pieces pieces,
      const std::vector<std::string>& in_files);

  /// The destinations of a tensor: an empty list if it is not needed, nullopt
  /// if it is unexpected.
  std::optional<std::vector<WeightPiece>> pieces_in(
      std::string_view name) const;

 private:
  std::string modern(std::string_view name) const;
  std::string_view without_prefix(std::string_view name) const;
  /// The weight of a modern name; the end iterator if there is none.
  Pieces::const_iterator weight_of(std::string_view name) const;
  void add_tied(const std::vector<std::string>& in_files);

  NameTable table_;
  Pieces pieces_;
  /// The weights that are also read from a tensor of another name, by that name
  /// in the files.
  std::map<std::string, std::string, std::less<>> stand_ins_;
};

} // namespace tessera::zoo
