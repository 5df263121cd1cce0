// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/generated_metrics.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/text/metrics/answers.h"
#include "tessera/text/metrics/bleu.h"

#include <algorithm>

namespace tessera::tasks {

namespace {

using Pairs = std::vector<GeneratedPair>;

template <typename Value>
double mean_over(const Pairs& pairs, const Value& value) {
  double sum = 0;
  for (const GeneratedPair& pair : pairs) {
    sum += value(pair);
  }
  return pairs.empty() ? 0 : sum / static_cast<double>(pairs.size());
}

double bleu_of(const Pairs& pairs, text::RougeWords /*compared*/) {
  text::Bleu bleu;
  for (const GeneratedPair& pair : pairs) {
    bleu.add(pair.text, {pair.reference});
  }
  return bleu.score().score;
}

template <text::RougeScore text::RougeScores::*kWhich>
double rouge_of(const Pairs& pairs, text::RougeWords compared) {
  return mean_over(pairs, [&](const GeneratedPair& pair) {
    return (text::rouge(pair.text, pair.reference, compared).*kWhich).f;
  });
}

double exact_match_of(const Pairs& pairs, text::RougeWords /*compared*/) {
  return mean_over(pairs, [](const GeneratedPair& pair) {
    return text::answer_exact_match(pair.text, {pair.reference});
  });
}

double word_f1_of(const Pairs& pairs, text::RougeWords /*compared*/) {
  return mean_over(pairs, [](const GeneratedPair& pair) {
    return text::answer_f1(pair.text, {pair.reference});
  });
}

} // namespace

const std::vector<GeneratedMetric>& generated_metrics() {
  static const std::vector<GeneratedMetric> metrics{
      {"bleu", "BLEU", bleu_of, /*is_share=*/false},
      {"rouge1", "ROUGE-1", rouge_of<&text::RougeScores::rouge1>},
      {"rouge2", "ROUGE-2", rouge_of<&text::RougeScores::rouge2>},
      {"rouge_l", "ROUGE-L", rouge_of<&text::RougeScores::rouge_l>},
      {"rouge_lsum", "ROUGE-Lsum", rouge_of<&text::RougeScores::rouge_lsum>},
      {"exact_match", "exact match", exact_match_of},
      {"f1", "F1 of words", word_f1_of},
  };
  return metrics;
}

std::vector<GeneratedMetric> generated_metrics_for(
    const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const GeneratedMetric& metric : generated_metrics()) {
    known.emplace_back(metric.name);
  }
  std::vector<GeneratedMetric> found;
  for (const std::string& name : names) {
    const std::string nearest = runtime::nearest_name(name, known);
    const auto found_name = std::find(known.begin(), known.end(), name);
    TESSERA_CHECK(
        found_name != known.end(),
        "data.metric is \"{}\"; generated texts have '{}'{}",
        name,
        runtime::join_names(known),
        nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
    found.push_back(
        generated_metrics()[static_cast<size_t>(found_name - known.begin())]);
  }
  return found;
}

} // namespace tessera::tasks
