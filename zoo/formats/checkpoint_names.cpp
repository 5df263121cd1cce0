// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/checkpoint_names.h"

#include "tessera/zoo/formats/numbered_names.h"

#include <set>
#include <utility>

namespace tessera::zoo {

namespace {

/// Whether a row of the table matches their tensor of this name.
bool has_line(const std::vector<NameRule>& rules, std::string_view name) {
  for (const NameRule& rule : rules) {
    if (match_module(rule.foreign, name).found) {
      return true;
    }
  }
  return false;
}

} // namespace

CheckpointNames::CheckpointNames(
    NameTable table,
    Contents contents,
    const std::vector<std::string>& in_files)
    : table_(std::move(table)), contents_(std::move(contents)) {
  add_tied(in_files);
}

/// The current name, with this model's prefix.
std::string CheckpointNames::modern(std::string_view old) const {
  std::string name = modern_name(old);
  if (!table_.other_prefix.empty() && name.starts_with(table_.other_prefix)) {
    name.replace(0, table_.other_prefix.size(), table_.prefix);
  }
  for (const auto& [other, native] : table_.renamed) {
    if (name.starts_with(other)) {
      name.replace(0, other.size(), native);
    }
  }
  return name;
}

std::string_view CheckpointNames::without_prefix(std::string_view name) const {
  return name.starts_with(table_.prefix) ? name.substr(table_.prefix.size())
                                         : name;
}

CheckpointNames::Contents::const_iterator CheckpointNames::weight_of(
    std::string_view name) const {
  const std::string with = table_.prefix + std::string(name);
  for (const std::string_view alias :
       {name, std::string_view(with), without_prefix(name)}) {
    if (const auto found = contents_.find(alias); found != contents_.end()) {
      return found;
    }
  }
  return contents_.end();
}

void CheckpointNames::add_tied(const std::vector<std::string>& in_files) {
  std::set<std::string> present;
  std::map<std::string, std::string> by_modern;
  for (const std::string& name : in_files) {
    const std::string now = modern(name);
    by_modern.emplace(without_prefix(now), name);
    if (const auto weight = weight_of(now); weight != contents_.end()) {
      present.insert(weight->first);
    }
  }
  for (const auto& [other, name] : table_.tied) {
    const auto weight = weight_of(name);
    const auto file = by_modern.find(other);
    if (weight != contents_.end() && file != by_modern.end() &&
        present.insert(weight->first).second) {
      stand_ins_.emplace(file->second, weight->first);
    }
  }
}

std::optional<std::vector<MappedWeight>> CheckpointNames::contents_of(
    std::string_view old) const {
  const std::string name = modern(old);
  const std::string_view without = without_prefix(name);
  std::vector<MappedWeight> all;
  const auto add = [&](const std::vector<MappedWeight>& some) {
    all.insert(all.end(), some.begin(), some.end());
  };
  if (const auto weight = weight_of(name); weight != contents_.end()) {
    add(weight->second);
  }
  if (const auto other = stand_ins_.find(old); other != stand_ins_.end()) {
    add(contents_.find(other->second)->second);
  }
  if (!all.empty()) {
    return all;
  }
  for (const std::string& pattern : table_.ignored) {
    if (matches_full(pattern, name) || matches_full(pattern, without)) {
      return all;
    }
  }
  if (table_.is_part &&
      (has_line(table_.base, without) || has_line(table_.head, name))) {
    return all;
  }
  return std::nullopt;
}

} // namespace tessera::zoo
