// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextDocuments` reads documents from text files, JSON lines and CSV files,
// and goes on from any of them.

#include "tessera/text/rows/text_rows.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

enum class TextFormat { kText, kJsonLines, kCsv, kTsv }; // RowFormat and text

/// What one document of a text file is.
enum class TextUnit {
  kFile,
  kParagraph, ///< lines up to an empty one
  kLine,
};

struct TextFormatOptions {
  /// Nothing: by the suffix (.jsonl, .ndjson and .json; .csv; .tsv), else text.
  std::optional<TextFormat> format;
  TextUnit unit = TextUnit::kFile;
  /// The key of JSON objects, and the column of CSV files, that has the text.
  std::string text_key = "text";
};

/// Where a document begins.
struct TextPosition {
  size_t file = 0;
  int64_t offset = 0; ///< in bytes
  int64_t line = 1;
};

struct TextDocument {
  std::string text;
  /// Why it is none, with file, line and key; empty: it is one.
  std::string problem;
  TextPosition next; ///< of the document after it
};

/// Documents must be UTF-8 and not empty.
class TextDocuments {
 public:
  /// @param start where to begin, as TextDocument::next says.
  TextDocuments(
      std::vector<std::filesystem::path> files,
      TextFormatOptions options,
      TextPosition start = {});

  /// @return nothing after the last document.
  /// @throws tessera::Error naming a file that cannot be read, is of another
  ///     format, or has no such column.
  std::optional<TextDocument> next();

 private:
  void open();
  void close();
  /// @return false at the end of the file.
  bool read_row(std::string& row);
  bool read_paragraph(std::string& text);
  bool next_in_file(TextDocument& document);
  /// A row of JSON lines or a table.
  bool next_in_rows(TextDocument& document);
  /// Says in TextDocument::problem that a text is empty or not UTF-8.
  void check_text(TextDocument& document) const;
  std::string place(int64_t line) const;
  std::string empty_file_text() const;

  std::vector<std::filesystem::path> files_;
  TextFormatOptions options_;
  TextPosition position_; ///< of what is read next
  int64_t document_line_ = 1; ///< where the document read last begins
  std::ifstream stream_; ///< of a text that is read, files_[position_.file]
  std::unique_ptr<text::TextRows> rows_; ///< of another file that is read
};

} // namespace tessera::zoo
