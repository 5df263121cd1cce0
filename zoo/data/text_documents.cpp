// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/text_documents.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/text/rows/data_format.h"
#include "tessera/text/tokenizer/utf8.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf";

TextFormat format_of(const fs::path& path, const TextFormatOptions& options) {
  if (options.format) {
    return *options.format;
  }
  const std::string suffix = path.extension().string();
  if (suffix == ".jsonl" || suffix == ".ndjson" || suffix == ".json") {
    return TextFormat::kJsonLines;
  }
  return suffix == ".csv"   ? TextFormat::kCsv
         : suffix == ".tsv" ? TextFormat::kTsv
                            : TextFormat::kText;
}

text::RowFormat row_format(TextFormat format) {
  return format == TextFormat::kCsv   ? text::RowFormat::kCsv
         : format == TextFormat::kTsv ? text::RowFormat::kTsv
                                      : text::RowFormat::kJsonLines;
}

} // namespace

TextDocuments::TextDocuments(
    std::vector<fs::path> files,
    TextFormatOptions options,
    TextPosition start)
    : files_(std::move(files)),
      options_(std::move(options)),
      position_(start) {}

std::string TextDocuments::place(int64_t line) const {
  return formatted("{}:{}", files_[position_.file].string(), line);
}

void TextDocuments::open() {
  const fs::path& path = files_[position_.file];
  const TextFormat format = format_of(path, options_);
  if (format != TextFormat::kText) {
    rows_ = std::make_unique<text::TextRows>(
        path,
        text::TextRowOptions{.format = row_format(format)},
        text::RowPosition{position_.offset, position_.line});
    const auto& columns = rows_->columns();
    TESSERA_CHECK(
        format == TextFormat::kJsonLines ||
            std::count(columns.begin(), columns.end(), options_.text_key) > 0,
        "{}: no column is named '{}'; the columns are {}. Name that of the texts with --text-key",
        place(1),
        options_.text_key,
        runtime::show_json(columns));
    return;
  }
  const text::DataFormat found = text::data_format_of(path);
  if (found != text::DataFormat::kText && found != text::DataFormat::kUnknown) {
    const std::string command = text::unpack_command(found, path);
    TESSERA_FAIL(
        "'{}' is {}; expected text, JSON lines or CSV{}",
        path.string(),
        name_of(found),
        command.empty() ? "" : ". Unpack it with: " + command);
  }
  stream_.open(path, std::ios::binary);
  TESSERA_CHECK(
      stream_.is_open(),
      "cannot read '{}': {}",
      path.string(),
      std::strerror(errno));
  std::string mark(kUtf8Mark.size(), '\0');
  stream_.read(mark.data(), static_cast<std::streamsize>(mark.size()));
  const bool has_mark = stream_.good() && mark == kUtf8Mark;
  const int64_t first = has_mark ? static_cast<int64_t>(kUtf8Mark.size()) : 0;
  position_.offset = std::max(position_.offset, first);
  stream_.clear();
  stream_.seekg(position_.offset);
}

void TextDocuments::close() {
  rows_.reset();
  stream_.close();
  stream_.clear();
  position_ = {position_.file + 1, 0, 1};
}

bool TextDocuments::read_row(std::string& row) {
  if (!std::getline(stream_, row)) {
    return false;
  }
  position_.offset += static_cast<int64_t>(row.size()) + 1;
  ++position_.line;
  if (row.ends_with('\r')) {
    row.pop_back();
  }
  return true;
}

bool TextDocuments::read_paragraph(std::string& text) {
  text.clear();
  for (std::string row; read_row(row);) {
    const bool is_blank = row.find_first_not_of(" \t\f\v") == std::string::npos;
    if (is_blank && !text.empty()) {
      return true;
    }
    if (!is_blank) {
      document_line_ = text.empty() ? position_.line - 1 : document_line_;
      text += (text.empty() ? "" : "\n") + row;
    }
  }
  return !text.empty();
}

bool TextDocuments::next_in_rows(TextDocument& document) {
  document_line_ = rows_->position().line;
  try {
    const std::optional<text::TextRow> row = rows_->next();
    if (!row) {
      return false;
    }
    document_line_ = row->line;
    const auto found = row->values.find(options_.text_key);
    if (found != row->values.end() && found->is_string()) {
      document.text = found->get<std::string>();
    } else {
      document.problem = formatted(
          "{}: '{}' is {}; expected a text",
          row->place(),
          options_.text_key,
          found == row->values.end() ? "missing" : runtime::show_json(*found));
    }
  } catch (const text::BadRow& error) {
    document.problem = error.what();
  }
  position_.offset = rows_->position().offset;
  position_.line = rows_->position().line;
  return true;
}

bool TextDocuments::next_in_file(TextDocument& document) {
  if (rows_ != nullptr) {
    return next_in_rows(document);
  }
  if (options_.unit == TextUnit::kFile) {
    if (position_.line > 1) {
      return false;
    }
    document_line_ = 1;
    document.text.assign(
        std::istreambuf_iterator<char>(stream_),
        std::istreambuf_iterator<char>());
    position_.offset += static_cast<int64_t>(document.text.size());
    position_.line = 2; // it has been read
    return true;
  }
  if (options_.unit == TextUnit::kParagraph) {
    return read_paragraph(document.text);
  }
  std::string row;
  do {
    if (!read_row(row)) {
      return false;
    }
  } while (row.find_first_not_of(" \t") == std::string::npos);
  document_line_ = position_.line - 1;
  document.text = std::move(row);
  return true;
}

void TextDocuments::check_text(TextDocument& document) const {
  if (!document.problem.empty()) {
    return;
  }
  if (document.text.empty()) {
    document.problem = rows_ == nullptr ? empty_file_text()
                                        : formatted(
                                              "{}: '{}' is empty",
                                              place(document_line_),
                                              options_.text_key);
  } else if (const auto bad = text::first_not_utf8(document.text)) {
    const auto at = document.text.begin() + static_cast<std::ptrdiff_t>(*bad);
    const auto lines = std::count(document.text.begin(), at, '\n');
    document.problem = formatted(
        "{}: byte {} of the document is 0x{:02x}, which is not UTF-8",
        place(document_line_ + lines),
        *bad + 1, // counted from 1, as lines are
        static_cast<int>(static_cast<unsigned char>(*at)));
  }
}

std::string TextDocuments::empty_file_text() const {
  return formatted("{}: the file is empty", files_[position_.file].string());
}

std::optional<TextDocument> TextDocuments::next() {
  while (position_.file < files_.size()) {
    const bool is_new = !stream_.is_open() && rows_ == nullptr;
    const bool is_first = position_.offset == 0 && position_.line == 1;
    if (is_new) {
      open();
    }
    TextDocument document;
    if (!next_in_file(document)) {
      if (is_new && is_first &&
          (rows_ == nullptr || rows_->columns().empty())) {
        document.problem = empty_file_text();
        close();
        document.next = position_;
        return document;
      }
      close();
      continue;
    }
    check_text(document);
    document.next = position_;
    return document;
  }
  return std::nullopt;
}

} // namespace tessera::zoo
