// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/metrics/answers.h"

#include "tessera/text/metrics/words.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <cstdint>
#include <map>

namespace tessera::text {

namespace {

bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') ||
         (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

double answer_f1_with(const Words& answer, const Words& reference) {
  if (answer.empty() || reference.empty()) {
    return answer.empty() && reference.empty() ? 1 : 0;
  }
  std::map<std::string, int64_t> left;
  for (const std::string& word : reference) {
    ++left[word];
  }
  double same = 0;
  for (const std::string& word : answer) {
    same += left[word]-- > 0 ? 1 : 0;
  }
  return 2 * same / static_cast<double>(answer.size() + reference.size());
}

} // namespace

std::string normalize_answer(std::string_view answer) {
  std::string plain;
  const std::string lower = lower_case(answer);
  // Runs of letters that are articles become a space.
  std::string run;
  const auto end_run = [&] {
    plain += run == "a" || run == "an" || run == "the" ? " " : run;
    run.clear();
  };
  for_each_code_point(lower, [&](char32_t c, size_t at) {
    if (is_ascii_punctuation(c)) {
      return;
    }
    if (!is_python_word_character(c)) {
      end_run();
    }
    (is_python_word_character(c) ? run : plain) +=
        lower.substr(at, utf8_length(lower, at));
  });
  end_run();
  std::string joined;
  for (const std::string& word : split_words(plain)) {
    joined += (joined.empty() ? "" : " ") + word;
  }
  return joined;
}

double answer_exact_match(
    std::string_view answer,
    const std::vector<std::string>& references) {
  const std::string normalized = normalize_answer(answer);
  return std::any_of(
             references.begin(),
             references.end(),
             [&](const std::string& one) {
               return normalize_answer(one) == normalized;
             })
             ? 1
             : 0;
}

double answer_f1(
    std::string_view answer,
    const std::vector<std::string>& references) {
  const Words words = split_words(normalize_answer(answer));
  double best = 0;
  for (const std::string& one : references) {
    best = std::max(
        best, answer_f1_with(words, split_words(normalize_answer(one))));
  }
  return best;
}

} // namespace tessera::text
