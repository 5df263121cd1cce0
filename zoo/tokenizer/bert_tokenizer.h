// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BertTokenizer` is the WordPiece tokenizer of BERT: it turns a text or a pair
// of texts into token ids, attention masks and token types.

#include "tessera/zoo/tokenizer/bert_text.h"
#include "tessera/zoo/tokenizer/wordpiece.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::zoo {

/// The settings in a folder's tokenizer files, other than the vocabulary.
struct BertTokenizerOptions {
  BertTextOptions text;
  WordPieceOptions wordpiece;
  std::string cls_token = "[CLS]";
  std::string sep_token = "[SEP]";
  std::string pad_token = "[PAD]";
  /// Never split wherever they occur in a text, for example "[MASK]" and added
  /// tokens. The four tokens above are never split either.
  std::vector<std::string> whole_tokens = {"[MASK]"};
  /// The longest sequence that the model takes; 0 if the files do not say.
  std::int64_t model_max_length = 0;
};

/// One tokenized text or pair; the three vectors have the same length.
struct Encoding {
  std::vector<std::int64_t> input_ids;
  /// 0 for the first text and its special tokens, 1 for the second.
  std::vector<std::int64_t> token_type_ids;
  /// 1 for a token, 0 for padding.
  std::vector<std::int64_t> attention_mask;
  bool is_truncated = false; ///< to EncodeOptions::max_length
};

/// Sequences of equal length, flat and row-major: [rows * length] each.
struct EncodedBatch {
  std::int64_t rows = 0;
  std::int64_t length = 0;
  std::vector<std::int64_t> input_ids;
  std::vector<std::int64_t> token_type_ids;
  std::vector<std::int64_t> attention_mask;
};

struct EncodeOptions {
  /// Truncates to this many tokens, special tokens included; 0 does not
  /// truncate. Of a pair the longer text is truncated first.
  std::int64_t max_length = 0;
  /// Adds special tokens: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].
  bool add_special_tokens = true;
};

struct PadOptions {
  /// The length to pad to; 0: the longest row.
  std::int64_t length = 0;
  /// The length is rounded up to a multiple of this.
  std::int64_t multiple_of = 1;
};

/// Produces the same ids as the `tokenizers` library for a BERT folder.
/// Immutable; may be used from several threads at once.
class BertTokenizer {
 public:
  /// @throws Error if the vocabulary lacks a special token.
  BertTokenizer(Vocabulary vocabulary, BertTokenizerOptions options);

  /// Reads a Hugging Face folder: the vocabulary from tokenizer.json or, if
  /// there is none, from vocab.txt; the options from tokenizer_config.json,
  /// with BERT's defaults for what it does not set. If tokenizer.json
  /// disagrees, tokenizer_config.json takes precedence, as in transformers,
  /// with a warning in the log.
  /// @throws Error if files are missing or malformed, or describe another kind
  ///     of tokenizer; the message names file and value.
  static BertTokenizer from_folder(const std::filesystem::path& folder);

  /// Tokenizes a text. Bytes that are not UTF-8 are read as U+FFFD, which
  /// BERT's cleaning drops: the ids are those of the text without them. No text
  /// makes this throw, except one of 256 MiB or more.
  Encoding encode(std::string_view text, const EncodeOptions& options = {})
      const;
  Encoding encode_pair(
      std::string_view first,
      std::string_view second,
      const EncodeOptions& options = {}) const;

  /// Pads on the right.
  /// @throws Error if a row is longer than the requested length.
  EncodedBatch pad(
      const std::vector<Encoding>& rows,
      const PadOptions& options = {}) const;

  /// The ids of a text alone: without special tokens or truncation.
  std::vector<std::int64_t> ids(std::string_view text) const;

  const Vocabulary& vocabulary() const {
    return wordpiece_.vocabulary();
  }
  const BertTokenizerOptions& options() const {
    return options_;
  }

 private:
  Encoding joined(
      std::vector<std::int64_t> first,
      std::vector<std::int64_t> second,
      bool is_pair,
      const EncodeOptions& options) const;

  BertTokenizerOptions options_;
  WordPiece wordpiece_;
  std::int64_t cls_id_;
  std::int64_t sep_id_;
  std::int64_t pad_id_;
  // Longest first, so that the first match is the longest.
  std::vector<std::pair<std::string, std::int64_t>> whole_tokens_;
};

} // namespace tessera::zoo
