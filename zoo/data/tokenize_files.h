// SPDX-License-Identifier: Apache-2.0
#pragma once
// tokenize_files() makes files of tokens of files of text, as `tessera
// tokenize` does.

#include "tessera/zoo/data/text_documents.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::zoo {

struct TokenizeProgress {
  int64_t bytes = 0; ///< of the input that was read, also before a resumption
  int64_t total_bytes = 0;
  int64_t documents = 0; ///< written
  int64_t tokens = 0;
  int64_t bad_rows = 0; ///< that were skipped
};

/// What becomes of what an earlier call has written or begun.
enum class EarlierTokens {
  kRefuse, ///< an error, unless it is an interrupted call that can go on
  kReplace,
  /// Files of the same inputs, tokenizer and options are taken as they are;
  /// others are replaced. PREFIX.sources.json says what they were made of.
  kReuse,
};

struct TokenizeOptions {
  std::vector<std::string> inputs; ///< see matching_files()
  TextFormatOptions format;
  /// PREFIX of PREFIX.bin, PREFIX.idx and PREFIX.tokenizer/, a copy of the
  /// tokenizer; its folder is created.
  std::filesystem::path output;
  /// The share of documents that is_held_out() takes for PREFIX-heldout, beside
  /// PREFIX-train; 0: all are in PREFIX.
  double held_out = 0;
  /// The token that begins each document, as the tokenizer's files write it;
  /// empty: none.
  std::string begin_token;
  /// Whether each document ends with a token; nothing: if there is one.
  std::optional<bool> append_end;
  /// That token, as the tokenizer's files write it; empty: its eos_token.
  std::string end_token;
  /// Whether texts that look like special tokens are special tokens.
  bool parse_special_tokens = false;
  size_t workers = 0; ///< threads; 0: as many as the process may use
  /// Skips and counts documents that are empty, not UTF-8, or in rows that
  /// cannot be read; otherwise the first is an error.
  bool skip_bad = false;
  EarlierTokens earlier = EarlierTokens::kRefuse;
  /// Texts that are tokenized at a time; does not change what is written.
  int64_t batch_bytes = 4 << 20;
  double save_seconds = 5; ///< between saves of how far the work is
  std::function<void(const TokenizeProgress&)> progress; ///< may be empty
};

/// Without inputs, output, shares of documents and how the work is done.
void visit_fields(runtime::OptionFields& fields, TokenizeOptions& options);

struct TokenizeResult {
  TokenizeProgress progress;
  int64_t resumed_documents = 0; ///< of an interrupted call
  bool is_reused = false; ///< everything is of an earlier call
  std::vector<std::filesystem::path> outputs; ///< the .bin files
};

/// Tokenizes every document and writes it in Megatron's format, as uint16 for
/// vocabularies of less than 65500 tokens and int32 for others, without the
/// special tokens that a tokenizer adds to inputs. An interrupted call goes on
/// where it was, if nothing but workers, batch_bytes and save_seconds changed,
/// and writes the same bytes; what it needs for that is in PREFIX.progress.json
/// and PREFIX*.part; after an error before the first save, nothing is left. One
/// process at a time.
/// @param model a folder with a tokenizer, or the file of one.
/// @throws tessera::Error on a bad row, naming file, line and key; if the
///     output exists or was begun with other options; if a file cannot be read
///     or written.
TokenizeResult tokenize_files(
    const std::filesystem::path& model,
    const TokenizeOptions& options);

} // namespace tessera::zoo
