// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/text_documents.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/zoo/tasks/data_format.h"
#include "tessera/zoo/tokenizer/utf8.h"

#include <fnmatch.h>

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

/// The folder of a pattern before its first special character.
fs::path fixed_folder(const std::string& pattern) {
  const size_t special = pattern.find_first_of("*?[");
  const size_t slash = pattern.rfind('/', special);
  return slash == std::string::npos ? fs::path(".")
         : slash == 0               ? fs::path("/")
                                    : fs::path(pattern.substr(0, slash));
}

bool matches(const std::string& pattern, const std::string& path) {
  if (::fnmatch(pattern.c_str(), path.c_str(), FNM_PATHNAME) == 0) {
    return true;
  }
  const size_t stars = pattern.find("**/");
  if (stars == std::string::npos) {
    return false;
  }
  // No folder, or one more.
  std::string none = pattern;
  none.erase(stars, 3);
  std::string more = pattern;
  more.replace(stars, 3, "*/**/");
  const auto depth = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '/');
  };
  return matches(none, path) ||
         (depth(more) <= depth(path) + 1 && matches(more, path));
}

void add_matches(const std::string& pattern, std::vector<fs::path>& files) {
  const fs::path folder = fixed_folder(pattern);
  const bool has_folder = pattern.find('/') != std::string::npos;
  const size_t before = files.size();
  std::error_code code;
  const auto add = [&](const fs::directory_entry& entry) {
    const std::string path =
        has_folder ? entry.path().string() : entry.path().filename().string();
    if (entry.is_regular_file() && matches(pattern, path)) {
      files.emplace_back(path);
    }
  };
  const bool is_deep = std::count(
                           pattern.begin() + static_cast<std::ptrdiff_t>(
                                                 pattern.find_first_of("*?[")),
                           pattern.end(),
                           '/') > 0;
  if (is_deep) {
    for (const auto& entry : fs::recursive_directory_iterator(folder, code)) {
      add(entry);
    }
  } else {
    for (const auto& entry : fs::directory_iterator(folder, code)) {
      add(entry);
    }
  }
  std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
  TESSERA_CHECK(
      files.size() > before,
      "no file matches '{}'{}",
      pattern,
      code
          ? formatted(": cannot read '{}': {}", folder.string(), code.message())
          : "");
}

/// The number of the byte that is not UTF-8; nothing: all are.
std::optional<size_t> first_not_utf8(std::string_view text) {
  std::string storage;
  const std::string_view valid = valid_utf8(text, storage);
  if (valid.data() == text.data()) {
    return std::nullopt;
  }
  const auto [found, ignored] =
      std::mismatch(text.begin(), text.end(), valid.begin(), valid.end());
  return static_cast<size_t>(found - text.begin());
}

} // namespace

std::vector<fs::path> expanded_paths(const std::vector<std::string>& patterns) {
  std::vector<fs::path> files;
  for (const std::string& pattern : patterns) {
    std::error_code code;
    TESSERA_CHECK(
        !fs::is_directory(pattern, code),
        "'{}' is a folder; give its files, e.g. as '{}/**/*.txt'",
        pattern,
        pattern);
    if (fs::exists(pattern, code)) {
      files.emplace_back(pattern);
    } else if (pattern.find_first_of("*?[") == std::string::npos) {
      TESSERA_FAIL("'{}' does not exist", pattern);
    } else {
      add_matches(pattern, files);
    }
  }
  return files;
}

TextDocuments::TextDocuments(
    std::vector<fs::path> files,
    TextFormatOptions options,
    TextPosition start)
    : files_(std::move(files)),
      options_(std::move(options)),
      position_(start) {}

TextFormat TextDocuments::format_of(const fs::path& path) const {
  if (options_.format) {
    return *options_.format;
  }
  const std::string suffix = path.extension().string();
  if (suffix == ".jsonl" || suffix == ".ndjson" || suffix == ".json") {
    return TextFormat::kJsonLines;
  }
  return suffix == ".csv"   ? TextFormat::kCsv
         : suffix == ".tsv" ? TextFormat::kTsv
                            : TextFormat::kText;
}

std::string TextDocuments::place(int64_t line) const {
  return formatted("{}:{}", files_[position_.file].string(), line);
}

void TextDocuments::open() {
  const fs::path& path = files_[position_.file];
  const DataFormat found = data_format_of(path);
  if (found != DataFormat::kText && found != DataFormat::kUnknown) {
    const std::string command = unpack_command(found, path);
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
  format_ = format_of(path);
  std::string mark(kUtf8Mark.size(), '\0');
  stream_.read(mark.data(), static_cast<std::streamsize>(mark.size()));
  const bool has_mark = stream_.good() && mark == kUtf8Mark;
  stream_.clear();
  const int64_t first = has_mark ? static_cast<int64_t>(kUtf8Mark.size()) : 0;
  stream_.seekg(first);
  if (format_ == TextFormat::kCsv || format_ == TextFormat::kTsv) {
    const char delimiter = format_ == TextFormat::kCsv ? ',' : '\t';
    csv_.emplace(stream_, delimiter);
    csv_->next(columns_);
    const auto column =
        std::find(columns_.begin(), columns_.end(), options_.text_key);
    TESSERA_CHECK(
        column != columns_.end(),
        "{}: no column is named '{}'; the columns are {}. Name that of the texts with --text-key",
        place(1),
        options_.text_key,
        runtime::show_json(columns_));
    text_column_ = static_cast<size_t>(column - columns_.begin());
    if (position_.offset > 0) {
      csv_.emplace(stream_, delimiter, position_.line);
    }
  }
  if (position_.offset > 0) {
    stream_.clear();
    stream_.seekg(position_.offset);
  } else {
    position_.offset = first;
  }
}

void TextDocuments::close() {
  csv_.reset();
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

void TextDocuments::read_json(const std::string& row, TextDocument& document)
    const {
  const int64_t line = document_line_;
  try {
    nlohmann::json object =
        runtime::parse_json(row, files_[position_.file].string(), line);
    if (!object.is_object()) {
      document.problem = formatted(
          "{}: expected a JSON object with '{}', found {}",
          place(line),
          options_.text_key,
          runtime::show_json(object));
      return;
    }
    const auto found = object.find(options_.text_key);
    if (found == object.end() || !found->is_string()) {
      document.problem = formatted(
          "{}: '{}' is {}; expected a text",
          place(line),
          options_.text_key,
          found == object.end() ? "missing" : runtime::show_json(*found));
      return;
    }
    document.text = std::move(found->get_ref<std::string&>());
  } catch (const Error& error) {
    document.problem = error.what();
  }
}

bool TextDocuments::next_record(TextDocument& document) {
  std::vector<std::string> fields;
  try {
    if (!csv_->next(fields)) {
      return false;
    }
    document_line_ = csv_->record_line();
    if (fields.size() == columns_.size()) {
      document.text = std::move(fields[text_column_]);
    } else {
      document.problem = formatted(
          "{}: the record has {} fields, the header {}",
          place(csv_->record_line()),
          fields.size(),
          columns_.size());
    }
  } catch (const Error& error) {
    document.problem =
        formatted("{}: {}", place(csv_->record_line()), error.what());
  }
  const auto at = stream_.eof() ? std::streampos(-1) : stream_.tellg();
  position_.offset =
      at < 0 ? static_cast<int64_t>(fs::file_size(files_[position_.file]))
             : static_cast<int64_t>(at);
  position_.line = csv_->line();
  return true;
}

bool TextDocuments::next_in_file(TextDocument& document) {
  if (format_ == TextFormat::kCsv || format_ == TextFormat::kTsv) {
    return next_record(document);
  }
  if (format_ == TextFormat::kText && options_.unit == TextUnit::kFile) {
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
  if (format_ == TextFormat::kText && options_.unit == TextUnit::kParagraph) {
    return read_paragraph(document.text);
  }
  std::string row;
  do {
    if (!read_row(row)) {
      return false;
    }
  } while (row.find_first_not_of(" \t") == std::string::npos);
  document_line_ = position_.line - 1;
  if (format_ == TextFormat::kJsonLines) {
    read_json(row, document);
  } else {
    document.text = std::move(row);
  }
  return true;
}

void TextDocuments::check_text(TextDocument& document) const {
  if (!document.problem.empty()) {
    return;
  }
  const bool is_text = format_ == TextFormat::kText;
  if (document.text.empty()) {
    document.problem = is_text ? empty_file_text()
                               : formatted(
                                     "{}: '{}' is empty",
                                     place(document_line_),
                                     options_.text_key);
  } else if (const auto bad = first_not_utf8(document.text)) {
    const auto at = document.text.begin() + static_cast<std::ptrdiff_t>(*bad);
    const auto lines = std::count(document.text.begin(), at, '\n');
    document.problem = formatted(
        "{}: byte {} of {} is 0x{:02x}, which is not UTF-8",
        place(document_line_ + lines),
        *bad,
        is_text ? "the document" : "'" + options_.text_key + "'",
        static_cast<int>(static_cast<unsigned char>(*at)));
  }
}

std::string TextDocuments::empty_file_text() const {
  return formatted("{}: the file is empty", files_[position_.file].string());
}

std::optional<TextDocument> TextDocuments::next() {
  while (position_.file < files_.size()) {
    const bool is_new = !stream_.is_open();
    if (is_new) {
      open();
    }
    const bool is_first = position_.line == 1;
    TextDocument document;
    if (!next_in_file(document)) {
      if (is_new && is_first && !csv_) {
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
