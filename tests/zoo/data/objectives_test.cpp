// SPDX-License-Identifier: Apache-2.0
// What models are pretrained on: every token is kept or predicted once and in
// order, at the stated rates; spans and blanks equal those of an independent
// implementation (tests/fixture_makers/objectives.py).
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/random/mixed_bits.h"
#include "tessera/zoo/data/blank_objective.h"
#include "tessera/zoo/data/objective.h"
#include "tessera/zoo/data/span_objective.h"
#include "tessera/zoo/heads/token_heads.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <array>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace tessera::zoo::objectives_test {

namespace {

using Ids = std::vector<int64_t>;

constexpr int64_t kVocab = 400;
constexpr int64_t kEnd = 3; ///< of documents

/// Of those that are not observed with this probability or less, if the shares
/// are right: 0.999 quantiles of chi-square with 1 and 2 degrees of freedom.
constexpr std::array<double, 3> kChiSquare{0, 10.83, 13.82};

double chi_square(
    const std::vector<double>& counts,
    const std::vector<double>& shares) {
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  double total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = sum * shares[i];
    total += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return total;
}

Ids ids_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view(-1);
  const auto* begin = flat.const_data_ptr<int64_t>();
  return {begin, begin + flat.numel()};
}

class ObjectivesTest : public ::testing::Test {
 protected:
  /// Documents of 3 to 60 random tokens from 20 on, ended by kEnd.
  std::shared_ptr<const DocumentStream> stream(int64_t tokens) {
    const auto path = folder_ / "tokens.bin";
    std::vector<uint16_t> all;
    uint64_t state = 0;
    const auto next = [&](uint64_t count) {
      return runtime::split_mix(state++) % count;
    };
    while (static_cast<int64_t>(all.size()) < tokens) {
      for (uint64_t left = 3 + next(58); left > 0; --left) {
        all.push_back(static_cast<uint16_t>(20 + next(kVocab - 20)));
      }
      all.push_back(kEnd);
    }
    std::ofstream(path, std::ios::binary)
        .write(
            reinterpret_cast<const char*>(all.data()),
            static_cast<std::streamsize>(2 * all.size()));
    auto data = std::make_shared<const TokenDocuments>(
        path, TokenFileOptions{.end_token = kEnd});
    Ids documents(static_cast<size_t>(data->size()));
    std::iota(documents.begin(), documents.end(), 0);
    return std::make_shared<const DocumentStream>(data, documents, 7);
  }

  PackedSamples texts(const Objective& objective, int64_t tokens) {
    return {{stream(tokens)}, {}, {objective.text_tokens(), 0, 0}};
  }

  /// A tokenizer of words of their own, and the words by id.
  std::filesystem::path write_tokenizer(
      const std::vector<std::string>& tokens) const {
    nlohmann::json json = {
        {"version", "1.0"},
        {"added_tokens", nlohmann::json::array()},
        {"normalizer", nullptr},
        {"pre_tokenizer", {{"type", "Whitespace"}}},
        {"post_processor", nullptr},
        {"decoder", nullptr},
        {"model",
         {{"type", "WordLevel"}, {"unk_token", tokens[0]}, {"vocab", {}}}}};
    for (size_t i = 0; i < tokens.size(); ++i) {
      json["model"]["vocab"][tokens[i]] = i;
      if (tokens[i].front() == '[' || tokens[i].front() == '<') {
        json["added_tokens"].push_back(
            {{"id", i},
             {"content", tokens[i]},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}});
      }
    }
    const auto path = folder_ / "tokenizer.json";
    std::ofstream(path) << json.dump();
    return path;
  }

  const TemporaryFolder folder_;
};

ObjectiveOptions masked_options() {
  ObjectiveOptions options;
  options.special.start = 1;
  options.special.end = 2;
  options.special.document_end = kEnd;
  options.special.mask = 4;
  return options;
}

ObjectiveOptions blank_options() {
  ObjectiveOptions options = masked_options();
  options.special.sentence_mask = 5;
  options.special.document_mask = 6;
  options.special.piece_start = 7;
  options.special.piece_end = 8;
  options.blanks.sentence_ends = {20, 21, 22, 23, 24, 25, 26, 27, 28, 29,
                                  30, 31, 32, 33, 34, 35, 36, 37, 38, 39};
  return options;
}

const HeadInputs kInputs{.vocab = kVocab, .token_types = 2};

std::unique_ptr<const Objective> made(
    ObjectiveKind kind,
    const ObjectiveOptions& options,
    const Head& head,
    int64_t length) {
  return make_objective(kind, options, head, {length, 1, 11, {}});
}

/// Numbers of a fixture; taking more than there are fails.
Uniforms listed(std::vector<double> numbers) {
  auto place = std::make_shared<size_t>(0);
  return
      [numbers = std::move(numbers), place] { return numbers.at((*place)++); };
}

nlohmann::json fixture() {
  std::ifstream file(
      tests::source_dir() + "/tests/zoo/fixtures/objectives.json");
  return nlohmann::json::parse(file);
}

Ids text_of(const PackedSamples& texts, size_t example, int64_t epoch) {
  Ids text(static_cast<size_t>(texts.length()));
  Ids starts;
  texts.read(example, epoch, text, starts);
  return text;
}

std::vector<size_t> all_of(const PackedSamples& texts) {
  std::vector<size_t> all(texts.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

} // namespace

TEST_F(ObjectivesTest, MaskTokensAtTheirRates) {
  const MaskedTokenHead head(kInputs);
  const auto objective =
      made(ObjectiveKind::kMasked, masked_options(), head, 64);
  const PackedSamples data = texts(*objective, 60000);
  std::vector<double> chosen(2);
  std::vector<double> kinds(3); // masked, random, kept
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    const ModelInput batch = objective->make(data, all_of(data), epoch);
    for (size_t row = 0; row < data.size(); ++row) {
      const auto i = static_cast<int64_t>(row);
      const Ids ids = ids_of(batch.input_ids[i]);
      const Ids labels = ids_of(batch.labels[i]);
      Ids text = text_of(data, row, epoch);
      text.insert(text.begin(), 1);
      text.push_back(2);
      ASSERT_EQ(text.size(), ids.size());
      for (size_t at = 0; at < ids.size(); ++at) {
        if (labels[at] == -100) {
          EXPECT_EQ(ids[at], text[at]);
          chosen[1] += text[at] >= 20 ? 1 : 0;
          continue;
        }
        EXPECT_EQ(labels[at], text[at]);
        EXPECT_GE(text[at], 20) << "special tokens are not predicted";
        ++chosen[0];
        ++kinds[ids[at] == 4 ? 0 : ids[at] == text[at] ? 2 : 1];
      }
    }
  }
  EXPECT_GT(chosen[0] + chosen[1], 200000);
  EXPECT_LT(chi_square(chosen, {0.15, 0.85}), kChiSquare[1]);
  // A random token is the mask or the token itself once in kVocab times.
  const double same = 0.1 / kVocab;
  EXPECT_LT(
      chi_square(kinds, {0.8 + same, 0.1 - 2 * same, 0.1 + same}),
      kChiSquare[2]);
}

TEST_F(ObjectivesTest, MaskWholeWords) {
  std::vector<std::string> tokens{"[UNK]", "[CLS]", "[SEP]", "[END]", "[MASK]"};
  const std::vector<std::string> chinese{"北", "京", "大", "学", "生"};
  for (int id = 5; id < kVocab; ++id) {
    tokens.push_back(
        id >= 20 && id < 25 ? chinese[static_cast<size_t>(id) - 20]
        : id % 3 == 0       ? "w" + std::to_string(id)
                            : "##c" + std::to_string(id));
  }
  std::ofstream(folder_ / "words.txt") << "北京\n北京大学\n学生\n大学\n";
  ObjectiveOptions options = masked_options();
  options.tokenizer = write_tokenizer(tokens);
  options.mask.whole_word = true;
  options.mask.words = folder_ / "words.txt";
  const WordTable table(
      text::Tokenizer::from_file(options.tokenizer), options.mask.words);
  // w30 ##c31 | w33 | 北京大学 | 生 | 学生 | 北 | ##c31 (after a character) |
  // 京 | a document: ##c31 ##c32 | [SEP] | 大 w30
  const Ids text{
      30, 31, 33, 20, 21, 22, 23, 24, 23, 24, 20, 31, 21, 31, 32, 2, 22, 30};
  Ids firsts(text.size());
  table.number(text, {13}, firsts);
  EXPECT_EQ(
      firsts,
      (Ids{0, 0, 2, 3, 3, 3, 3, 7, 8, 8, 10, 11, 12, 13, 13, 15, 16, 17}));
  // A word does not go on in the next document.
  const Ids cut{20, 21};
  Ids cut_firsts(2);
  table.number(cut, {1}, cut_firsts);
  EXPECT_EQ(cut_firsts, (Ids{0, 1}));

  const MaskedTokenHead head(kInputs);
  const auto objective = made(ObjectiveKind::kMasked, options, head, 64);
  const PackedSamples data = texts(*objective, 30000);
  const ModelInput batch = objective->make(data, all_of(data), 0);
  std::vector<double> words(2);
  for (size_t row = 0; row < data.size(); ++row) {
    const Ids labels = ids_of(batch.labels[static_cast<int64_t>(row)]);
    Ids tokens_of_row(62);
    Ids starts;
    data.read(row, 0, tokens_of_row, starts);
    Ids places(62);
    table.number(tokens_of_row, starts, places);
    for (size_t at = 0; at < places.size(); ++at) {
      const auto first = static_cast<size_t>(places[at]);
      EXPECT_EQ(labels[at + 1] == -100, labels[first + 1] == -100)
          << "a word is split";
      if (first == at && tokens_of_row[at] != kEnd) {
        ++words[labels[at + 1] == -100 ? 1 : 0];
      }
    }
  }
  EXPECT_LT(chi_square(words, {0.15, 0.85}), kChiSquare[1]);
}

TEST_F(ObjectivesTest, PairSegments) {
  const MaskedTokenHead head(kInputs, /*follows=*/true);
  for (const PairKind pairs :
       {PairKind::kNextSentence, PairKind::kSentenceOrder}) {
    ObjectiveOptions options = masked_options();
    options.mask.pairs = pairs;
    const auto objective = made(ObjectiveKind::kMasked, options, head, 32);
    const PackedSamples data = texts(*objective, 40000);
    const ModelInput batch = objective->make(data, all_of(data), 0);
    const Ids full = ids_of(
        torch::where(batch.labels.ne(-100), batch.labels, batch.input_ids));
    const Ids types = ids_of(batch.token_type_ids);
    const Ids other = ids_of(batch.others.at("next_sentence_label"));
    std::vector<double> kinds(2);
    for (size_t row = 0; row < data.size(); ++row) {
      const Ids text = text_of(data, row, 0);
      Ids first;
      Ids second;
      for (size_t at = 1; at < 31; ++at) {
        const size_t place = row * 32 + at;
        if (full[place] == 2) {
          EXPECT_EQ(types[place], 0);
          EXPECT_EQ(types[place + 1], 1);
          continue;
        }
        (types[place] == 0 ? first : second).push_back(full[place]);
      }
      EXPECT_EQ(first.size() + second.size(), 29);
      EXPECT_FALSE(first.empty() || second.empty());
      EXPECT_EQ(full[row * 32 + 31], 2);
      ++kinds[static_cast<size_t>(other[row])];
      const bool is_exchanged =
          other[row] == 1 && pairs == PairKind::kSentenceOrder;
      Ids found = is_exchanged ? second : first;
      const Ids& rest = is_exchanged ? first : second;
      found.insert(found.end(), rest.begin(), rest.end());
      EXPECT_EQ(
          found == text, other[row] == 0 || pairs == PairKind::kSentenceOrder);
    }
    EXPECT_LT(chi_square(kinds, {0.5, 0.5}), kChiSquare[1]);
  }
}

TEST_F(ObjectivesTest, TakeOutSpansAsT5Does) {
  const nlohmann::json cases = fixture().at("spans");
  ASSERT_EQ(cases.size(), 6U);
  for (const auto& one : cases) {
    const SpanLengths lengths = SpanLengths::of(
        one.at("inputs"),
        {.density = one.at("density"), .mean_length = one.at("mean_length")});
    const Ids text = one.at("text");
    ASSERT_EQ(lengths.text, static_cast<int64_t>(text.size()));
    Ids sentinels(static_cast<size_t>(lengths.spans));
    for (size_t i = 0; i < sentinels.size(); ++i) {
      sentinels[i] =
          one.at("first_sentinel").get<int64_t>() - static_cast<int64_t>(i);
    }
    const std::vector<double> draws = one.at("draws");
    const CorruptedText found =
        corrupted_text(text, lengths, sentinels, one.at("end"), listed(draws));
    EXPECT_EQ(found.inputs, one.at("input_ids").get<Ids>());
    EXPECT_EQ(found.targets, one.at("labels").get<Ids>());
  }
  // T5's own numbers: 568 tokens in inputs of 512 and targets of 114.
  const SpanLengths usual = SpanLengths::of(512, {});
  EXPECT_EQ(usual.text, 568);
  EXPECT_EQ(usual.targets, 114);
}

TEST_F(ObjectivesTest, KeepOrPredictEachTokenOfSpans) {
  ObjectiveOptions options;
  options.special.end = 1;
  options.special.first_sentinel = 19; // text begins at 20
  const SecondTextHead head(kInputs);
  const auto objective =
      made(ObjectiveKind::kSpanCorruption, options, head, 64);
  const PackedSamples data = texts(*objective, 20000);
  const ModelInput batch = objective->make(data, all_of(data), 1);
  std::set<int64_t> first_lengths;
  for (size_t row = 0; row < data.size(); ++row) {
    const Ids inputs = ids_of(batch.input_ids[static_cast<int64_t>(row)]);
    const Ids targets = ids_of(batch.labels[static_cast<int64_t>(row)]);
    ASSERT_EQ(inputs.back(), 1);
    ASSERT_EQ(targets.back(), 1);
    const auto is_sentinel = [](int64_t token) {
      return token > 8 && token < 20;
    };
    Ids found;
    auto taken = targets.begin();
    int64_t sentinel = 19;
    for (const int64_t token : inputs) {
      if (!is_sentinel(token)) {
        found.push_back(token);
        continue;
      }
      EXPECT_EQ(token, sentinel) << "descending ids, in both texts";
      ASSERT_EQ(*taken, sentinel--);
      for (++taken; *taken != 1 && !is_sentinel(*taken); ++taken) {
        found.push_back(*taken);
      }
    }
    found.pop_back();
    EXPECT_EQ(found, text_of(data, row, 1));
    first_lengths.insert(
        std::find(inputs.begin(), inputs.end(), 19) - inputs.begin());
  }
  EXPECT_GT(first_lengths.size(), 20U) << "spans are at random places";
}

TEST_F(ObjectivesTest, MakeBlanksAsGlmDoes) {
  const nlohmann::json all = fixture();
  const auto& tokens = all.at("tokens");
  BlankVocabulary vocabulary{
      .start = tokens.at("start").get<int64_t>(),
      .document_end = tokens.at("document_end").get<int64_t>(),
      .mask = tokens.at("mask"),
      .sentence_mask = tokens.at("sentence_mask"),
      .document_mask = tokens.at("document_mask"),
      .piece_start = tokens.at("piece_start"),
      .piece_end = tokens.at("piece_end"),
      .ends_sentence = std::vector<bool>(100)};
  for (const size_t token : tokens.at("sentence_ends")) {
    vocabulary.ends_sentence[token] = true;
  }
  const std::map<std::string, BlankKind> kinds{
      {"short", BlankKind::kShort},
      {"sentences", BlankKind::kSentences},
      {"document", BlankKind::kDocument}};
  ASSERT_EQ(all.at("blanks").size(), 7U);
  for (const auto& one : all.at("blanks")) {
    const BlankKind kind = kinds.at(one.at("kind"));
    const Ids text = one.at("text");
    const std::vector<double> numbers = one.at("draws");
    const Uniforms draws = listed(numbers);
    const BlankOptions options{
        .ratio = one.at("ratio"), .mean_length = one.at("mean_length")};
    const auto blanks = drawn_blanks(
        kind, text, one.at("starts").get<Ids>(), vocabulary, options, draws);
    const BlankExample found =
        blank_example(kind, text, blanks, vocabulary, draws);
    EXPECT_EQ(found.ids, one.at("ids").get<Ids>());
    EXPECT_EQ(found.labels, one.at("labels").get<Ids>());
    EXPECT_EQ(found.positions, one.at("positions").get<Ids>());
    EXPECT_EQ(found.block_positions, one.at("block_positions").get<Ids>());
    EXPECT_EQ(found.sep, one.at("sep").get<int64_t>());
  }
}

TEST_F(ObjectivesTest, RebuildTextsFromPositionsOfBlanks) {
  ObjectiveOptions options = blank_options();
  const BlankHead head(kInputs);
  const auto objective = made(ObjectiveKind::kBlankFilling, options, head, 96);
  const PackedSamples data = texts(*objective, 60000);
  const ModelInput batch = objective->make(data, all_of(data), 0);
  std::vector<double> kinds(3);
  double in_short = 0;
  double of_short = 0;
  int64_t shuffled = 0;
  for (size_t row = 0; row < data.size(); ++row) {
    const auto i = static_cast<int64_t>(row);
    const Ids ids = ids_of(batch.input_ids[i]);
    const Ids labels = ids_of(batch.labels[i]);
    const Ids positions = ids_of(batch.position_ids[i][0]);
    const Ids within = ids_of(batch.position_ids[i][1]);
    const auto sep =
        static_cast<size_t>(batch.others.at("sep")[i].item<int64_t>());
    std::map<int64_t, Ids> filled; // by position
    int64_t kind = 0;
    for (size_t at = 0; at < sep; ++at) {
      EXPECT_EQ(positions[at], static_cast<int64_t>(at));
      EXPECT_EQ(within[at], 0);
      EXPECT_EQ(labels[at], -100);
      if (ids[at] >= 4 && ids[at] <= 6) {
        kind = ids[at];
        filled[positions[at]];
      }
    }
    ASSERT_NE(kind, 0);
    ++kinds[static_cast<size_t>(kind) - 4];
    int64_t last = -1;
    for (size_t at = sep; at < ids.size(); ++at) {
      if (labels[at] == -100) {
        EXPECT_EQ(ids[at], 8) << "padding";
        continue;
      }
      ASSERT_TRUE(filled.contains(positions[at]));
      Ids& blank = filled[positions[at]];
      EXPECT_EQ(within[at], static_cast<int64_t>(blank.size()) + 1);
      EXPECT_EQ(ids[at], blank.empty() ? 7 : blank.back());
      if (blank.empty()) {
        shuffled += positions[at] < last ? 1 : 0;
        last = positions[at];
      }
      blank.push_back(labels[at]);
    }
    Ids found;
    for (size_t at = 1; at < sep; ++at) {
      if (!filled.contains(static_cast<int64_t>(at))) {
        found.push_back(ids[at]);
        continue;
      }
      Ids blank = filled[static_cast<int64_t>(at)];
      ASSERT_FALSE(blank.empty());
      if (kind == 6) {
        EXPECT_EQ(at + 1, sep) << "the end of the text";
      } else {
        EXPECT_EQ(blank.back(), 8);
        blank.pop_back();
        EXPECT_EQ(std::count(blank.begin(), blank.end(), kEnd), 0);
      }
      in_short += kind == 4 ? static_cast<double>(blank.size()) : 0;
      found.insert(found.end(), blank.begin(), blank.end());
    }
    EXPECT_EQ(ids[0], 1);
    const Ids text = text_of(data, row, 0);
    EXPECT_EQ(found, text);
    of_short += kind == 4 ? static_cast<double>(text.size()) -
                                static_cast<double>(
                                    std::count(text.begin(), text.end(), kEnd))
                          : 0;
  }
  EXPECT_LT(chi_square(kinds, {0.5, 0.3, 0.2}), kChiSquare[2]);
  // Lengths are drawn until they reach the ratio: up to one blank more.
  EXPECT_GT(in_short / of_short, 0.14);
  EXPECT_LT(in_short / of_short, 0.15 + 3.2 / 70);
  EXPECT_GT(shuffled, 100);
}

TEST_F(ObjectivesTest, CutTextsForAPrefix) {
  ObjectiveOptions options;
  options.special.end = 1;
  const SecondTextHead head(kInputs);
  const auto objective = made(ObjectiveKind::kPrefix, options, head, 24);
  const PackedSamples data = texts(*objective, 3000);
  const ModelInput batch = objective->make(data, all_of(data), 0);
  std::set<size_t> cuts;
  for (size_t row = 0; row < data.size(); ++row) {
    const auto i = static_cast<int64_t>(row);
    const auto cut =
        static_cast<size_t>(batch.attention_mask[i].sum().item<int64_t>());
    Ids found = ids_of(batch.input_ids[i]);
    found.resize(cut);
    for (const int64_t label : ids_of(batch.labels[i])) {
      if (label != -100) {
        found.push_back(label);
      }
    }
    EXPECT_EQ(found, text_of(data, row, 0));
    cuts.insert(cut);
  }
  EXPECT_GT(cuts.size(), 15U);
}

TEST_F(ObjectivesTest, DependOnSeedEpochAndExampleAlone) {
  const MaskedTokenHead pairs(kInputs, true);
  const SecondTextHead second(kInputs);
  const BlankHead blank(kInputs);
  ObjectiveOptions options = blank_options();
  options.special.first_sentinel = 19;
  const std::vector<std::pair<ObjectiveKind, const Head*>> all{
      {ObjectiveKind::kMasked, &pairs},
      {ObjectiveKind::kSpanCorruption, &second},
      {ObjectiveKind::kPrefix, &second},
      {ObjectiveKind::kBlankFilling, &blank}};
  for (const auto& [kind, head] : all) {
    SCOPED_TRACE(name_of(kind));
    const auto make = [&](uint64_t seed) {
      std::shared_ptr<const Objective> objective =
          make_objective(kind, options, *head, {64, 1, seed, {}});
      PackedSamples data = texts(*objective, 4000);
      return ObjectiveBatches(std::move(objective), std::move(data));
    };
    const ObjectiveBatches data = make(5);
    const ModelInput batch = data.make({3, 9, 3, 0}, 1, true);
    EXPECT_TRUE(batch.loss_only);
    EXPECT_TRUE(batch.input_ids[0].equal(batch.input_ids[2]));
    std::vector<ModelInput> rows(4);
    std::vector<std::thread> threads;
    const std::array<size_t, 4> examples{3, 9, 3, 0};
    for (size_t i = 0; i < rows.size(); ++i) {
      threads.emplace_back(
          [&, i] { rows[i] = make(5).make({examples[i]}, 1, true); });
      threads.back().join(); // its own file
    }
    const ObjectiveBatches shared = make(5);
    threads.clear();
    std::vector<ModelInput> at_once(4);
    for (size_t i = 0; i < rows.size(); ++i) {
      threads.emplace_back(
          [&, i] { at_once[i] = shared.make({examples[i]}, 1, true); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const auto& [name, tensor] : batch.named()) {
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto row = static_cast<int64_t>(i);
        EXPECT_TRUE(tensor[row].equal(rows[i].named().at(name)[0])) << name;
        EXPECT_TRUE(tensor[row].equal(at_once[i].named().at(name)[0])) << name;
      }
    }
    const at::Tensor& labels = batch.labels;
    EXPECT_FALSE(labels.equal(data.make({3, 9, 3, 0}, 2, true).labels));
    EXPECT_FALSE(labels.equal(make(6).make({3, 9, 3, 0}, 1, true).labels));
    EXPECT_TRUE(
        data.make({4}, kScoredEpoch, true)
            .labels.equal(make(5).make({4}, kScoredEpoch, true).labels));
    // An example that is repeated has other draws, of another epoch's text.
    const auto report = data.report({.loss = 1, .examples = 2, .items = 3});
    EXPECT_EQ(
        report.text.find("perplexity") == std::string::npos,
        kind == ObjectiveKind::kMasked)
        << "the loss of pairs is not one of tokens";
  }
}

TEST_F(ObjectivesTest, NameWhatIsMissing) {
  const MaskedTokenHead masked(kInputs);
  const SecondTextHead second(kInputs);
  const BlankHead blank(kInputs);
  using Kind = ObjectiveKind;
  ObjectiveOptions options = masked_options();
  options.special.mask.reset();
  expect_error(
      [&] { made(Kind::kMasked, options, masked, 64); },
      {"data.special_tokens.mask", "data.tokenizer"});
  options = masked_options();
  options.special.end = kVocab;
  expect_error(
      [&] { made(Kind::kMasked, options, masked, 64); },
      {"data.special_tokens.end is 400", "400 tokens"});
  options = masked_options();
  options.mask.whole_word = true;
  expect_error(
      [&] { made(Kind::kMasked, options, masked, 64); },
      {"data.mask.whole_word", "data.tokenizer"});
  options.tokenizer = write_tokenizer({"<unk>", "a", "b"});
  expect_error(
      [&] { made(Kind::kMasked, options, masked, 64); },
      {"no token of the tokenizer has a mark of words"});
  options = masked_options();
  options.mask.words = "words.txt";
  expect_error(
      [&] { made(Kind::kMasked, options, masked, 64); },
      {"data.mask.words", "data.mask.whole_word is false"});
  options = {};
  options.special.end = 1;
  options.tokenizer =
      write_tokenizer({"<unk>", "<extra_id_1>", "<extra_id_0>", "</s>"});
  EXPECT_NO_THROW(made(Kind::kSpanCorruption, options, second, 16));
  expect_error(
      [&] { made(Kind::kSpanCorruption, options, second, 64); },
      {"makes 3 spans", "only 2 sentinels"});
  options = blank_options();
  options.blanks.sentence_ends = {};
  expect_error(
      [&] { made(Kind::kBlankFilling, options, blank, 64); },
      {"data.blanks.sentences is 0.3", "data.blanks.sentence_ends"});
  options = blank_options();
  options.special.piece_start.reset();
  expect_error(
      [&] { made(Kind::kBlankFilling, options, blank, 64); },
      {"data.special_tokens.piece_start"});
  expect_error(
      [&] { made(Kind::kBlankFilling, blank_options(), blank, 6); },
      {"model.max_length is 6", "set at least"});
  options.kind = Kind::kMasked;
  expect_error(
      [&] { objective_of(options, second, "T5Model"); },
      {"data.objective is \"masked\"", "T5Model", "\"span_corruption\""});
  EXPECT_EQ(objective_of({}, blank, ""), Kind::kBlankFilling);
}

} // namespace tessera::zoo::objectives_test
