// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_schema.h"

#include <algorithm>
#include <utility>

namespace tessera::runtime {

namespace {

using Rows = std::vector<const OptionRow*>;

/// Rows of one path together, paths of one section too, in the order of their
/// first rows.
std::vector<Rows> rows_by_path(const std::vector<OptionRow>& rows) {
  const auto section_of = [](const std::string& path) {
    return path.substr(0, path.find('.'));
  };
  std::vector<std::string> sections;
  std::vector<std::string> paths;
  const auto place_in = [](std::vector<std::string>& names,
                           const std::string& name) {
    const auto found = std::find(names.begin(), names.end(), name);
    const auto index = static_cast<size_t>(found - names.begin());
    if (found == names.end()) {
      names.push_back(name);
    }
    return index;
  };
  std::vector<Rows> groups;
  for (const OptionRow& row : rows) {
    place_in(sections, section_of(row.path));
    const size_t index = place_in(paths, row.path);
    groups.resize(paths.size());
    groups[index].push_back(&row);
  }
  std::stable_sort(
      groups.begin(), groups.end(), [&](const Rows& a, const Rows& b) {
        return place_in(sections, section_of(a.front()->path)) <
               place_in(sections, section_of(b.front()->path));
      });
  return groups;
}

std::string in_backticks(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "`" : ", `") + name + "`";
  }
  return text;
}

/// The different texts of a column of rows of one path, and the names that each
/// is for.
using NamedTexts =
    std::vector<std::pair<std::string, std::vector<std::string>>>;

template <typename Text>
NamedTexts texts_of(const Rows& rows, const Text& text_of) {
  NamedTexts texts;
  for (const OptionRow* row : rows) {
    const std::string text = text_of(*row);
    auto same = std::find_if(texts.begin(), texts.end(), [&](const auto& one) {
      return one.first == text;
    });
    if (same == texts.end()) {
      same = texts.insert(texts.end(), {text, {}});
    }
    same->second.insert(
        same->second.end(), row->only_for.begin(), row->only_for.end());
  }
  return texts;
}

/// The text that rows of one path share, or each with its names.
template <typename Text>
std::string column(const Rows& rows, const Text& text_of) {
  const NamedTexts texts = texts_of(rows, text_of);
  if (texts.size() == 1) {
    return texts.front().first;
  }
  std::string all;
  for (const auto& [text, names] : texts) {
    if (!text.empty()) {
      all += (all.empty() ? "" : "; ") + in_backticks(names) + ": " + text;
    }
  }
  return all;
}

/// "`sgd`, `muon`: ", or nothing for a key that there always is.
std::string only_for(const Rows& rows) {
  std::vector<std::string> names;
  for (const OptionRow* row : rows) {
    names.insert(names.end(), row->only_for.begin(), row->only_for.end());
  }
  return names.empty() ? "" : in_backticks(names) + ": ";
}

std::string meaning(const Rows& rows) {
  const std::string docs =
      column(rows, [](const OptionRow& row) { return row.doc; });
  // Several docs are told apart by the names already.
  const bool one =
      std::all_of(rows.begin(), rows.end(), [&](const OptionRow* row) {
        return row->doc == rows.front()->doc;
      });
  return one ? only_for(rows) + docs : docs;
}

} // namespace

std::string markdown_table(const std::vector<OptionRow>& rows) {
  std::string text =
      "| key | values | default | meaning |\n| --- | --- | --- | --- |\n";
  for (const Rows& same : rows_by_path(rows)) {
    const std::string fallback = column(same, [](const OptionRow& row) {
      return row.fallback.empty() ? "" : "`" + row.fallback + "`";
    });
    text += "| `" + same.front()->path + "` | " +
            column(same, [](const OptionRow& row) { return row.values; }) +
            " | " + fallback + (fallback.empty() ? "| " : " | ") +
            meaning(same) + " |\n";
  }
  return text;
}

std::vector<OptionRow> rows_in(
    const std::vector<OptionRow>& rows,
    const std::string& section) {
  std::vector<OptionRow> found;
  for (const OptionRow& row : rows) {
    if (section.empty() || row.path == section ||
        row.path.starts_with(section + ".") ||
        row.path.starts_with(section + "[")) {
      found.push_back(row);
    }
  }
  return found;
}

std::string key_list(const std::vector<OptionRow>& rows) {
  std::string text;
  for (const Rows& same : rows_by_path(rows)) {
    text += same.front()->path;
    const auto defaults =
        texts_of(same, [](const OptionRow& row) { return row.fallback; });
    if (defaults.size() == 1 && !defaults.front().first.empty()) {
      text += " = " + defaults.front().first;
    }
    text += "\n    " + meaning(same) + "\n    " +
            column(same, [](const OptionRow& row) { return row.values; }) +
            "\n";
    for (const auto& [value, names] : defaults) {
      if (defaults.size() > 1 && !value.empty()) {
        text += "    = " + value + " of " + in_backticks(names) + "\n";
      }
    }
  }
  return text;
}

} // namespace tessera::runtime
