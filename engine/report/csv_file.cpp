// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/csv_file.h"

#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::engine {

namespace {

std::string csv_row(
    const std::vector<std::string>& columns,
    const nlohmann::ordered_json& line) {
  std::string row;
  for (const std::string& column : columns) {
    row += row.empty() && column == columns.front() ? "" : ",";
    const auto value = line.find(column);
    if (value != line.end() && value->is_number() &&
        std::isfinite(value->get<double>())) {
      row += value->dump();
    }
  }
  return row + "\n";
}

/// Quoted where a comma or a quote is in it.
std::string csv_name(const std::string& name) {
  if (name.find_first_of(",\"\r\n") == name.npos) {
    return name;
  }
  std::string quoted = "\"";
  for (const char c : name) {
    quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  }
  return quoted + "\"";
}

} // namespace

CsvWriter::CsvWriter(
    std::filesystem::path path,
    const std::vector<nlohmann::ordered_json>& lines)
    : path_(std::move(path)), lines_(lines) {
  for (const auto& line : lines_) {
    add_columns(line);
  }
  write_all();
}

CsvWriter::~CsvWriter() = default;

void CsvWriter::add_columns(const nlohmann::ordered_json& line) {
  for (const auto& [name, value] : line.items()) {
    if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) {
      columns_.push_back(name);
    }
  }
}

void CsvWriter::write_all() {
  file_.reset();
  std::string text;
  for (const std::string& column : columns_) {
    text += (text.empty() ? "" : ",") + csv_name(column);
  }
  text += text.empty() ? "" : "\n";
  for (const auto& line : lines_) {
    text += csv_row(columns_, line);
  }
  runtime::write_file_atomically(path_, text);
  file_.emplace(path_, "the table of metrics", AppendedFile::Mode::kAppend);
}

void CsvWriter::write(const nlohmann::ordered_json& line) {
  lines_.push_back(line);
  const size_t columns = columns_.size();
  add_columns(line);
  if (columns_.size() > columns || !file_) {
    write_all();
  } else {
    file_->append(csv_row(columns_, line));
  }
}

} // namespace tessera::engine
