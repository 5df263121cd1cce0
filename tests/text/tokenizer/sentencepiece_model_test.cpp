// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/sentencepiece_model.h"

#include "support/expect_error.h"
#include "support/mutations.h"
#include "text/tokenizer/token_model_cases.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace tessera::text::sentencepiece_model_test {
namespace {

using nlohmann::json;

std::string model_file(const std::string& name) {
  return runtime::read_text_file(fixture("token_models/" + name + ".model"));
}

// The wire format, written by hand.
std::string number(int field, char value) {
  return {static_cast<char>(field << 3), value};
}
std::string far_number(int field, char value) { // fields from 16
  return {
      static_cast<char>((field << 3 & 0x7f) | 0x80),
      static_cast<char>(field >> 4),
      value};
}
std::string bytes(int field, const std::string& content) {
  return std::string{
             static_cast<char>(field << 3 | 2),
             static_cast<char>(content.size())} +
         content;
}
std::string piece(const std::string& text, float score, char kind) {
  const auto bits = std::bit_cast<uint32_t>(score);
  std::string fields = bytes(1, text) + static_cast<char>(2 << 3 | 5);
  for (int i = 0; i < 4; ++i) {
    fields += static_cast<char>(bits >> (8 * i));
  }
  return bytes(1, fields + number(3, kind));
}
std::string small_model() {
  return piece("<unk>", 0, 2) + piece("a", -1, 1) + piece("ab", -2, 1);
}

} // namespace

TEST(SentencePieceModel, GivesTheIdsOfTheReference) {
  const json reference = read_json(fixture("token_models/sentencepiece.json"));
  size_t count = 0;
  for (const auto& [name, rows] : reference.at("models").items()) {
    SCOPED_TRACE(name);
    const auto read = read_sentencepiece_model(model_file(name), name);
    const auto model = make_token_model(read);
    EXPECT_EQ(model->size(), read.pieces.size());
    const auto cache = model->make_cache();
    for (const auto& row : rows) {
      const std::string text = row[0].get<std::string>();
      if (text.empty()) {
        continue;
      }
      std::vector<uint32_t> ids;
      uint32_t end = 0;
      for (const auto& token : tokens_of(*model, text, *cache)) {
        ids.push_back(token[0]);
        end = token[2];
      }
      EXPECT_EQ(json(ids), row[1]) << text;
      EXPECT_EQ(end, text.size());
      count += ids.size();
    }
  }
  EXPECT_GT(count, 10000U);
}

TEST(SentencePieceModel, ReadsTheFieldsOfTheFile) {
  const auto plain = read_sentencepiece_model(model_file("unigram_0"), "m");
  EXPECT_EQ(plain.algorithm, SentencePieceAlgorithm::kUnigram);
  EXPECT_FALSE(plain.byte_fallback);
  EXPECT_TRUE(plain.normalizer.add_dummy_prefix);
  EXPECT_TRUE(plain.normalizer.remove_extra_whitespaces);
  EXPECT_TRUE(plain.normalizer.escape_whitespaces);
  EXPECT_TRUE(plain.normalizer.precompiled_charsmap.empty());
  EXPECT_EQ(plain.pad_id, -1);
  EXPECT_EQ(plain.unk_surface, " \xe2\x81\x87 ");
  EXPECT_EQ(plain.pieces[0].kind, SentencePieceKind::kUnknown);
  EXPECT_EQ(plain.pieces[1].kind, SentencePieceKind::kControl);
  EXPECT_EQ(plain.pieces[1].text, "<s>");
  EXPECT_LT(plain.pieces[3].score, 0);

  const auto bpe = read_sentencepiece_model(model_file("bpe_6"), "m");
  EXPECT_EQ(bpe.algorithm, SentencePieceAlgorithm::kBpe);
  EXPECT_EQ(bpe.pad_id, 3);
  EXPECT_EQ(bpe.pieces[3].text, "<pad>");
  EXPECT_EQ(bpe.pieces[5].text, "<user>");
  EXPECT_EQ(bpe.pieces[5].kind, SentencePieceKind::kUserDefined);

  const auto suffix = read_sentencepiece_model(model_file("bpe_8"), "m");
  EXPECT_TRUE(suffix.treat_whitespace_as_suffix);
  EXPECT_FALSE(suffix.normalizer.add_dummy_prefix);
  EXPECT_FALSE(suffix.normalizer.remove_extra_whitespaces);

  const auto made = read_sentencepiece_model(
      small_model() +
          bytes(2, number(3, 2) + far_number(40, 0) + far_number(41, 7)) +
          bytes(3, bytes(1, "name") + bytes(2, "map") + number(5, 0)) +
          bytes(5, bytes(2, "back")),
      "m");
  EXPECT_EQ(made.algorithm, SentencePieceAlgorithm::kBpe);
  EXPECT_EQ(made.bos_id, 7);
  EXPECT_EQ(made.eos_id, 2);
  EXPECT_EQ(made.normalizer.precompiled_charsmap, "map");
  EXPECT_FALSE(made.normalizer.escape_whitespaces);
  EXPECT_EQ(made.denormalizer_charsmap, "back");
}

TEST(SentencePieceModel, NamesWhatIsWrong) {
  struct Case {
    std::string file;
    std::vector<const char*> in_message;
  };
  const std::string byte_fallback =
      bytes(2, std::string{'\x98', '\x02', '\x01'}); // field 35
  const std::vector<Case> cases = {
      {"", {"m.model holds no pieces"}},
      {piece("a", 0, 1), {"0 pieces have the type UNKNOWN"}},
      {small_model() + piece("u", 0, 2), {"2 pieces have the type UNKNOWN"}},
      {small_model() + piece("", 0, 1), {"pieces[3]", "without text"}},
      {small_model() + piece("\xff", 0, 1), {"pieces[3]", "not UTF-8"}},
      {small_model() + piece("b", NAN, 1), {"pieces[3]", "score"}},
      {small_model() + piece("b", 0, 7), {"pieces[3]", "type = 7"}},
      {small_model() + piece("<0x00>", 0, 6), {"byte_fallback is false"}},
      {small_model() + byte_fallback, {"no piece is that of the byte 0"}},
      {small_model() + bytes(2, number(3, 5)), {"model_type = 5"}},
      {small_model() + bytes(2, bytes(3, "x")), {"model_type of wire type 2"}},
      {small_model().substr(0, 4), {"at byte 2", "a field of"}},
      {small_model() + "\x08", {"within a number"}},
      {small_model() + "\x0b", {"wire type 3"}},
      {small_model() + std::string(1, '\0') + "a", {"the number 0"}},
      {small_model() + "\x08" + std::string(11, '\xff'), {"64 bits"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.in_message[0]);
    try {
      read_sentencepiece_model(one.file, "m.model");
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("m.model"), std::string::npos) << message;
      for (const char* part : one.in_message) {
        EXPECT_NE(message.find(part), std::string::npos)
            << part << " not in " << message;
      }
    }
  }
  expect_error(
      [] {
        make_token_model(read_sentencepiece_model(
            small_model() + piece("a", 0, 1), "m.model"));
      },
      {"m.model", "'a' appears twice"});
  expect_error(
      [] {
        make_token_model(read_sentencepiece_model(
            small_model() + bytes(2, number(3, 3)), "m.model"));
      },
      {"m.model", "WORD"});
}

TEST(SentencePieceModel, ReadsOrRefusesDamagedFiles) {
  Numbers numbers(4);
  int read = 0;
  int refused = 0;
  for (const char* name : {"unigram_0", "bpe_6_unused", "bpe_8"}) {
    const std::string right = model_file(name);
    for (int i = 0; i < 300; ++i) {
      std::string file = right;
      if (i % 3 == 0) {
        file.resize(numbers.below(file.size()));
      }
      for (size_t changes = i % 4; changes > 0 && !file.empty(); --changes) {
        file[numbers.below(file.size())] = numbers.byte();
      }
      try {
        const auto model =
            make_token_model(read_sentencepiece_model(file, "m.model"));
        for (const uint32_t id :
             ids_of(*model, "\xe2\x96\x81the page z\xe5\xad\x97")) {
          ASSERT_LT(id, model->size());
        }
        ++read;
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(read, 50);
  EXPECT_GT(refused, 50);
}

} // namespace tessera::text::sentencepiece_model_test
