// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Tokenizer` turns texts into token ids and ids into texts, as the files of a
// Hugging Face folder say.

#include "tessera/text/tokenizer/encoding.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

/// A tokenized text or pair.
struct Encoding {
  TokenSequence tokens;
  bool is_truncated = false; ///< to EncodeOptions::truncation

  std::vector<int64_t> ids() const;
};

struct EncodeOptions {
  Truncation truncation;
  bool add_special_tokens = true;
  /// Whether special tokens that stand in the text are read as text.
  bool splits_special_tokens = false;
  /// Whether PlacedToken::bytes is wanted; without, encoding is faster.
  bool with_offsets = false;
};

/// Sequences of equal length, flat and row-major: [rows * length] each.
struct EncodedBatch {
  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int64_t> input_ids;
  std::vector<int64_t> token_type_ids;
  std::vector<int64_t> attention_mask; ///< 1 for a token, 0 for padding
};

struct PadOptions {
  int64_t length = 0; ///< 0: that of the longest row
  int64_t multiple_of = 1; ///< the length is rounded up to one
  std::optional<Side> side; ///< nothing: as the tokenizer's files say
};

/// What a folder's files say beside how texts are tokenized.
struct TokenizerSettings {
  /// The names of special tokens ("bos_token", "eos_token", "unk_token",
  /// "sep_token", "pad_token", "cls_token", "mask_token") and what they are.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  /// The longest sequence that the model takes; 0: the files do not say.
  int64_t model_max_length = 0;
  Side padding_side = Side::kRight;
  Side truncation_side = Side::kRight;
  std::string chat_template; ///< Jinja; empty: there is none
  /// Of conversations with tools; empty: the same.
  std::string tool_chat_template;
};

/// The chat templates of a Hugging Face folder, by transformers' names:
/// "default", "tool_use", ...
/// @throws tessera::Error naming the file and what is malformed.
std::map<std::string, std::string> chat_templates_in(
    const std::filesystem::path& folder);

/// Gives the ids, places and texts of the `tokenizers` library for the same
/// tokenizer.json, and those of the `sentencepiece` library for the same
/// .model file. Cheap to copy; may be used from several threads at once.
class Tokenizer {
 public:
  /// Reads a tokenizer.json, or a .model file of sentencepiece, by whose
  /// library special tokens are neither added to texts nor found in them.
  /// @throws tessera::Error if it is missing or malformed or has a part that is
  ///   not known; the message names file, place and value.
  static Tokenizer from_file(const std::filesystem::path& path);

  /// Reads the tokenizer of a Hugging Face folder: tokenizer.json, or vocab.txt
  /// (BERT), vocab.json and merges.txt (GPT-2, RoBERTa), or a .model file
  /// (sentencepiece); tokenizer_config.json overrules them, as in transformers.
  /// @throws tessera::Error as from_file(), or if the folder has none of these.
  static Tokenizer from_folder(const std::filesystem::path& folder);

  /// from_folder() of a folder, else from_file().
  static Tokenizer from_path(const std::filesystem::path& path);

  /// Tokenizes a text. Bytes that are not UTF-8 are read as U+FFFD; places are
  /// those in the text with U+FFFD.
  /// @throws tessera::Error if the text has 2 GiB or more, if it needs an
  ///   unknown token and the vocabulary has none, or if truncation is not
  ///   possible.
  Encoding encode(std::string_view text, const EncodeOptions& options = {})
      const;
  Encoding encode_pair(
      std::string_view first,
      std::string_view second,
      const EncodeOptions& options = {}) const;

  /// As encode(), for each text, on `threads` threads; 0: as many as the
  /// process may use.
  std::vector<Encoding> encode_batch(
      const std::vector<std::string_view>& texts,
      const EncodeOptions& options = {},
      size_t threads = 0) const;

  /// The ids of a text alone: without special tokens or truncation.
  std::vector<int64_t> ids(std::string_view text) const;

  /// Ids that stand for no token are left out.
  std::string decode(
      const std::vector<int64_t>& ids,
      bool skip_special_tokens = false) const;

  /// @throws tessera::Error if a row is longer than the requested length, or if
  ///   padding is needed and there is no token for it.
  EncodedBatch pad(
      const std::vector<Encoding>& rows,
      const PadOptions& options = {}) const;

  /// @param token as files write it.
  std::optional<int64_t> id_of(std::string_view token) const;
  /// Empty: no token has the id.
  const std::string& token(int64_t id) const;
  /// The largest id + 1.
  int64_t size() const;
  bool is_special(int64_t id) const;
  /// The id of a special token by its name, such as "eos_token".
  std::optional<int64_t> special_id(const char* name) const;

  const TokenizerSettings& settings() const;

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts);

  std::shared_ptr<const Parts> parts_;

  friend class TokenizerReader;
};

/// The tokenizer_config.json with which the files of a tokenizer are read as
/// Tokenizer::from_path(path) reads them, whichever model they are copied to:
/// with the class that the model's config.json or the file itself implies.
/// Without a class if it is one that cannot be read.
std::string tokenizer_config_with_class(const std::filesystem::path& path);

/// Decodes ids as they come, e.g. from generate(): all pieces together are
/// Tokenizer::decode() of all ids, each piece is valid UTF-8, and none is ever
/// taken back.
class DecodeStream {
 public:
  /// @param before ids whose text is already written: what is given out follows
  ///   it. If later ids change that text, theirs is decoded on its own.
  explicit DecodeStream(
      Tokenizer tokenizer,
      bool skip_special_tokens = true,
      std::vector<int64_t> before = {});

  /// The text that `id` completes; empty if later ids may still change it: a
  /// character, or with byte fallback a run of bytes, is incomplete.
  std::string add(int64_t id);
  /// What is left, incomplete characters as U+FFFD.
  std::string finish();

 private:
  /// The text of ids_ after what was given out; forgets what was if it differs.
  std::string rest();

  Tokenizer tokenizer_;
  bool skips_special_;
  std::vector<int64_t> ids_; ///< since text that was given out for certain
  size_t prefix_count_ = 0; ///< of ids_ whose text was given out
  std::string prefix_; ///< that text
};

} // namespace tessera::text
