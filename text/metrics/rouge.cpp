// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/metrics/rouge.h"

#include "tessera/text/metrics/porter_stemmer.h"
#include "tessera/text/metrics/words.h"

#include <algorithm>
#include <map>
#include <set>

namespace tessera::text {

namespace {

/// Shorter words have no stem of their own.
constexpr size_t kShortestStemmed = 4;

/// Runs of letters a to z and digits, in lower case.
Words rouge_words(std::string_view text, RougeWords compared) {
  Words words;
  std::string word;
  const std::string lower = lower_case(text);
  for (size_t i = 0; i <= lower.size(); ++i) {
    const char c = i < lower.size() ? lower[i] : ' ';
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      word += c;
    } else if (!word.empty()) {
      const bool is_stemmed =
          compared == RougeWords::kStems && word.size() >= kShortestStemmed;
      words.push_back(
          is_stemmed ? porter_stem(std::move(word)) : std::move(word));
      word.clear();
    }
  }
  return words;
}

RougeScore score_of(double same, double predicted, double wanted) {
  RougeScore score;
  score.precision = predicted > 0 ? same / predicted : 0;
  score.recall = wanted > 0 ? same / wanted : 0;
  const double sum = score.precision + score.recall;
  score.f = sum > 0 ? 2 * score.precision * score.recall / sum : 0;
  return score;
}

RougeScore ngram_score(
    const Words& predicted,
    const Words& wanted,
    size_t length) {
  const NgramCounts found = count_ngrams(predicted, length);
  int64_t same = 0;
  for (const auto& [ngram, count] : count_ngrams(wanted, length)) {
    const auto one = found.find(ngram);
    same += one == found.end() ? 0 : std::min(count, one->second);
  }
  const auto number = [&](const Words& words) {
    return words.size() < length
               ? 0.0
               : static_cast<double>(words.size() - length + 1);
  };
  return score_of(static_cast<double>(same), number(predicted), number(wanted));
}

/// The places in `a` of a longest common subsequence: the one that the package
/// finds.
std::vector<size_t> common_places(const Words& a, const Words& b) {
  std::vector<std::vector<int>> lengths(
      a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      lengths[i][j] = a[i - 1] == b[j - 1]
                          ? lengths[i - 1][j - 1] + 1
                          : std::max(lengths[i - 1][j], lengths[i][j - 1]);
    }
  }
  std::vector<size_t> indices;
  for (size_t i = a.size(), j = b.size(); i > 0 && j > 0;) {
    if (a[i - 1] == b[j - 1]) {
      indices.push_back(i - 1);
      --i;
      --j;
    } else if (lengths[i][j - 1] > lengths[i - 1][j]) {
      --j;
    } else {
      --i;
    }
  }
  return indices;
}

std::vector<Words> sentences_of(std::string_view text, RougeWords compared) {
  std::vector<Words> sentences;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    sentences.push_back(rouge_words(text.substr(begin, end - begin), compared));
    begin = end + 1;
  }
  return sentences;
}

/// Each word counts at most as often as it is in both texts.
RougeScore summary_score(
    const std::vector<Words>& predicted,
    const std::vector<Words>& wanted) {
  std::map<std::string, int64_t> left_predicted;
  std::map<std::string, int64_t> left_wanted;
  double predicted_words = 0;
  double wanted_words = 0;
  for (const Words& sentence : predicted) {
    predicted_words += static_cast<double>(sentence.size());
    for (const std::string& word : sentence) {
      ++left_predicted[word];
    }
  }
  for (const Words& sentence : wanted) {
    wanted_words += static_cast<double>(sentence.size());
    for (const std::string& word : sentence) {
      ++left_wanted[word];
    }
  }
  double same = 0;
  for (const Words& sentence : wanted) {
    std::set<size_t> indices;
    for (const Words& other : predicted) {
      const auto more = common_places(sentence, other);
      indices.insert(more.begin(), more.end());
    }
    for (const size_t index : indices) {
      auto& a = left_predicted[sentence[index]];
      auto& b = left_wanted[sentence[index]];
      if (a > 0 && b > 0) {
        same += 1;
        --a;
        --b;
      }
    }
  }
  return score_of(same, predicted_words, wanted_words);
}

} // namespace

RougeScores rouge(
    std::string_view prediction,
    std::string_view reference,
    RougeWords compared) {
  const Words predicted = rouge_words(prediction, compared);
  const Words wanted = rouge_words(reference, compared);
  return {
      .rouge1 = ngram_score(predicted, wanted, 1),
      .rouge2 = ngram_score(predicted, wanted, 2),
      .rouge_l = score_of(
          static_cast<double>(common_places(wanted, predicted).size()),
          static_cast<double>(predicted.size()),
          static_cast<double>(wanted.size())),
      .rouge_lsum = summary_score(
          sentences_of(prediction, compared),
          sentences_of(reference, compared))};
}

} // namespace tessera::text
