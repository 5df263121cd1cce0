// SPDX-License-Identifier: Apache-2.0
// Metrics against scikit-learn, scipy, sacrebleu, rouge_score, NLTK and the
// official SQuAD script, whose values tests/fixture_makers/text_metrics.py
// wrote.
#include "support/expect_error.h"
#include "tessera/text/metrics/answers.h"
#include "tessera/text/metrics/bleu.h"
#include "tessera/text/metrics/class_counts.h"
#include "tessera/text/metrics/correlation.h"
#include "tessera/text/metrics/porter_stemmer.h"
#include "tessera/text/metrics/rouge.h"
#include "tessera/text/metrics/words.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::text::text_metrics_test {

namespace {

/// Both sides compute in float64, with sums in other orders.
constexpr double kTolerance = 1e-12;

const nlohmann::json& expected() {
  static const nlohmann::json values = read_json(fixture("text_metrics.json"));
  return values;
}

std::vector<int64_t> classes_in(const nlohmann::json& value) {
  return value.is_array() ? value.get<std::vector<int64_t>>()
                          : std::vector{value.get<int64_t>()};
}

ClassCounts counts_of(const nlohmann::json& one, size_t begin, size_t step) {
  ClassCounts counts(one.at("classes"));
  for (size_t i = begin; i < one.at("wanted").size(); i += step) {
    counts.add(
        classes_in(one.at("wanted")[i]), classes_in(one.at("predicted")[i]));
  }
  return counts;
}

} // namespace

TEST(TextMetrics, ClassesAreThoseOfScikitLearn) {
  for (const auto& one : expected().at("classes")) {
    const ClassCounts counts = counts_of(one, 0, 1);
    EXPECT_NEAR(counts.accuracy(), one.at("accuracy"), kTolerance);
    EXPECT_NEAR(counts.f1_macro(false), one.at("f1_macro"), kTolerance);
    EXPECT_NEAR(counts.f1_micro(), one.at("f1_micro"), kTolerance);
    EXPECT_NEAR(counts.matthews(), one.at("matthews"), kTolerance);
    if (!one.at("f1").is_null()) {
      EXPECT_NEAR(counts.f1(1), one.at("f1"), kTolerance);
    }
  }
  for (const auto& one : expected().at("several")) {
    const ClassCounts counts = counts_of(one, 0, 1);
    EXPECT_NEAR(counts.accuracy(), one.at("accuracy"), kTolerance);
    EXPECT_NEAR(counts.f1_macro(true), one.at("f1_macro"), kTolerance);
    EXPECT_NEAR(counts.f1_micro(), one.at("f1_micro"), kTolerance);
  }
}

TEST(TextMetrics, CountsOfRanksAdd) {
  const auto& one = expected().at("classes")[1];
  std::vector<double> sum = counts_of(one, 0, 2).values();
  const std::vector<double> more = counts_of(one, 1, 2).values();
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] += more[i];
  }
  ClassCounts counts(one.at("classes"));
  counts.set_values(sum);
  EXPECT_NEAR(counts.matthews(), one.at("matthews"), kTolerance);
  EXPECT_NEAR(counts.f1_macro(false), one.at("f1_macro"), kTolerance);
  expect_error([&] { counts.add({3}, {0}); }, {"class 3 is outside 0 .. 2"});
}

TEST(TextMetrics, CorrelationsAreThoseOfScipy) {
  for (const auto& one : expected().at("numbers")) {
    const std::vector<double> a = one.at("a");
    const std::vector<double> b = one.at("b");
    EXPECT_NEAR(pearson(a, b), one.at("pearson"), kTolerance);
    EXPECT_NEAR(spearman(a, b), one.at("spearman"), kTolerance);
  }
  EXPECT_TRUE(std::isnan(pearson({1, 2}, {3, 3})));
}

TEST(TextMetrics, AnswersAreThoseOfSquad) {
  for (const auto& one : expected().at("texts")) {
    const std::string answer = one.at("prediction");
    EXPECT_EQ(
        answer_exact_match(answer, one.at("references")),
        one.at("exact_match"));
    EXPECT_NEAR(
        answer_f1(answer, one.at("references")),
        one.at("answer_f1"),
        kTolerance)
        << answer;
  }
  // Punctuation joins what it divides; articles are whole words.
  EXPECT_EQ(
      normalize_answer(" The  an-other\ta U.S.A. \xc3\xa9"
                       "a"),
      "another usa \xc3\xa9"
      "a");
}

TEST(TextMetrics, BleuIsThatOfSacrebleu) {
  const auto& texts = expected().at("texts");
  for (const auto& one : texts) {
    const std::string text = one.at("prediction");
    EXPECT_EQ(tokenize_13a(text), one.at("tokens_13a").get<std::string>());
  }
  for (const auto& one : expected().at("bleu")) {
    std::vector<double> sum;
    for (const size_t row : one.at("rows")) { // as if each was on its own rank
      Bleu bleu(one.at("lowercase"));
      bleu.add(texts[row].at("prediction"), texts[row].at("references"));
      const auto more = bleu.values();
      sum.resize(more.size());
      for (size_t i = 0; i < more.size(); ++i) {
        sum[i] += more[i];
      }
    }
    Bleu bleu;
    bleu.set_values(sum);
    const BleuScore score = bleu.score();
    EXPECT_NEAR(score.score, one.at("score"), 1e-10) << one;
    EXPECT_NEAR(score.brevity_penalty, one.at("bp"), kTolerance);
    EXPECT_EQ(score.words, one.at("sys_len"));
    EXPECT_EQ(score.reference_words, one.at("ref_len"));
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(score.precisions[i], one.at("precisions")[i], 1e-10);
    }
  }
}

TEST(TextMetrics, RougeIsThatOfRougeScore) {
  const auto expect_same = [](const RougeScore& found,
                              const nlohmann::json& wanted) {
    EXPECT_NEAR(found.precision, wanted[0], kTolerance);
    EXPECT_NEAR(found.recall, wanted[1], kTolerance);
    EXPECT_NEAR(found.f, wanted[2], kTolerance);
  };
  for (const auto& [compared, key] :
       {std::pair{RougeWords::kWhole, "rouge"},
        std::pair{RougeWords::kStems, "rouge_stems"}}) {
    for (const auto& one : expected().at("texts")) {
      SCOPED_TRACE(one.at("prediction"));
      const RougeScores found = rouge(
          one.at("prediction").get<std::string>(),
          one.at("references")[0].get<std::string>(),
          compared);
      const auto& wanted = one.at(key);
      expect_same(found.rouge1, wanted.at("rouge1"));
      expect_same(found.rouge2, wanted.at("rouge2"));
      expect_same(found.rouge_l, wanted.at("rougeL"));
      expect_same(found.rouge_lsum, wanted.at("rougeLsum"));
    }
  }
}

TEST(TextMetrics, StemsAreThoseOfNltk) {
  const auto& stems = expected().at("stems");
  ASSERT_GT(stems.size(), 700U);
  for (const auto& [word, stem] : stems.items()) {
    EXPECT_EQ(porter_stem(word), stem.get<std::string>()) << word;
  }
}

} // namespace tessera::text::text_metrics_test
