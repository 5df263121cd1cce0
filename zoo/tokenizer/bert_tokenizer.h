// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tokenizer of BERT: text or a pair of texts to ids, masks and types.

#include "tessera/zoo/tokenizer/bert_text.h"
#include "tessera/zoo/tokenizer/wordpiece.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::zoo {

/// What a folder's tokenizer files say beside the vocabulary.
struct BertTokenizerOptions {
  BertTextOptions text;
  WordPieceOptions wordpiece;
  std::string cls_token = "[CLS]";
  std::string sep_token = "[SEP]";
  std::string pad_token = "[PAD]";
  /// Kept whole wherever they stand in a text, e.g. "[MASK]" and added tokens.
  /// The four tokens above are whole in any case.
  std::vector<std::string> whole_tokens = {"[MASK]"};
  /// The longest sequence that the model takes; 0 when the files do not say.
  std::int64_t model_max_length = 0;
};

/// One tokenized text or pair; the three vectors have one length.
struct Encoding {
  std::vector<std::int64_t> input_ids;
  /// 0 for the first text and its special tokens, 1 for the second's.
  std::vector<std::int64_t> token_type_ids;
  /// 1 for a token, 0 for padding.
  std::vector<std::int64_t> attention_mask;
};

/// Rows of equal length, flat and row-major: [rows * length] each.
struct EncodedBatch {
  std::int64_t rows = 0;
  std::int64_t length = 0;
  std::vector<std::int64_t> input_ids;
  std::vector<std::int64_t> token_type_ids;
  std::vector<std::int64_t> attention_mask;
};

struct EncodeOptions {
  /// Cut to this many tokens, special ones included; 0 does not cut. Of a pair
  /// the longer text is cut first.
  std::int64_t max_length = 0;
  /// [CLS] a [SEP], or [CLS] a [SEP] b [SEP].
  bool add_special_tokens = true;
};

struct PadOptions {
  /// Rows are padded to this length, or to the longest row when it is 0.
  std::int64_t length = 0;
  /// The length is rounded up to a multiple of this.
  std::int64_t multiple_of = 1;
};

/// Gives the same ids as the `tokenizers` library does for a BERT folder.
/// Immutable; may be used from several threads at once.
class BertTokenizer {
 public:
  /// @throws Error when the vocabulary lacks a special token.
  BertTokenizer(Vocabulary vocabulary, BertTokenizerOptions options);

  /// Reads a Hugging Face folder: the vocabulary from tokenizer.json or, where
  /// there is none, from vocab.txt; the options from tokenizer_config.json or,
  /// where it is silent, BERT's defaults. A tokenizer.json that says otherwise
  /// loses, as it does in transformers, with a warning in the log.
  /// @throws Error when files are missing or malformed, or when they describe
  /// another kind of tokenizer; the message names file and value.
  static BertTokenizer from_folder(const std::filesystem::path& folder);

  /// Bytes that are not UTF-8 read as U+FFFD, which BERT's cleaning drops: the
  /// ids are those of the text without them. No text makes this throw, save
  /// one of 256 MiB or more.
  Encoding encode(std::string_view text, const EncodeOptions& options = {})
      const;
  Encoding encode_pair(
      std::string_view first,
      std::string_view second,
      const EncodeOptions& options = {}) const;

  /// Pads on the right.
  /// @throws Error when a row is longer than the length asked for.
  EncodedBatch pad(
      const std::vector<Encoding>& rows,
      const PadOptions& options = {}) const;

  /// The ids of a text alone: no special tokens added, nothing cut.
  std::vector<std::int64_t> ids(std::string_view text) const;

  const Vocabulary& vocabulary() const {
    return wordpiece_.vocabulary();
  }
  const BertTokenizerOptions& options() const {
    return options_;
  }
  std::int64_t cls_id() const {
    return cls_id_;
  }
  std::int64_t sep_id() const {
    return sep_id_;
  }
  std::int64_t pad_id() const {
    return pad_id_;
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
