// SPDX-License-Identifier: Apache-2.0
#include "text_source.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/tasks/text_classification_data.h"
#include "tessera/text/rows/data_format.h"
#include "tessera/text/tokenizer/utf8.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <utility>

namespace tessera::tools {

namespace {

constexpr int64_t kShownSkipped = 3;

/// "pairs of 'a' and 'b'".
std::string columns_text(const std::vector<std::string>& columns) {
  std::string text = columns.size() == 2 ? "pairs of " : "rows of ";
  for (size_t i = 0; i < columns.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == columns.size() ? " and " : ", ");
    text += "'" + columns[i] + "'";
  }
  return text;
}

} // namespace

TextSource::TextSource(
    std::vector<std::string> arguments,
    const std::string& file,
    std::vector<std::string> columns,
    const text::TextRowOptions& rows)
    : arguments_(std::move(arguments)),
      columns_(std::move(columns)),
      name_(file),
      bad_rows_(rows.bad_rows),
      has_arguments_(!arguments_.empty()) {
  TESSERA_CHECK(
      !has_arguments_ || file.empty(),
      "texts are given as arguments and with --input; give them one way");
  TESSERA_CHECK(
      arguments_.size() % columns_.size() == 0,
      "{} given, but the model takes {}; give {} arguments for each",
      arguments_.size() == 1 ? "1 text is"
                             : formatted("{} texts are", arguments_.size()),
      columns_text(columns_),
      columns_.size());
  if (has_arguments_) {
    name_ = "argument";
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
  const text::DataFormat format = text::data_format_of(file);
  TESSERA_CHECK(
      format == text::DataFormat::kText || format == text::DataFormat::kUnknown,
      "'{}' is {}; expected lines of text, or JSON lines",
      file,
      text::name_of(format));
  if (file.ends_with(".csv") || file.ends_with(".tsv")) {
    table_ = std::make_unique<text::TextRows>(file, rows);
    return;
  }
  const std::string extension =
      std::filesystem::path(file).extension().string();
  if (extension == ".json" || extension == ".jsonl" || extension == ".ndjson") {
    const text::TextRows checked(file, rows); // refuses arrays, with a remedy
    is_json_ = true;
  } else if (extension == ".txt") {
    is_json_ = false;
  }
  file_.open(file);
  TESSERA_CHECK(
      file_.is_open(), "cannot read '{}': {}", file, std::strerror(errno));
}

size_t TextSource::next(
    size_t count,
    const std::function<void(const text::TextRow& row)>& use) {
  size_t used = 0;
  while (used < (is_typed_ ? 1 : count)) {
    std::optional<text::TextRow> row;
    try {
      row = has_arguments_ ? next_argument() : next_row();
    } catch (const text::BadRow& error) {
      log_skipped(error);
      continue;
    }
    if (!row) {
      break;
    }
    try {
      use(*row);
      ++used;
    } catch (const Error& error) {
      log_skipped(error);
    }
  }
  if (used == 0 && skipped_ > 0) {
    log_warning(
        "{} of {} {} skipped",
        runtime::count_text(skipped_, "bad row"),
        name_,
        skipped_ == 1 ? "was" : "were");
    skipped_ = 0;
  }
  if (used == 0 && empty_lines_ > 0 && !is_typed_) {
    log_warning(
        "{} of {} {} skipped, so that the results have other numbers than the lines after them; remove {} from the input",
        runtime::count_text(empty_lines_, "empty line"),
        name_,
        empty_lines_ == 1 ? "was" : "were",
        empty_lines_ == 1 ? "it" : "them");
    empty_lines_ = 0;
  }
  return used;
}

std::vector<std::string> TextSource::next_texts(size_t count) {
  std::vector<std::string> texts;
  next(count, [&](const text::TextRow& row) {
    texts.push_back(
        tasks::text_in(
            row.values, {columns_.front()}, row.place(), "--text-key")
            .text);
  });
  return texts;
}

void TextSource::log_skipped(const Error& error) {
  if (bad_rows_ == text::BadRows::kError) {
    throw; // what is being handled
  }
  if (++skipped_ <= kShownSkipped) {
    log_warning("skipped: {}", error.what());
  }
}

std::optional<text::TextRow> TextSource::next_argument() {
  if (used_arguments_ == arguments_.size()) {
    return std::nullopt;
  }
  text::TextRow row;
  row.file = name_;
  row.line = static_cast<int64_t>(used_arguments_) + 1;
  for (const std::string& column : columns_) {
    row.values[column] = arguments_[used_arguments_++];
  }
  return row;
}

std::optional<text::TextRow> TextSource::next_row() {
  if (table_ != nullptr) {
    return table_->next();
  }
  std::istream& lines = file_.is_open() ? file_ : std::cin;
  int64_t empty_lines = 0; // at the end of the file they do no harm
  for (std::string line; std::getline(lines, line); ++empty_lines) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (++line_ == 1 && line.starts_with(kByteOrderMark)) {
      line.erase(0, kByteOrderMark.size());
    }
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    const size_t first = line.find_first_not_of(" \t");
    if (first != std::string::npos) {
      if (!is_json_) {
        is_json_ = line[first] == '{';
      }
      empty_lines_ += empty_lines;
      return parsed(line);
    }
  }
  return std::nullopt;
}

text::TextRow TextSource::parsed(const std::string& line) const {
  text::TextRow row;
  row.file = name_;
  row.line = line_;
  if (*is_json_) {
    try {
      row.values = runtime::parse_json(line, name_, line_);
    } catch (const Error& error) {
      throw text::BadRow(error.what());
    }
    if (!row.values.is_object()) {
      throw text::BadRow(formatted(
          "{}: expected a JSON object, as in the first line", row.place()));
    }
    row.text = line;
    return row;
  }
  if (const auto at = text::first_not_utf8(line)) {
    throw text::BadRow(formatted(
        "{}: byte {} of the line is 0x{:02x}, which is not UTF-8; save the file as UTF-8",
        row.place(),
        *at + 1,
        static_cast<unsigned>(static_cast<unsigned char>(line[*at]))));
  }
  size_t begin = 0;
  for (const std::string& column : columns_) {
    const bool is_last = &column == &columns_.back();
    const size_t tab = is_last ? line.size() : line.find('\t', begin);
    if (tab == std::string::npos) {
      throw text::BadRow(formatted(
          "{}: expected {} texts separated by tabs, or a JSON object, because the model takes {}",
          row.place(),
          columns_.size(),
          columns_text(columns_)));
    }
    row.values[column] = line.substr(begin, tab - begin);
    begin = tab + 1;
  }
  return row;
}

} // namespace tessera::tools
