// SPDX-License-Identifier: Apache-2.0
// Tokenizers like those of published families, against the `tokenizers`
// package (tests/fixture_makers/tokenizer_families.py).
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer/utf8.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace tessera::text::tokenizer_test {
namespace {

using Ids = std::vector<int64_t>;
using Texts = std::vector<std::string>;

const nlohmann::json& cases() {
  static const nlohmann::json kCases =
      read_json(fixture("tokenizers/cases.json"));
  return kCases;
}

Tokenizer family(const std::string& name) {
  return Tokenizer::from_file(fixture("tokenizers/" + name + ".json"));
}

// Here too, because a program names its tests where the fixtures may be missing
// (scripts/gpu_tests.sh packs few).
constexpr const char* kFamilies[] = {
    "albert",
    "bert",
    "bert_cased",
    "bloom",
    "clip",
    "deberta",
    "deepseek",
    "falcon",
    "gemma",
    "gpt2",
    "gpt4o",
    "gpt_neox",
    "llama2",
    "llama3",
    "qwen2",
    "roberta",
    "starcoder",
    "t5",
    "words"};

/// The ends of the places of tokens, in bytes, one after the other.
Ids places_of(const Encoding& encoding) {
  Ids places;
  for (const PlacedToken& token : encoding.tokens) {
    places.push_back(token.bytes.begin);
    places.push_back(token.bytes.end);
  }
  return places;
}

Ids types_of(const Encoding& encoding) {
  Ids types;
  for (const PlacedToken& token : encoding.tokens) {
    types.push_back(token.type_id);
  }
  return types;
}

class TokenizerFamily : public ::testing::TestWithParam<const char*> {};

} // namespace

TEST_P(TokenizerFamily, GivesIdsPlacesAndTextsOfTheReference) {
  const Tokenizer tokenizer = family(GetParam());
  const nlohmann::json& expected = cases().at("families").at(GetParam());
  const auto texts = cases().at("texts").get<Texts>();
  for (size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(nlohmann::json(texts[i]).dump());
    const Encoding encoding =
        tokenizer.encode(texts[i], {.with_offsets = true});
    const Ids ids = encoding.ids();
    EXPECT_EQ(ids, expected.at("ids")[i].get<Ids>());
    EXPECT_EQ(places_of(encoding), expected.at("offsets")[i].get<Ids>());
    EXPECT_EQ(tokenizer.encode(texts[i]).ids(), ids); // without places
    EXPECT_EQ(tokenizer.decode(ids), expected.at("decoded")[i]);
    EXPECT_EQ(tokenizer.decode(ids, true), expected.at("skipped")[i]);
    DecodeStream stream(tokenizer, /*skip_special_tokens=*/false);
    std::string streamed;
    for (const int64_t id : ids) {
      streamed += stream.add(id);
    }
    EXPECT_EQ(streamed + stream.finish(), expected.at("decoded")[i]);
  }
}

TEST_P(TokenizerFamily, JoinsPairsAsTheReference) {
  const Tokenizer tokenizer = family(GetParam());
  const nlohmann::json& expected =
      cases().at("families").at(GetParam()).at("pairs");
  const nlohmann::json& pairs = cases().at("pairs");
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Encoding encoding = tokenizer.encode_pair(
        pairs[i][0].get<std::string>(), pairs[i][1].get<std::string>());
    EXPECT_EQ(encoding.ids(), expected[i][0].get<Ids>()) << pairs[i];
    EXPECT_EQ(types_of(encoding), expected[i][1].get<Ids>()) << pairs[i];
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TokenizerFamily,
    ::testing::ValuesIn(kFamilies),
    [](const auto& test) { return std::string(test.param); });

TEST(Tokenizer, AllFamiliesOfTheReferenceAreTested) {
  Texts names;
  for (const auto& [name, results] : cases().at("families").items()) {
    names.push_back(name);
  }
  EXPECT_EQ(names, Texts(std::begin(kFamilies), std::end(kFamilies)));
}

TEST(Tokenizer, BatchesOverThreadsAreTheSame) {
  const Tokenizer tokenizer = family("llama3");
  const auto texts = cases().at("texts").get<Texts>();
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const std::vector<Encoding> batch = tokenizer.encode_batch(views, {}, 3);
  ASSERT_EQ(batch.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(batch[i].ids(), tokenizer.encode(texts[i]).ids());
  }
  expect_error(
      [&] {
        tokenizer.encode_batch(
            views, {.truncation = {.max_length = 0, .strategy = {}}}, 0);
        tokenizer.encode_batch(
            views,
            {.truncation =
                 {.max_length = 1,
                  .strategy = TruncationStrategy::kOnlySecond}},
            2);
      },
      {"second text"});
}

TEST(Tokenizer, StreamsWithholdIncompleteCharacters) {
  const Tokenizer tokenizer = family("gpt2");
  const Ids ids = tokenizer.ids("\xf0\x9f\x91\x8b");
  ASSERT_GT(ids.size(), 1U);
  DecodeStream stream(tokenizer);
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    EXPECT_EQ(stream.add(ids[i]), "");
  }
  EXPECT_EQ(stream.add(ids.back()), "\xf0\x9f\x91\x8b");
  stream.add(ids.front());
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
}

// A run of byte tokens is a text as a whole, or none: nothing of it is given
// out before it ends.
TEST(Tokenizer, StreamsOfBytesAreNeverTakenBack) {
  for (const char* const name : {"llama2", "gemma"}) {
    const Tokenizer tokenizer = family(name);
    const auto byte = [&](const char* token) {
      return *tokenizer.id_of(token);
    };
    const int64_t word = tokenizer.ids("the").back();
    const std::vector<Ids> rows{
        {byte("<0x0A>"), byte("<0xF0>"), byte("<0x9F>")},
        {word, byte("<0x22>"), byte("<0xA5>"), word},
        {byte("<0x6B>"), byte("<0xF9>"), byte("<0x6B>"), word, word},
        {byte("<0xC3>"), byte("<0xA9>"), byte("<0x0A>"), word},
        {byte("<0x0A>"), 1, byte("<0xF0>"), word},
        {byte("<0x0A>"), tokenizer.size(), byte("<0xF0>"), word}, // no token
    };
    for (const Ids& ids : rows) {
      for (const bool skips : {false, true}) {
        DecodeStream stream(tokenizer, skips);
        std::string streamed;
        const auto take = [&](const std::string& piece) {
          std::string storage;
          EXPECT_EQ(valid_utf8(piece, storage), piece);
          streamed += piece;
        };
        for (const int64_t id : ids) {
          take(stream.add(id));
        }
        take(stream.finish());
        EXPECT_EQ(streamed, tokenizer.decode(ids, skips))
            << name << " " << nlohmann::json(ids);
      }
    }
  }
}

TEST(Tokenizer, StreamsOfRandomIdsAreTheirDecodedText) {
  std::mt19937 random(3);
  for (const char* const name : kFamilies) {
    const Tokenizer tokenizer = family(name);
    for (int round = 0; round < 40; ++round) {
      Ids ids(1 + random() % 12);
      for (int64_t& id : ids) {
        id = static_cast<int64_t>(random() % (tokenizer.size() + 1));
      }
      DecodeStream stream(tokenizer, /*skip_special_tokens=*/round % 2 == 0);
      std::string streamed;
      for (const int64_t id : ids) {
        const std::string piece = stream.add(id);
        std::string storage;
        EXPECT_EQ(valid_utf8(piece, storage), piece);
        streamed += piece;
      }
      EXPECT_EQ(
          streamed + stream.finish(), tokenizer.decode(ids, round % 2 == 0))
          << name << " " << nlohmann::json(ids);
    }
  }
}

namespace {

/// Words and spaces as decoders of several kinds take them.
nlohmann::json tokenizer_with_decoder(const nlohmann::json& decoder) {
  nlohmann::json vocabulary;
  for (const char* const token :
       {"<unk>", "\u2581",  "\u2581\u2581", "\u2581the", "o",      "n",
        "'",     "'s",      "n't",          "s",         "</w>",   "o</w>",
        "'</w>", "n't</w>", "a</w>b</w>",   "##t",       "##.",    ".",
        "do",    "not",     "<0x0A>",       "<0xC3>",    "<0xA9>", "<pad>",
        "|",     "ab",      "'v",           "ve",        "v",      "e"}) {
    vocabulary[token] = vocabulary.size();
  }
  return {
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder", decoder},
      {"model",
       {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "<unk>"}}}};
}

/// The pieces of a stream of random ids, of few that recur, are their text,
/// also where a part of them is given as what is already written.
void check_streams(
    const Tokenizer& tokenizer,
    const std::string& name,
    std::mt19937& random) {
  for (int round = 0; round < 120; ++round) {
    Ids few(2 + random() % 4);
    for (int64_t& id : few) {
      id = static_cast<int64_t>(random() % tokenizer.size());
    }
    if (const auto space = tokenizer.id_of("\u2581")) {
      few.front() = *space;
    }
    Ids ids(1 + random() % 60);
    for (int64_t& id : ids) {
      id = few[random() % few.size()];
    }
    const bool skips = round % 2 == 0;
    const std::string decoded = tokenizer.decode(ids, skips);
    for (const bool has_prompt : {false, true}) {
      const size_t given = has_prompt ? random() % ids.size() : 0;
      const Ids before(ids.begin(), ids.begin() + given);
      std::string streamed = tokenizer.decode(before, skips);
      if (!decoded.starts_with(streamed)) {
        continue; // what is written is not the beginning of the text
      }
      DecodeStream stream(tokenizer, skips, before);
      for (size_t i = given; i < ids.size(); ++i) {
        streamed += stream.add(ids[i]);
      }
      EXPECT_EQ(streamed + stream.finish(), decoded)
          << name << " " << nlohmann::json(ids) << " after " << given;
    }
  }
}

} // namespace

TEST(Tokenizer, StreamsAreTheDecodedTextWithEveryDecoder) {
  std::mt19937 random(5);
  for (const char* const name : kFamilies) {
    check_streams(family(name), name, random);
  }
  for (const auto& file :
       std::filesystem::directory_iterator(fixture("token_models"))) {
    if (file.path().extension() == ".model") {
      check_streams(
          Tokenizer::from_file(file.path()), file.path().filename(), random);
    }
  }
  const auto replace = [](const char* kind, const char* by) {
    return nlohmann::json{
        {"type", "Replace"}, {"pattern", {{kind, "\u2581"}}}, {"content", by}};
  };
  const nlohmann::json fuse{{"type", "Fuse"}};
  const nlohmann::json bytes{{"type", "ByteFallback"}};
  const auto strip = [](int start, int stop) {
    return nlohmann::json{
        {"type", "Strip"}, {"content", " "}, {"start", start}, {"stop", stop}};
  };
  const auto word_piece = [](bool cleans) {
    return nlohmann::json{
        {"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", cleans}};
  };
  const auto sequence = [](const std::vector<nlohmann::json>& decoders) {
    return nlohmann::json{{"type", "Sequence"}, {"decoders", decoders}};
  };
  const nlohmann::json straddling{
      {"type", "Replace"}, {"pattern", {{"String", "oo"}}}, {"content", "b"}};
  for (const nlohmann::json& decoder :
       {nlohmann::json(),
        nlohmann::json{{"type", "ByteLevel"}},
        nlohmann::json{{"type", "BPEDecoder"}, {"suffix", "</w>"}},
        nlohmann::json{
            {"type", "Metaspace"},
            {"replacement", "\u2581"},
            {"prepend_scheme", "always"}},
        nlohmann::json{
            {"type", "Metaspace"},
            {"replacement", "\u2581"},
            {"prepend_scheme", "never"}},
        nlohmann::json{
            {"type", "CTC"},
            {"pad_token", "<pad>"},
            {"word_delimiter_token", "|"},
            {"cleanup", true}},
        word_piece(true),
        word_piece(false),
        sequence({replace("String", " "), bytes, fuse, strip(1, 0)}),
        sequence({replace("String", " "), bytes, fuse, strip(3, 0)}),
        sequence({replace("Regex", " "), fuse, strip(2, 2)}),
        sequence({replace("String", " "), strip(1, 1), fuse}),
        sequence({fuse, replace("String", " "), strip(3, 0)}),
        sequence({bytes, fuse, straddling}),
        sequence({straddling, fuse})}) {
    for (const bool cleans : {false, true}) {
      const TemporaryFolder folder;
      runtime::write_file_atomically(
          folder / "tokenizer.json", tokenizer_with_decoder(decoder).dump());
      runtime::write_file_atomically(
          folder / "tokenizer_config.json",
          nlohmann::json{
              {"tokenizer_class", "PreTrainedTokenizerFast"},
              {"clean_up_tokenization_spaces", cleans}}
              .dump());
      check_streams(
          Tokenizer::from_folder(folder.path()),
          decoder.dump() + (cleans ? ", cleaned" : ""),
          random);
    }
  }
}

// Spaces at the beginning go, and none that follows.
TEST(Tokenizer, StreamsKeepSpacesBetweenTokens) {
  const auto tokenizer =
      Tokenizer::from_file(fixture("token_models/unigram_0.model"));
  const int64_t space = *tokenizer.id_of("\u2581");
  const int64_t word = tokenizer.ids("the").front();
  DecodeStream stream(tokenizer);
  std::string streamed;
  std::vector<std::string> pieces;
  for (const int64_t id : {space, space, word, space, space, space, word}) {
    pieces.push_back(stream.add(id));
  }
  const std::string text = tokenizer.decode({word});
  EXPECT_EQ(pieces[2], text);
  EXPECT_EQ(pieces[3], " "); // as it comes
  for (const std::string& piece : pieces) {
    streamed += piece;
  }
  EXPECT_EQ(
      streamed + stream.finish(),
      tokenizer.decode({space, space, word, space, space, space, word}));
}

// What follows a prompt, whose text is already written.
TEST(Tokenizer, StreamsBeginAfterATextThatIsWritten) {
  const Tokenizer tokenizer = family("llama2");
  const Ids prompt = tokenizer.ids("the \xf0\x9f\x91\x8b");
  ASSERT_EQ(tokenizer.token(prompt.back()), "<0x8B>");
  const int64_t word = *tokenizer.id_of("the");
  DecodeStream stream(tokenizer, /*skip_special_tokens=*/false, prompt);
  EXPECT_EQ(stream.add(*tokenizer.id_of("<0x0A>")), "");
  EXPECT_EQ(stream.add(word), "\n" + tokenizer.token(word));
  DecodeStream broken(tokenizer, /*skip_special_tokens=*/false, prompt);
  EXPECT_EQ(broken.add(*tokenizer.id_of("<0xF0>")), "");
  EXPECT_EQ(broken.finish(), "\xef\xbf\xbd");
}

TEST(Tokenizer, SpecialTokensInTextsMayBeReadAsText) {
  const Tokenizer tokenizer = family("gpt2");
  const auto end = tokenizer.id_of("<|end|>");
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(tokenizer.ids("<|end|>"), Ids{*end});
  const Ids split =
      tokenizer
          .encode(
              "<|end|>",
              {.add_special_tokens = false, .splits_special_tokens = true})
          .ids();
  EXPECT_GT(split.size(), 1U);
  EXPECT_EQ(tokenizer.decode(split), "<|end|>");
}

TEST(Tokenizer, WindowsCoverATextWithOverlaps) {
  TokenSequence text(7);
  for (size_t i = 0; i < text.size(); ++i) {
    text[i].id = static_cast<int64_t>(i);
  }
  const auto windows = make_windows(text, 4, 2);
  ASSERT_EQ(windows.size(), 3U);
  EXPECT_EQ(windows[0].front().id, 0);
  EXPECT_EQ(windows[1].front().id, 2);
  EXPECT_EQ(windows[2].front().id, 4);
  EXPECT_EQ(windows[2].size(), 3U);
  EXPECT_EQ(make_windows({}, 4, 2).size(), 1U);
  expect_error([&] { make_windows(text, 2, 2); }, {"overlap by 2"});
}

} // namespace tessera::text::tokenizer_test
