// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the tensors of a checkpoint go, by the names that they have had.

#include "tessera/zoo/models/name_table.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// The names of one checkpoint's files, read for one model.
class CheckpointNames {
 public:
  using Pieces = std::map<std::string, std::vector<WeightPiece>, std::less<>>;

  /// @param pieces where each weight goes, by its name in the table.
  /// @param in_files all names of the checkpoint, for NameTable::tied; may be
  ///     empty.
  CheckpointNames(
      NameTable table,
      Pieces pieces,
      const std::vector<std::string>& in_files);

  /// Where a tensor goes: nowhere if it is not needed; nothing if it is not
  /// expected.
  std::optional<std::vector<WeightPiece>> pieces_in(
      std::string_view name) const;

 private:
  std::string modern(std::string_view name) const;
  std::string_view without_prefix(std::string_view name) const;
  /// The weight of a modern name, if it is one.
  Pieces::const_iterator weight_of(std::string_view name) const;
  void add_tied(const std::vector<std::string>& in_files);

  NameTable table_;
  Pieces pieces_;
  /// The weight that a tensor of the files is read for too, by its name there.
  std::map<std::string, std::string, std::less<>> stand_ins_;
};

} // namespace tessera::zoo
