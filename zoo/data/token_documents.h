// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TokenDocuments` is documents of tokens in a memory-mapped file of any of the
// known formats.

#include "tessera/zoo/data/token_file.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::zoo {

/// What a file of tokens does not say itself.
struct TokenFileOptions {
  TokenType type = TokenType::kUint16; ///< of a file without a header
  /// The token that ends each document of a file without an index, and begins
  /// each of a file of llm.c. Nothing: such a file is one document; one of
  /// llm.c has the token that llm.c's scripts write.
  std::optional<int64_t> end_token;
};

enum class TokenFormat {
  kPlain, ///< tokens one after the other, as nanoGPT writes them
  kMegatron, ///< a .bin file with the .idx file beside it
  kLlmC, ///< a header of 256 int32 before the tokens
};

/// May be read from several threads at once.
class TokenDocuments {
 public:
  /// Recognizes the format by the content of the files.
  /// @param path of the .bin or .idx file, or of both without the suffix.
  /// @throws tessera::Error naming file, place, value and remedy if a file is
  ///     missing, truncated, damaged or of another format.
  explicit TokenDocuments(
      const std::filesystem::path& path,
      const TokenFileOptions& options = {});

  /// The number of documents.
  int64_t size() const {
    return static_cast<int64_t>(begins_.size()) - 1;
  }
  int64_t length(int64_t document) const {
    return begin(document + 1) - begin(document);
  }
  /// Where a document begins in file(); that of size() is the end.
  int64_t begin(int64_t document) const {
    return begins_[static_cast<size_t>(document)];
  }
  TokenFormat format() const {
    return format_;
  }
  /// Whether the file or the options say where documents end.
  bool knows_documents() const {
    return knows_documents_;
  }

  /// Tokens [begin, begin + tokens.size()) of a document.
  /// @throws tessera::Error if they are not in it.
  void read_into(int64_t document, int64_t begin, std::span<int64_t> tokens)
      const;
  /// The tokens of a document, int64.
  at::Tensor read(int64_t document) const;

  /// All tokens, one document after the other.
  const TokenFile& file() const {
    return file_;
  }

 private:
  struct Opened;
  explicit TokenDocuments(Opened opened);
  static Opened opened(
      const std::filesystem::path& path,
      const TokenFileOptions& options);

  TokenFile file_;
  TokenFormat format_;
  bool knows_documents_;
  std::vector<int64_t> begins_; ///< of documents, and the end
};

/// The files that TokenDocuments reads for a path: one, or a .bin and an .idx
/// file.
std::vector<std::filesystem::path> token_files_of(
    const std::filesystem::path& path);

/// Where `tessera tokenize` keeps the tokenizer that made a file:
/// PREFIX.tokenizer/. It need not be there.
std::filesystem::path tokenizer_beside(const std::filesystem::path& path);

/// Whether a document is of the held-out part of a file. A function of its
/// number alone, so that the parts of a file are the same in every run.
/// @param share of the documents that are held out, on average.
bool is_held_out(int64_t document, double share);

} // namespace tessera::zoo
