// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/json_lines.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/tasks/data_format.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

constexpr const char* kBlank = " \t\r\n";

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
    std::string_view what,
    std::string_view command) {
  TESSERA_FAIL(
      "'{}' is {}; expected JSON lines: one object per line, like {{\"text\": \"...\", \"label\": \"...\"}}. Convert it, e.g. with: {}",
      path.string(),
      what,
      command);
}

/// @throws Error on a format that starts like none of JSON's objects.
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

/// @param first the first line that is not empty.
void check_first_line(const fs::path& path, std::string_view first) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (first.starts_with(kByteOrderMark)) {
    first.remove_prefix(kByteOrderMark.size());
  }
  if (first.find_first_not_of(kBlank) == std::string_view::npos) {
    return;
  }
  const char start = first[first.find_first_not_of(kBlank)];
  if (start == '{' && first.find_last_not_of(kBlank) == first.find('{')) {
    refuse(
        path,
        "a JSON object over several lines",
        formatted("jq -c . {} > {}", shell_word(path), converted(path)));
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
  const bool has_tabs = first.find('\t') != std::string_view::npos;
  const bool has_semicolons = std::count(first.begin(), first.end(), ';') >
                              std::count(first.begin(), first.end(), ',');
  const std::string extension = path.extension().string();
  if (start != '{' && (has_tabs || has_semicolons ||
                       first.find(',') != std::string_view::npos ||
                       extension == ".csv" || extension == ".tsv")) {
    refuse(
        path,
        has_tabs         ? "a table with tabs (TSV)"
        : has_semicolons ? "a table with semicolons (CSV)"
                         : "a table with commas (CSV)",
        formatted(
            "python3 -c 'import csv, json, sys; [print(json.dumps(row)) for row in csv.DictReader(open(sys.argv[1], encoding=\"utf-8-sig\"){})]' {} > {}",
            has_tabs         ? ", delimiter=\"\\t\""
            : has_semicolons ? ", delimiter=\";\""
                             : "",
            shell_word(path),
            converted(path)));
  }
}

} // namespace

void read_json_lines(
    const fs::path& path,
    const std::function<void(const nlohmann::json& object, int64_t line)>&
        use) {
  check_is_text(path);
  const std::string content = runtime::read_text_file(path);
  bool is_first = true;
  size_t begin = 0;
  for (int64_t number = 1; begin < content.size(); ++number) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const auto line = std::string_view(content).substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(kBlank) == std::string_view::npos) {
      continue;
    }
    if (is_first) {
      check_first_line(path, line);
      is_first = false;
    }
    const auto object = runtime::parse_json(line, path.string(), number);
    TESSERA_CHECK(
        object.is_object(),
        "{}:{}: expected a JSON object, like {{\"text\": \"...\", \"label\": \"...\"}}, found {}",
        path.string(),
        number,
        runtime::show_json(object));
    use(object, number);
  }
}

} // namespace tessera::zoo
