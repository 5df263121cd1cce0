// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/rows/text_rows.h"

#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/text/rows/data_format.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

namespace tessera::text {

namespace {

namespace fs = std::filesystem;

constexpr const char* kBlank = " \t\r\n";
constexpr int64_t kMaxRowBytes = int64_t{256} << 20;
constexpr int64_t kShownBadRows = 3;

std::string count_text(size_t count, std::string_view noun) {
  return runtime::count_text(static_cast<int64_t>(count), noun);
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kBlank) == std::string_view::npos;
}

/// The file that a conversion writes, as a word of its command: never the one
/// that it reads.
std::string converted(const fs::path& path) {
  fs::path to = path;
  to.replace_extension(".jsonl");
  if (to == path) {
    to.replace_filename(path.stem().string() + "_converted.jsonl");
  }
  return shell_word(to);
}

[[noreturn]] void refuse(
    const fs::path& path,
    std::string_view label,
    std::string_view command) {
  TESSERA_FAIL(
      "'{}' is {}; expected a table (CSV, TSV) or JSON lines: one object per line, like {{\"text\": \"...\", \"label\": \"...\"}}. Convert it, e.g. with: {}",
      path.string(),
      label,
      command);
}

/// @throws Error on a format of bytes that are no text.
void check_is_text(const fs::path& path) {
  const DataFormat format = data_format_of(path);
  if (format == DataFormat::kText || format == DataFormat::kUnknown) {
    return;
  }
  std::string command = unpack_command(format, path);
  if (command.empty()) { // of Parquet; for others, pandas has other readers
    command = formatted(
        "python3 -c 'import pandas, sys; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient=\"records\", lines=True)' {} {}",
        shell_word(path),
        converted(path));
  }
  refuse(path, name_of(format), command);
}

constexpr char kNoTable = '\0';

/// The character that separates the columns of a header; kNoTable: none does.
char separator_in(std::string_view header) {
  std::array<std::pair<int64_t, char>, 3> counts{
      {{0, '\t'}, {0, ','}, {0, ';'}}};
  bool in_quotes = false;
  for (const char c : header) {
    in_quotes ^= c == '"';
    for (auto& [count, separator] : counts) {
      count += !in_quotes && c == separator ? 1 : 0;
    }
  }
  if (counts[0].first > 0) {
    return '\t';
  }
  return counts[1].first == 0 && counts[2].first == 0 ? kNoTable
         : counts[2].first > counts[1].first          ? ';'
                                                      : ',';
}

/// kNoTable for JSON lines.
/// @throws Error on what is neither.
char separator_of(
    const fs::path& path,
    std::string_view first,
    std::optional<RowFormat> format) {
  const std::string extension = path.extension().string();
  if (!format && (extension == ".tsv" || extension == ".csv")) {
    format = extension == ".tsv" ? RowFormat::kTsv : RowFormat::kCsv;
  }
  const char start = first.empty() ? '{' : first.front();
  if (format == RowFormat::kTsv) {
    return '\t';
  }
  if (format == RowFormat::kCsv) {
    const char found = separator_in(first);
    return found == kNoTable ? ',' : found; // one column
  }
  if (start == '{') {
    if (first.find_last_not_of(kBlank) == 0) {
      refuse(
          path,
          "a JSON object over several lines",
          formatted("jq -c . {} > {}", shell_word(path), converted(path)));
    }
    return kNoTable;
  }
  if (start == '[') {
    refuse(
        path,
        "a JSON array",
        formatted(
            "python3 -c 'import json, sys; [print(json.dumps(one)) for one in json.load(open(sys.argv[1], encoding=\"utf-8-sig\"))]' {} > {}",
            shell_word(path),
            converted(path)));
  }
  const bool is_json = format == RowFormat::kJsonLines ||
                       extension == ".json" || extension == ".jsonl" ||
                       extension == ".ndjson";
  const char separator = separator_in(first);
  if (is_json && separator != kNoTable) {
    TESSERA_FAIL(
        "'{}' should be JSON lines by its name, but begins like a table with {}; name it *.{}",
        path.string(),
        separator == '\t'  ? "tabs (TSV)"
        : separator == ',' ? "commas (CSV)"
                           : "semicolons (CSV)",
        separator == '\t' ? "tsv" : "csv");
  }
  return separator;
}

} // namespace

/// Bytes of a file, and the line that they are in.
class TextRows::Bytes {
 public:
  explicit Bytes(const fs::path& path)
      : path_(path), file_(path, std::ios::binary), buffer_(size_t{1} << 18) {
    TESSERA_CHECK(
        file_.is_open() && !fs::is_directory(path),
        "cannot read '{}': {}",
        path.string(),
        fs::is_directory(path) ? "it is a folder" : std::strerror(errno));
    if (starts_with("\xef\xbb\xbf")) {
      at_ += 3;
    }
    TESSERA_CHECK(
        !starts_with("\xff\xfe") && !starts_with("\xfe\xff"),
        "'{}' is UTF-16; expected UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 {} > NEW",
        path.string(),
        shell_word(path));
  }

  /// -1 at the end.
  int peek() {
    return at_ < end_ || fill() ? static_cast<unsigned char>(buffer_[at_]) : -1;
  }
  int get() {
    const int byte = peek();
    at_ += byte >= 0 ? 1 : 0;
    line_ += byte == '\n' ? 1 : 0;
    return byte;
  }
  /// Reads up to and with the end of the line, which `text` does not get.
  void get_line(std::string& text) {
    while (peek() >= 0) {
      const std::string_view rest(buffer_.data() + at_, end_ - at_);
      const size_t length = rest.find('\n');
      text.append(rest, 0, length);
      check_size(text.size());
      if (length != std::string_view::npos) {
        at_ += length + 1;
        ++line_;
        break;
      }
      at_ = end_;
    }
    if (text.ends_with('\r')) {
      text.pop_back();
    }
  }
  /// The first line that is not blank, if it is within the first buffer; is
  /// read again.
  std::string_view first_line() {
    peek();
    const std::string_view start(buffer_.data() + at_, end_ - at_);
    const size_t from = start.find_first_not_of(kBlank);
    return from == std::string_view::npos
               ? std::string_view()
               : start.substr(from).substr(0, start.substr(from).find('\n'));
  }
  /// Of the next byte.
  RowPosition position() const {
    return {file_offset_ - static_cast<int64_t>(end_ - at_), line_};
  }
  void seek(RowPosition position) {
    file_.clear();
    file_.seekg(position.offset);
    file_offset_ = position.offset;
    line_ = position.line;
    at_ = end_ = 0;
  }
  /// Of the next byte, from 1.
  int64_t line() const {
    return line_;
  }
  void check_size(size_t row_bytes) const {
    TESSERA_CHECK(
        static_cast<int64_t>(row_bytes) < kMaxRowBytes,
        "{}:{}: a row has more than {} MiB",
        path_.string(),
        line_,
        kMaxRowBytes >> 20);
  }

 private:
  bool starts_with(std::string_view start) {
    peek();
    return std::string_view(buffer_.data() + at_, end_ - at_)
        .starts_with(start);
  }
  bool fill() {
    file_.read(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    TESSERA_CHECK(
        !file_.bad(),
        "cannot read '{}': {}",
        path_.string(),
        std::strerror(errno));
    at_ = 0;
    end_ = static_cast<size_t>(file_.gcount());
    file_offset_ += file_.gcount();
    return end_ > 0;
  }

  fs::path path_;
  std::ifstream file_;
  std::vector<char> buffer_;
  size_t at_ = 0;
  size_t end_ = 0;
  int64_t file_offset_ = 0; ///< of buffer_[end_]
  int64_t line_ = 1;
};

struct TextRows::Source {
  Source(
      const fs::path& file,
      const TextRowOptions& row_options,
      RowPosition start)
      : path(file), bytes(file), options(row_options) {
    separator = separator_of(path, bytes.first_line(), options.format);
    if (separator != kNoTable) {
      read_header();
    }
    if (start.offset > 0) {
      bytes.seek(start);
    }
  }

  void read_header() {
    columns = options.columns;
    while (columns.empty()) {
      auto fields = record();
      if (!fields) {
        return; // an empty file
      }
      columns = std::move(*fields);
    }
    for (const std::string& name : columns) {
      TESSERA_CHECK(
          name.find('\r') == std::string::npos,
          "{}: lines end with a carriage return alone, as in old files of a Mac, so that all of it is one line; save it with line feeds (tr '\\r' '\\n')",
          path.string());
    }
    std::set<std::string> names;
    for (const std::string& name : columns) {
      TESSERA_CHECK(
          names.insert(name).second,
          "{}:1: the header has '{}' twice; columns need different names",
          path.string(),
          name);
    }
  }

  /// The fields of the next line that is not empty; a field in quotes may go
  /// over several lines.
  std::optional<std::vector<std::string>> record() {
    std::vector<std::string> fields;
    std::string field;
    bool is_quoted = false;
    row_line = bytes.line();
    size_t size = 0;
    for (int c = bytes.get();; c = bytes.get()) {
      bytes.check_size(++size);
      if (c == separator) {
        fields.push_back(std::move(field));
        field.clear();
        is_quoted = false;
      } else if (c < 0 || c == '\n') {
        if (!is_quoted && field.ends_with('\r')) {
          field.pop_back();
        }
        if (!fields.empty() || is_quoted || !is_blank(field)) {
          fields.push_back(std::move(field));
          check_utf8(fields);
          return fields;
        }
        if (c < 0) {
          return std::nullopt;
        }
        field.clear();
        row_line = bytes.line();
      } else if (is_quoted) {
        if (c == '\r' && bytes.peek() == '\n') {
          continue;
        }
        std::string rest;
        bytes.get_line(rest);
        throw BadRow(formatted(
            "{}:{}: '{}' follows the quote that closes a field; write quotes within quotes twice, or have quotes read as characters (data.quotes=false)",
            path.string(),
            row_line,
            static_cast<char>(c)));
      } else if (c == '"' && field.empty() && options.quotes) {
        read_quoted(field);
        is_quoted = true;
      } else {
        field += static_cast<char>(c);
      }
    }
  }

  void read_quoted(std::string& field) {
    const int64_t begin = bytes.line();
    for (int c = bytes.get();; c = bytes.get()) {
      bytes.check_size(field.size());
      TESSERA_CHECK(
          c >= 0,
          "{}:{}: a quote opens a field and is never closed; close it, or have quotes read as characters (data.quotes=false)",
          path.string(),
          begin);
      if (c == '"') {
        if (bytes.peek() != '"') {
          return;
        }
        bytes.get();
      }
      field += static_cast<char>(c);
    }
  }

  /// The first names, which may be those of a line that is no header.
  std::string columns_text() const {
    constexpr size_t kShownColumns = 4;
    std::string text;
    for (size_t i = 0; i < std::min(columns.size(), kShownColumns); ++i) {
      text += (i == 0 ? "" : ", ") + runtime::show_json(columns[i]);
    }
    return text + (columns.size() > kShownColumns ? ", ..." : "");
  }

  void check_utf8(const std::vector<std::string>& fields) const {
    for (size_t i = 0; i < fields.size(); ++i) {
      if (const auto at = first_not_utf8(fields[i])) {
        throw BadRow(formatted(
            "{}:{}: '{}' is not UTF-8 (byte {} of the field is 0x{:02x}); save the file as UTF-8",
            path.string(),
            row_line,
            i < columns.size() ? columns[i] : std::to_string(i + 1),
            *at + 1,
            static_cast<unsigned char>(fields[i][*at])));
      }
    }
  }

  std::optional<TextRow> next_of_table() {
    auto fields = columns.empty() ? std::nullopt : record();
    if (!fields) {
      return std::nullopt;
    }
    if (fields->size() != columns.size()) {
      throw BadRow(formatted(
          "{}:{}: the row has {}, and {} {}: {}",
          path.string(),
          row_line,
          count_text(fields->size(), "field"),
          options.columns.empty() ? "the header names" : "data.columns has",
          count_text(columns.size(), "column"),
          columns_text()));
    }
    TextRow row{
        nlohmann::json::object(), path, row_line, /*is_of_table=*/true, {}};
    for (size_t i = 0; i < columns.size(); ++i) {
      row.values[columns[i]] = std::move((*fields)[i]);
    }
    return row;
  }

  std::optional<TextRow> next_of_json() {
    for (std::string line; bytes.peek() >= 0; line.clear()) {
      row_line = bytes.line();
      bytes.get_line(line);
      if (is_blank(line)) {
        continue;
      }
      TextRow row{{}, path, row_line, /*is_of_table=*/false, {}};
      try {
        row.values = runtime::parse_json(line, path.string(), row_line);
      } catch (const Error& error) {
        throw BadRow(
            std::string(error.what()) +
            (first_not_utf8(line) ? "; save the file as UTF-8" : ""));
      }
      if (!row.values.is_object()) {
        throw BadRow(formatted(
            "{}: expected a JSON object, like {{\"text\": \"...\", \"label\": \"...\"}}, found {}",
            row.place(),
            runtime::show_json(row.values)));
      }
      row.text = std::move(line);
      return row;
    }
    return std::nullopt;
  }

  fs::path path;
  Bytes bytes;
  TextRowOptions options;
  char separator = kNoTable; ///< kNoTable: JSON lines
  std::vector<std::string> columns;
  int64_t row_line = 1; ///< of the row that is read
};

std::string keys_text(const nlohmann::json& object) {
  std::vector<std::string> keys;
  for (const auto& [name, value] : object.items()) {
    keys.push_back(name);
  }
  return keys.empty() ? "an empty object"
                      : "'" + runtime::join_names(keys) + "'";
}

std::string TextRow::place() const {
  return formatted("{}:{}", file.string(), line);
}

nlohmann::ordered_json TextRow::ordered_values() const {
  return text.empty() ? nlohmann::ordered_json(values)
                      : nlohmann::ordered_json::parse(text);
}

TextRows::TextRows(
    const fs::path& path,
    const TextRowOptions& options,
    RowPosition start) {
  check_is_text(path);
  source_ = std::make_unique<Source>(path, options, start);
}

TextRows::~TextRows() = default;

std::optional<TextRow> TextRows::next() {
  return source_->separator == kNoTable ? source_->next_of_json()
                                        : source_->next_of_table();
}

const std::vector<std::string>& TextRows::columns() const {
  return source_->columns;
}

RowPosition TextRows::position() const {
  return source_->bytes.position();
}

void visit_fields(runtime::OptionFields& fields, TextRowOptions& options) {
  fields.field(
      "columns",
      options.columns,
      "names of the columns of tables without a header");
  fields.field(
      "quotes",
      options.quotes,
      "fields of tables may stand in quotes; false: quotes are characters like others");
  bool skips = options.bad_rows == BadRows::kSkip;
  fields.field(
      "skip_bad_rows",
      skips,
      "leave out rows that cannot be used, and log how many; otherwise they are an error");
  options.bad_rows = skips ? BadRows::kSkip : BadRows::kError;
}

int64_t for_each_row(
    const std::vector<fs::path>& files,
    const TextRowOptions& options,
    const std::function<void(const TextRow& row)>& use) {
  int64_t skipped = 0;
  const auto skip = [&](const Error& error) {
    if (++skipped <= kShownBadRows && is_log_rank_zero()) {
      log_warning("skipped: {}", error.what());
    }
  };
  for (const fs::path& file : files) {
    TextRows rows(file, options);
    for (;;) {
      std::optional<TextRow> row;
      try {
        row = rows.next();
      } catch (const BadRow& error) {
        if (options.bad_rows == BadRows::kError) {
          throw;
        }
        skip(error);
        continue;
      }
      if (!row) {
        break;
      }
      try {
        use(*row);
      } catch (const Error& error) {
        if (options.bad_rows == BadRows::kError) {
          throw;
        }
        skip(error);
      }
    }
  }
  if (skipped > 0 && is_log_rank_zero()) {
    log_warning(
        "{} of '{}'{} {} skipped",
        count_text(static_cast<size_t>(skipped), "bad row"),
        files.front().string(),
        files.size() > 1 ? " and " + count_text(files.size() - 1, "more file")
                         : "",
        skipped == 1 ? "was" : "were");
  }
  return skipped;
}

} // namespace tessera::text
