// SPDX-License-Identifier: Apache-2.0
// A file with anything in it as text, JSON lines and CSV, read at once and on
// from each of its documents.

#include "fuzz/fuzz_target.h"
#include "tessera/zoo/data/text_documents.h"

#include <stdexcept>

namespace tessera::fuzz_text_documents {

namespace {

/// Reads everything, each document also by a reader that begins there.
void read_all(
    const std::filesystem::path& path,
    const zoo::TextFormatOptions& options) {
  zoo::TextDocuments documents({path}, options);
  zoo::TextPosition position;
  for (int i = 0; i < 50; ++i) {
    const auto document = documents.next();
    const auto same = zoo::TextDocuments({path}, options, position).next();
    if (document.has_value() != same.has_value() ||
        (document &&
         (document->text != same->text || document->problem != same->problem ||
          document->next.offset != same->next.offset))) {
      throw std::logic_error("another document from its position");
    }
    if (!document) {
      return;
    }
    position = document->next;
  }
}

} // namespace

TESSERA_FUZZ_TARGET(text_documents) {
  const MemoryFile content(input);
  for (const auto format :
       {zoo::TextFormat::kText,
        zoo::TextFormat::kJsonLines,
        zoo::TextFormat::kCsv,
        zoo::TextFormat::kTsv}) {
    for (const auto unit :
         {zoo::TextUnit::kFile,
          zoo::TextUnit::kParagraph,
          zoo::TextUnit::kLine}) {
      try {
        read_all(content.path(), {format, unit, "text"});
      } catch (const Error&) {
      }
    }
  }
}

} // namespace tessera::fuzz_text_documents
