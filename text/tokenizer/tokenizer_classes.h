// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TokenizerClass` describes a tokenizer class of transformers: what it adds to
// its vocabulary, to texts and to their normalization. All classes are rows of
// one table.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

/// The files that a vocabulary consists of.
enum class VocabularyKind {
  kWordPiece, ///< vocab.txt
  kByteLevelBpe, ///< vocab.json and merges.txt
  kSentencePiece, ///< a .model
};

/// Pieces of a sentencepiece model to which a class gives other ids.
struct Renumbering {
  /// The pieces with the ids 0, 1, ...; "<unk>" is the unknown one.
  std::vector<std::string> first;
  size_t replaced =
      0; ///< pieces at the model's beginning that `first` replaces
};

/// What puts the space before the words of a sentencepiece model.
enum class WordSpaces {
  kModel, ///< the model, at the beginning of a text or of a part of it
  kMetaspace, ///< transformers, in each part between added tokens
  kWhiteSpace, ///< the same, and white space of any kind divides words
};

/// Names and model_types are those of transformers 4 and 5. In templates,
/// "bos_token" and the like stand for special tokens, "$A" and "$B" for texts,
/// ":1" for the token type.
struct TokenizerClass {
  std::vector<std::string> names; ///< without "Fast"
  std::vector<std::string> model_types; ///< that have no other class
  std::optional<VocabularyKind> vocabulary;
  /// Not empty: what the class does that is not implemented. It is refused;
  /// with a tokenizer.json only if it is named and changes what that says.
  std::string refusal;
  std::string remedy;
  bool refuses_tokenizer_json = false;

  /// Special tokens that no file needs to name.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  /// Of texts and pairs; empty: bos_token and eos_token around each text, if
  /// add_bos_token and add_eos_token say so.
  std::string single;
  std::string pair;
  bool adds_bos_token = false; ///< the default of add_bos_token
  bool adds_eos_token = false;
  int second_type = 1; ///< token type of a pair's second text, without template
  bool pads_left = false;
  bool mask_strips_left = false; ///< mask_token takes the space before it

  /// Byte-level BPE: how texts are divided; empty: as GPT-2 does.
  std::string pattern;
  bool composes = false; ///< texts are in NFC
  bool trims_offsets = false; ///< places of tokens are without spaces

  WordSpaces word_spaces = WordSpaces::kModel;
  Renumbering renumbering;
  std::vector<std::string> last_tokens; ///< special, after the vocabulary
  /// Added tokens that have no name are refused: references differ.
  bool refuses_added_tokens = false;
  bool has_extra_ids = false; ///< <extra_id_N> after the vocabulary, 0 the last
  /// "legacy": false of tokenizer_config.json puts the space before a text only
  /// at its beginning.
  bool has_legacy_prefix = false;
  /// Texts are rewritten as ALBERT does: do_lower_case, keep_accents.
  bool has_albert_normalizer = false;
};

/// The class with that name, with or without "Fast"; nullptr: it is not known.
const TokenizerClass* tokenizer_class(std::string_view name);

/// The class that folders of the model_type have unless they name one; nullptr:
/// none is known.
const TokenizerClass* tokenizer_class_of_model(std::string_view model_type);

/// The class of folders that name none.
const TokenizerClass& default_tokenizer_class(VocabularyKind vocabulary);

/// Whether a name says nothing but which library reads the files.
bool is_generic_tokenizer_class(std::string_view name);

} // namespace tessera::text
