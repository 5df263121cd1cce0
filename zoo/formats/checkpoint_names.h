// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CheckpointNames` maps the tensor names of a checkpoint, current or
// historical, to a model's parameters.

#include "tessera/zoo/formats/name_table.h"

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
  using Contents =
      std::map<std::string, std::vector<MappedWeight>, std::less<>>;

  /// @param contents what each weight contains, by its name in the table.
  /// @param in_files all names of the checkpoint, for NameTable::tied; may be
  ///     empty.
  CheckpointNames(
      NameTable table,
      Contents contents,
      const std::vector<std::string>& in_files);

  /// What a tensor contains: an empty list if it is not needed, nullopt if it
  /// is unexpected.
  std::optional<std::vector<MappedWeight>> contents_of(
      std::string_view name) const;

 private:
  std::string modern(std::string_view name) const;
  std::string_view without_prefix(std::string_view name) const;
  /// The weight of a modern name; the end iterator if there is none.
  Contents::const_iterator weight_of(std::string_view name) const;
  void add_tied(const std::vector<std::string>& in_files);

  NameTable table_;
  Contents contents_;
  /// The weights that are also read from a tensor of another name, by that name
  /// in the files.
  std::map<std::string, std::string, std::less<>> stand_ins_;
};

} // namespace tessera::zoo
