// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/sentencepiece_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/byte_alphabet.h"
#include "tessera/text/tokenizer/sentencepiece_bpe.h"
#include "tessera/text/tokenizer/unigram.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace tessera::text {
namespace {

/// The fields of a message of a protocol buffer, in the wire format
/// (protobuf.dev/programming-guides/encoding).
class ProtoFields {
 public:
  /// @param place of the message, for errors, e.g. "m.model: pieces[3]".
  /// @param offset of its first byte in the file.
  ProtoFields(std::string_view bytes, std::string place, size_t offset)
      : bytes_(bytes), place_(std::move(place)), offset_(offset) {}

  /// Goes to the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) {
      return false;
    }
    const uint64_t tag = varint();
    number_ = tag >> 3;
    type_ = static_cast<Type>(tag & 7);
    if (number_ == 0) {
      fail("a field with the number 0");
    }
    switch (type_) {
      case Type::kVarint:
        value_ = varint();
        break;
      case Type::kFixed64:
        value_ = fixed(8);
        break;
      case Type::kFixed32:
        value_ = fixed(4);
        break;
      case Type::kBytes: {
        const uint64_t size = varint();
        if (size > bytes_.size() - at_) {
          fail(formatted(
              "a field of {} bytes where {} are left",
              size,
              bytes_.size() - at_));
        }
        content_ = bytes_.substr(at_, size);
        at_ += size;
        break;
      }
      default:
        fail(formatted("a field of wire type {}", tag & 7));
    }
    return true;
  }

  uint64_t number() const {
    return number_;
  }

  int64_t integer(const char* name, int64_t min, int64_t max) const {
    check_type(Type::kVarint, name);
    const auto value = static_cast<int64_t>(value_);
    if (value < min || value > max) {
      fail(formatted(
          "{} = {}, which must be from {} to {}", name, value, min, max));
    }
    return value;
  }
  bool flag(const char* name) const {
    return integer(name, 0, 1) != 0;
  }
  int32_t id(const char* name) const {
    return static_cast<int32_t>(
        integer(name, -1, std::numeric_limits<int32_t>::max()));
  }
  float number32(const char* name) const {
    check_type(Type::kFixed32, name);
    return std::bit_cast<float>(static_cast<uint32_t>(value_));
  }
  std::string text(const char* name) const {
    check_type(Type::kBytes, name);
    return std::string(content_);
  }
  ProtoFields message(const std::string& name) const {
    check_type(Type::kBytes, name.c_str());
    return {content_, place_ + ": " + name, offset_ + at_ - content_.size()};
  }

  /// Throws "PLACE: at byte N is `found`", and the remedy.
  [[noreturn]] void fail(const std::string& found) const {
    TESSERA_FAIL(
        "{}: at byte {} is {}; is the file a sentencepiece model, and complete? Fetch it again",
        place_,
        offset_ + at_,
        found);
  }

 private:
  enum class Type { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  void check_type(Type type, const char* name) const {
    if (type != type_) {
      fail(formatted(
          "{} of wire type {}, which must be {}",
          name,
          static_cast<int>(type_),
          static_cast<int>(type)));
    }
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) {
        fail("the end, within a number");
      }
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    fail("a number of more than 64 bits");
  }

  uint64_t fixed(size_t size) {
    if (size > bytes_.size() - at_) {
      fail("the end, within a number");
    }
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= uint64_t{byte} << (8 * i);
    }
    return value;
  }

  std::string_view bytes_;
  std::string place_;
  size_t offset_;
  size_t at_ = 0;
  uint64_t number_ = 0;
  Type type_ = Type::kVarint;
  uint64_t value_ = 0;
  std::string_view content_;
};

SentencePiece read_piece(ProtoFields fields) {
  SentencePiece piece;
  while (fields.next()) {
    switch (fields.number()) {
      case 1: {
        piece.text = fields.text("piece");
        std::string storage;
        if (valid_utf8(piece.text, storage).data() != piece.text.data()) {
          fields.fail("a piece that is not UTF-8");
        }
        break;
      }
      case 2:
        piece.score = fields.number32("score");
        if (!std::isfinite(piece.score)) {
          fields.fail(formatted("score = {}", piece.score));
        }
        break;
      case 3:
        piece.kind =
            static_cast<SentencePieceKind>(fields.integer("type", 1, 6));
        break;
      default:
        break;
    }
  }
  if (piece.text.empty()) {
    fields.fail("a piece without text");
  }
  return piece;
}

void read_trainer(ProtoFields fields, SentencePieceModel& model) {
  while (fields.next()) {
    switch (fields.number()) {
      case 3:
        model.algorithm = static_cast<SentencePieceAlgorithm>(
            fields.integer("model_type", 1, 4));
        break;
      case 24:
        model.treat_whitespace_as_suffix =
            fields.flag("treat_whitespace_as_suffix");
        break;
      case 35:
        model.byte_fallback = fields.flag("byte_fallback");
        break;
      case 40:
        model.unk_id = fields.id("unk_id");
        break;
      case 41:
        model.bos_id = fields.id("bos_id");
        break;
      case 42:
        model.eos_id = fields.id("eos_id");
        break;
      case 43:
        model.pad_id = fields.id("pad_id");
        break;
      case 44:
        model.unk_surface = fields.text("unk_surface");
        break;
      case 45:
        model.unk_piece = fields.text("unk_piece");
        break;
      case 46:
        model.bos_piece = fields.text("bos_piece");
        break;
      case 47:
        model.eos_piece = fields.text("eos_piece");
        break;
      case 48:
        model.pad_piece = fields.text("pad_piece");
        break;
      default:
        break;
    }
  }
}

void read_sentencepiece_normalizer(
    ProtoFields fields,
    SentencePieceNormalizer& normalizer) {
  while (fields.next()) {
    switch (fields.number()) {
      case 2:
        normalizer.precompiled_charsmap = fields.text("precompiled_charsmap");
        break;
      case 3:
        normalizer.add_dummy_prefix = fields.flag("add_dummy_prefix");
        break;
      case 4:
        normalizer.remove_extra_whitespaces =
            fields.flag("remove_extra_whitespaces");
        break;
      case 5:
        normalizer.escape_whitespaces = fields.flag("escape_whitespaces");
        break;
      default:
        break;
    }
  }
}

void check_pieces(const SentencePieceModel& model) {
  const std::string& origin = model.origin;
  TESSERA_CHECK(
      !model.pieces.empty(),
      "{} holds no pieces; is it a sentencepiece model?",
      origin);
  std::set<std::string_view> bytes;
  size_t unknown = 0;
  for (const SentencePiece& piece : model.pieces) {
    unknown += piece.kind == SentencePieceKind::kUnknown;
    if (piece.kind == SentencePieceKind::kByte) {
      bytes.insert(piece.text);
    }
  }
  TESSERA_CHECK(
      unknown == 1,
      "{}: {} pieces have the type UNKNOWN; one must have it; fetch the file again",
      origin,
      unknown);
  TESSERA_CHECK(
      model.byte_fallback || bytes.empty(),
      "{}: {} pieces have the type BYTE, but byte_fallback is false; fetch the file again",
      origin,
      bytes.size());
  for (int byte = 0; model.byte_fallback && byte < 256; ++byte) {
    TESSERA_CHECK(
        bytes.erase(token_of_byte(static_cast<unsigned char>(byte))) == 1,
        "{}: byte_fallback is true, but no piece is that of the byte {}, of type BYTE; fetch the file again",
        origin,
        byte);
  }
  TESSERA_CHECK(
      bytes.empty(),
      "{}: the piece '{}' has the type BYTE; those of bytes are '<0x00>' to '<0xFF>'; fetch the file again",
      origin,
      bytes.empty() ? "" : *bytes.begin());
}

/// As sentencepiece computes them, in float32.
UnigramOptions unigram_options(const SentencePieceModel& model, uint32_t unk) {
  constexpr float kUnkPenalty = 10;
  float min_score = FLT_MAX;
  float max_score = FLT_MIN;
  for (const SentencePiece& piece : model.pieces) {
    if (piece.kind == SentencePieceKind::kNormal) {
      min_score = std::min(min_score, piece.score);
      max_score = std::max(max_score, piece.score);
    }
  }
  UnigramOptions options;
  options.reference = UnigramReference::kSentencePiece;
  options.unk_score = static_cast<double>(min_score - kUnkPenalty);
  options.unk_id = unk;
  options.byte_fallback = model.byte_fallback;
  for (const SentencePiece& piece : model.pieces) {
    std::optional<double> score;
    if (piece.kind == SentencePieceKind::kNormal) {
      score = static_cast<double>(piece.score);
    } else if (piece.kind == SentencePieceKind::kUserDefined) {
      // So high that it is chosen over tokens of the same bytes.
      const auto length = static_cast<float>(piece.text.size());
      score = static_cast<double>(length * max_score) - 0.1;
    }
    options.scores.push_back(score);
  }
  return options;
}

} // namespace

SentencePieceModel read_sentencepiece_model(
    std::string_view bytes,
    const std::string& origin) {
  SentencePieceModel model;
  model.origin = origin;
  ProtoFields fields(bytes, origin, 0);
  while (fields.next()) {
    switch (fields.number()) {
      case 1:
        model.pieces.push_back(read_piece(
            fields.message(formatted("pieces[{}]", model.pieces.size()))));
        break;
      case 2:
        read_trainer(fields.message("trainer_spec"), model);
        break;
      case 3:
        read_sentencepiece_normalizer(
            fields.message("normalizer_spec"), model.normalizer);
        break;
      case 5: {
        SentencePieceNormalizer denormalizer;
        read_sentencepiece_normalizer(
            fields.message("denormalizer_spec"), denormalizer);
        model.denormalizer_charsmap =
            std::move(denormalizer.precompiled_charsmap);
        break;
      }
      default:
        break;
    }
  }
  check_pieces(model);
  return model;
}

std::unique_ptr<const TokenModel> make_token_model(
    const SentencePieceModel& model) {
  std::vector<std::pair<std::string, int64_t>> tokens;
  uint32_t unk = 0;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    tokens.emplace_back(model.pieces[id].text, static_cast<int64_t>(id));
    if (model.pieces[id].kind == SentencePieceKind::kUnknown) {
      unk = static_cast<uint32_t>(id);
    }
  }
  Vocabulary vocabulary(std::move(tokens), model.origin);
  switch (model.algorithm) {
    case SentencePieceAlgorithm::kUnigram:
      return std::make_unique<Unigram>(
          std::move(vocabulary), unigram_options(model, unk));
    case SentencePieceAlgorithm::kBpe:
    case SentencePieceAlgorithm::kCharacter:
      return std::make_unique<SentencePieceBpe>(
          std::move(vocabulary), model, unk);
    default:
      TESSERA_FAIL(
          "{} has the model_type WORD, which is not supported; train one with --model_type=unigram, bpe or char",
          model.origin);
  }
}

} // namespace tessera::text
