// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/csv_reader.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>

namespace tessera::zoo {

namespace {

bool is_blank_line(const std::string& line) {
  return line.empty() || line == "\r";
}

} // namespace

bool CsvReader::next(std::vector<std::string>& fields) {
  fields.clear();
  do {
    if (!std::getline(lines_, text_)) {
      return false;
    }
    record_line_ = line_++;
  } while (is_blank_line(text_));
  std::string problem;
  size_t at = 0;
  for (bool is_last = false; !is_last;) {
    std::string field;
    const bool is_quoted = at < text_.size() && text_[at] == '"';
    if (is_quoted) {
      at = read_quoted(at + 1, fields.size() + 1, field);
    }
    const size_t end = std::min(text_.find(delimiter_, at), text_.size());
    is_last = end == text_.size();
    const bool has_return = is_last && end > at && text_[end - 1] == '\r';
    const size_t length = end - at - (has_return ? 1 : 0);
    if (is_quoted && length > 0 && problem.empty()) {
      problem = formatted(
          "field {} has characters after its closing quote", fields.size() + 1);
    }
    fields.push_back(field.append(text_, at, length));
    at = end + 1;
  }
  TESSERA_CHECK(problem.empty(), "{}", problem);
  return true;
}

size_t CsvReader::read_quoted(size_t at, size_t number, std::string& field) {
  while (true) {
    const size_t quote = std::min(text_.find('"', at), text_.size());
    field.append(text_, at, quote - at);
    if (quote == text_.size()) { // the field goes on in the next line
      TESSERA_CHECK(
          std::getline(lines_, text_),
          "the quote of field {} is not closed",
          number);
      ++line_;
      field += '\n';
      at = 0;
    } else if (text_.compare(quote, 2, "\"\"") == 0) {
      field += '"';
      at = quote + 2;
    } else {
      return quote + 1;
    }
  }
}

} // namespace tessera::zoo
