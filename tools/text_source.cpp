// SPDX-License-Identifier: Apache-2.0
#include "text_source.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/zoo/data/data_format.h"
#include "tessera/zoo/tasks/text_classification_data.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <utility>

namespace tessera::tools {

TextSource::TextSource(
    std::vector<std::string> arguments,
    const std::string& file,
    std::vector<std::string> columns)
    : arguments_(std::move(arguments)),
      columns_(std::move(columns)),
      name_(file),
      has_arguments_(!arguments_.empty()) {
  TESSERA_CHECK(
      !has_arguments_ || file.empty(),
      "texts are given as arguments and with --input; give them one way");
  TESSERA_CHECK(
      !are_pairs() || arguments_.size() % 2 == 0,
      "{} texts are given, but the model takes pairs of '{}' and '{}'; give two arguments for each pair",
      arguments_.size(),
      columns_.front(),
      columns_.back());
  if (has_arguments_) {
    return;
  }
  if (file.empty() || file == "-") {
    name_ = "standard input";
    is_typed_ = ::isatty(STDIN_FILENO) == 1;
    if (is_typed_) {
      std::fputs("Type a text and press Enter; end with Ctrl-D.\n", stderr);
    }
    return;
  }
  const zoo::DataFormat format = zoo::data_format_of(file);
  TESSERA_CHECK(
      format == zoo::DataFormat::kText || format == zoo::DataFormat::kUnknown,
      "'{}' is {}; expected lines of text, or JSON lines",
      file,
      zoo::name_of(format));
  if (file.ends_with(".csv") || file.ends_with(".tsv")) {
    table_ = std::make_unique<zoo::TextRows>(file);
    return;
  }
  file_.open(file);
  TESSERA_CHECK(
      file_.is_open(), "cannot read '{}': {}", file, std::strerror(errno));
}

std::vector<zoo::TextPair> TextSource::next(size_t count) {
  std::vector<zoo::TextPair> texts;
  while (texts.size() < (is_typed_ ? 1 : count)) {
    auto text = has_arguments_ ? next_argument() : next_line();
    if (!text) {
      break;
    }
    texts.push_back(std::move(*text));
  }
  return texts;
}

std::optional<zoo::TextPair> TextSource::next_argument() {
  if (used_arguments_ == arguments_.size()) {
    return std::nullopt;
  }
  zoo::TextPair text{arguments_[used_arguments_++], ""};
  if (are_pairs()) {
    text.second = arguments_[used_arguments_++];
  }
  return text;
}

std::optional<zoo::TextPair> TextSource::next_line() {
  if (table_ != nullptr) {
    const auto row = table_->next();
    if (!row) {
      return std::nullopt;
    }
    auto text = zoo::text_in(row->values, columns_, row->place(), "--text-key");
    return zoo::TextPair{std::move(text.text), std::move(text.second)};
  }
  std::istream& lines = file_.is_open() ? file_ : std::cin;
  for (std::string line; std::getline(lines, line);) {
    ++line_;
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (line.find_first_not_of(" \t") != std::string::npos) {
      if (!is_json_) {
        is_json_ = line.starts_with('{');
      }
      return parsed(line);
    }
  }
  return std::nullopt;
}

zoo::TextPair TextSource::parsed(const std::string& line) const {
  const std::string place = formatted("{}:{}", name_, line_);
  if (*is_json_) {
    auto text = zoo::text_in(
        runtime::parse_json(line, name_, line_), columns_, place, "--text-key");
    return {std::move(text.text), std::move(text.second)};
  }
  if (!are_pairs()) {
    return {line, ""};
  }
  const size_t tab = line.find('\t');
  TESSERA_CHECK(
      tab != std::string::npos,
      "{}: expected two texts separated by a tab, or a JSON object with '{}' and '{}', because the model takes pairs",
      place,
      columns_.front(),
      columns_.back());
  return {line.substr(0, tab), line.substr(tab + 1)};
}

} // namespace tessera::tools
