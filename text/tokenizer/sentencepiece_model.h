// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SentencePieceModel` is the content of a sentencepiece model file;
// `make_token_model()` divides texts with it.

#include "tessera/text/tokenizer/token_model.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// With the numbers of the file format.
enum class SentencePieceKind {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4, ///< never divided
  kUnused = 5, ///< divided again where it is found
  kByte = 6,
};

struct SentencePiece {
  std::string text;
  float score = 0;
  SentencePieceKind kind = SentencePieceKind::kNormal;
};

/// With the numbers of the file format.
enum class SentencePieceAlgorithm {
  kUnigram = 1,
  kBpe = 2,
  kWord = 3,
  kCharacter = 4,
};

/// How sentencepiece rewrites texts. Its charsmap is that of the Precompiled
/// normalizer of tokenizer.json, without the encoding as base64.
struct SentencePieceNormalizer {
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true; ///< as U+2581
};

/// The fields of the file that matter for texts, with its defaults.
struct SentencePieceModel {
  std::string origin; ///< the file, for errors
  std::vector<SentencePiece> pieces; ///< an id is an index
  SentencePieceAlgorithm algorithm = SentencePieceAlgorithm::kUnigram;
  bool byte_fallback = false;
  /// The dummy prefix stands at the end of a text.
  bool treat_whitespace_as_suffix = false;
  int32_t unk_id = 0; ///< -1: none, as of the others
  int32_t bos_id = 1;
  int32_t eos_id = 2;
  int32_t pad_id = -1;
  std::string unk_piece = "<unk>";
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
  std::string pad_piece = "<pad>";
  /// What an unknown token is decoded to.
  std::string unk_surface = " \xe2\x81\x87 ";
  SentencePieceNormalizer normalizer;
  std::string denormalizer_charsmap; ///< applied after decoding
};

/// Reads the protocol buffer `ModelProto` of sentencepiece_model.proto.
/// @param origin names the file in errors.
/// @throws tessera::Error, with the place, if the bytes are not one, if a piece
///   is empty, not UTF-8 or has a score that is not finite, and unless one is
///   unknown and, with byte_fallback, all bytes are there.
SentencePieceModel read_sentencepiece_model(
    std::string_view bytes,
    const std::string& origin);

/// Gives the ids of the `sentencepiece` library for a normalized text, which is
/// one word.
/// @throws tessera::Error for the algorithm kWord, and if two pieces are equal.
std::unique_ptr<const TokenModel> make_token_model(
    const SentencePieceModel& model);

} // namespace tessera::text
