// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/metrics/bleu.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/metrics/words.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace tessera::text {

namespace {

void replace_each(
    std::string& text,
    std::string_view from,
    std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

bool is_13a_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_stop(char c) {
  return c == '.' || c == ',';
}

/// Characters that are words of their own wherever they are.
bool is_13a_symbol(char c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') ||
         (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
         (c >= ':' && c <= '@') || c == '/';
}

/// Replaces pairs of characters from left to right, each character once.
template <typename Matches, typename Replace>
std::string replace_pairs(
    const std::string& text,
    const Matches& matches,
    const Replace& replace) {
  std::string result;
  size_t i = 0;
  while (i < text.size()) {
    if (i + 1 < text.size() && matches(text[i], text[i + 1])) {
      replace(result, text[i], text[i + 1]);
      i += 2;
    } else {
      result += text[i++];
    }
  }
  return result;
}

Words words_of(std::string text, bool lowercase) {
  if (lowercase) {
    text = lower_case(text);
  }
  return split_words(tokenize_13a(text));
}

} // namespace

std::string tokenize_13a(std::string_view text) {
  std::string line(text);
  replace_each(line, "<skipped>", "");
  replace_each(line, "-\n", "");
  replace_each(line, "\n", " ");
  replace_each(line, "&quot;", "\"");
  replace_each(line, "&amp;", "&");
  replace_each(line, "&lt;", "<");
  replace_each(line, "&gt;", ">");
  std::string spaced = " ";
  for (const char c : line) {
    spaced += is_13a_symbol(c) ? std::string{' ', c, ' '} : std::string(1, c);
  }
  spaced += ' ';
  // Continuation bytes of UTF-8 are no digits, as their characters are none.
  spaced = replace_pairs(
      spaced,
      [](char a, char b) { return !is_13a_digit(a) && is_stop(b); },
      [](std::string& to, char a, char b) {
        to += {a, ' ', b, ' '};
      });
  spaced = replace_pairs(
      spaced,
      [](char a, char b) { return is_stop(a) && !is_13a_digit(b); },
      [](std::string& to, char a, char b) {
        to += {' ', a, ' ', b};
      });
  spaced = replace_pairs(
      spaced,
      [](char a, char b) { return is_13a_digit(a) && b == '-'; },
      [](std::string& to, char a, char b) {
        to += {a, ' ', b, ' '};
      });
  std::string joined;
  for (const std::string& word : split_words(spaced)) {
    joined += (joined.empty() ? "" : " ") + word;
  }
  return joined;
}

void Bleu::add(
    const std::string& prediction,
    const std::vector<std::string>& references) {
  TESSERA_CHECK(!references.empty(), "BLEU needs a reference");
  // As sacrebleu, which strips the end before a final "-\n" may join lines.
  const auto stripped = [](const std::string& text) {
    const size_t end = text.find_last_not_of(" \t\r\n\f\v");
    return end == std::string::npos ? "" : text.substr(0, end + 1);
  };
  const Words words = words_of(stripped(prediction), lowercase_);
  std::vector<Words> wanted;
  for (const std::string& reference : references) {
    wanted.push_back(words_of(stripped(reference), lowercase_));
  }
  const auto closest = std::min_element(
      wanted.begin(), wanted.end(), [&](const Words& a, const Words& b) {
        const auto distance = [&](const Words& one) {
          return std::abs(
              static_cast<int64_t>(one.size()) -
              static_cast<int64_t>(words.size()));
        };
        return distance(a) != distance(b) ? distance(a) < distance(b)
                                          : a.size() < b.size();
      });
  words_ += static_cast<double>(words.size());
  reference_words_ += static_cast<double>(closest->size());
  for (size_t length = 1; length <= right_.size(); ++length) {
    NgramCounts most;
    for (const Words& one : wanted) {
      for (const auto& [ngram, count] : count_ngrams(one, length)) {
        most[ngram] = std::max(most[ngram], count);
      }
    }
    for (const auto& [ngram, count] : count_ngrams(words, length)) {
      const auto found = most.find(ngram);
      all_[length - 1] += static_cast<double>(count);
      right_[length - 1] +=
          found == most.end()
              ? 0
              : static_cast<double>(std::min(count, found->second));
    }
  }
}

std::vector<double> Bleu::values() const {
  std::vector<double> values{words_, reference_words_};
  values.insert(values.end(), right_.begin(), right_.end());
  values.insert(values.end(), all_.begin(), all_.end());
  return values;
}

void Bleu::set_values(const std::vector<double>& values) {
  TESSERA_CHECK(
      values.size() == 2 + right_.size() + all_.size(),
      "{} counts for BLEU; expected {}",
      values.size(),
      2 + right_.size() + all_.size());
  words_ = values[0];
  reference_words_ = values[1];
  std::copy_n(values.begin() + 2, right_.size(), right_.begin());
  std::copy_n(values.begin() + 6, all_.size(), all_.begin());
}

BleuScore Bleu::score() const {
  BleuScore result;
  result.words = static_cast<int64_t>(words_);
  result.reference_words = static_cast<int64_t>(reference_words_);
  result.brevity_penalty = words_ >= reference_words_ ? 1
                           : words_ > 0
                               ? std::exp(1 - reference_words_ / words_)
                               : 0;
  if (right_[0] == 0) { // then there are no longer matches
    return result;
  }
  double smoothing = 1;
  double logarithms = 0;
  for (size_t i = 0; i < right_.size(); ++i) {
    if (all_[i] == 0) {
      return result; // no sequences that long
    }
    if (right_[i] == 0) {
      smoothing *= 2;
    }
    result.precisions[i] =
        100 * (right_[i] == 0 ? 1 / smoothing : right_[i]) / all_[i];
    logarithms += std::log(result.precisions[i]);
  }
  result.score = result.brevity_penalty * std::exp(logarithms / 4);
  return result;
}

} // namespace tessera::text
