// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/metrics/porter_stemmer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>

namespace tessera::text {

namespace {

/// Words up to this length are their own stems.
constexpr size_t kShortWord = 2;

/// What has to hold of the rest of a word for its suffix to be replaced.
enum class StemRule {
  kAlways,
  kMeasureAbove0,
  kMeasureAbove1,
  kMeasureAbove1AfterST, ///< and the rest ends with s or t
};

struct Suffix {
  std::string_view from;
  std::string_view to;
  StemRule rule = StemRule::kAlways;
};

constexpr std::array<Suffix, 4> kPlurals = {
    {{"sses", "ss"}, {"ies", "i"}, {"ss", "ss"}, {"s", ""}}};

constexpr std::array<Suffix, 3> kRestored = {
    {{"at", "ate"}, {"bl", "ble"}, {"iz", "ize"}}};

constexpr std::array<Suffix, 21> kDouble = {{
    {"ational", "ate", StemRule::kMeasureAbove0},
    {"tional", "tion", StemRule::kMeasureAbove0},
    {"enci", "ence", StemRule::kMeasureAbove0},
    {"anci", "ance", StemRule::kMeasureAbove0},
    {"izer", "ize", StemRule::kMeasureAbove0},
    {"bli", "ble", StemRule::kMeasureAbove0},
    {"alli", "al", StemRule::kMeasureAbove0},
    {"entli", "ent", StemRule::kMeasureAbove0},
    {"eli", "e", StemRule::kMeasureAbove0},
    {"ousli", "ous", StemRule::kMeasureAbove0},
    {"ization", "ize", StemRule::kMeasureAbove0},
    {"ation", "ate", StemRule::kMeasureAbove0},
    {"ator", "ate", StemRule::kMeasureAbove0},
    {"alism", "al", StemRule::kMeasureAbove0},
    {"iveness", "ive", StemRule::kMeasureAbove0},
    {"fulness", "ful", StemRule::kMeasureAbove0},
    {"ousness", "ous", StemRule::kMeasureAbove0},
    {"aliti", "al", StemRule::kMeasureAbove0},
    {"iviti", "ive", StemRule::kMeasureAbove0},
    {"biliti", "ble", StemRule::kMeasureAbove0},
    {"fulli", "ful", StemRule::kMeasureAbove0},
}};

constexpr std::array<Suffix, 7> kSingle = {{
    {"icate", "ic", StemRule::kMeasureAbove0},
    {"ative", "", StemRule::kMeasureAbove0},
    {"alize", "al", StemRule::kMeasureAbove0},
    {"iciti", "ic", StemRule::kMeasureAbove0},
    {"ical", "ic", StemRule::kMeasureAbove0},
    {"ful", "", StemRule::kMeasureAbove0},
    {"ness", "", StemRule::kMeasureAbove0},
}};

constexpr std::array<Suffix, 19> kLast = {{
    {"al", "", StemRule::kMeasureAbove1},
    {"ance", "", StemRule::kMeasureAbove1},
    {"ence", "", StemRule::kMeasureAbove1},
    {"er", "", StemRule::kMeasureAbove1},
    {"ic", "", StemRule::kMeasureAbove1},
    {"able", "", StemRule::kMeasureAbove1},
    {"ible", "", StemRule::kMeasureAbove1},
    {"ant", "", StemRule::kMeasureAbove1},
    {"ement", "", StemRule::kMeasureAbove1},
    {"ment", "", StemRule::kMeasureAbove1},
    {"ent", "", StemRule::kMeasureAbove1},
    {"ion", "", StemRule::kMeasureAbove1AfterST},
    {"ou", "", StemRule::kMeasureAbove1},
    {"ism", "", StemRule::kMeasureAbove1},
    {"ate", "", StemRule::kMeasureAbove1},
    {"iti", "", StemRule::kMeasureAbove1},
    {"ous", "", StemRule::kMeasureAbove1},
    {"ive", "", StemRule::kMeasureAbove1},
    {"ize", "", StemRule::kMeasureAbove1},
}};

/// NLTK's words whose stem the rules would not find.
const std::unordered_map<std::string_view, std::string_view>& irregular() {
  static const std::unordered_map<std::string_view, std::string_view> stems{
      {"sky", "sky"},
      {"skies", "sky"},
      {"dying", "die"},
      {"lying", "lie"},
      {"tying", "tie"},
      {"news", "news"},
      {"inning", "inning"},
      {"innings", "inning"},
      {"outing", "outing"},
      {"outings", "outing"},
      {"canning", "canning"},
      {"cannings", "canning"},
      {"howe", "howe"},
      {"proceed", "proceed"},
      {"exceed", "exceed"},
      {"succeed", "succeed"}};
  return stems;
}

/// Whether each character is a vowel: a, e, i, o, u, and y after a consonant.
std::string vowels_in(std::string_view word) {
  std::string kinds;
  for (const char c : word) {
    const bool is_vowel =
        c == 'y' ? kinds.ends_with('c')
                 : std::string_view("aeiou").find(c) != std::string_view::npos;
    kinds += is_vowel ? 'v' : 'c';
  }
  return kinds;
}

/// Porter's m: how often a consonant follows a vowel.
int64_t measure(std::string_view word) {
  const std::string kinds = vowels_in(word);
  int64_t count = 0;
  for (size_t i = 1; i < kinds.size(); ++i) {
    count += kinds[i - 1] == 'v' && kinds[i] == 'c' ? 1 : 0;
  }
  return count;
}

bool ends_with_consonant(std::string_view word) {
  return vowels_in(word).ends_with('c');
}

/// Porter's *d.
bool ends_with_double_consonant(std::string_view word) {
  return word.size() >= 2 && word.back() == word[word.size() - 2] &&
         ends_with_consonant(word);
}

/// Porter's *o, and NLTK's words of a vowel and a consonant.
bool ends_with_short_syllable(std::string_view word) {
  const std::string kinds = vowels_in(word);
  return kinds == "vc" || (kinds.ends_with("cvc") && word.back() != 'w' &&
                           word.back() != 'x' && word.back() != 'y');
}

bool holds(StemRule rule, std::string_view rest) {
  switch (rule) {
    case StemRule::kAlways:
      return true;
    case StemRule::kMeasureAbove0:
      return measure(rest) > 0;
    case StemRule::kMeasureAbove1:
      return measure(rest) > 1;
    case StemRule::kMeasureAbove1AfterST:
      return measure(rest) > 1 && (rest.ends_with('s') || rest.ends_with('t'));
  }
  return false;
}

void replace_end(
    std::string& word,
    std::string_view from,
    std::string_view to) {
  word.resize(word.size() - from.size());
  word += to;
}

/// Only the first suffix that the word has is considered.
/// @return whether it has one.
bool replace_first(std::string& word, std::span<const Suffix> suffixes) {
  const auto found =
      std::find_if(suffixes.begin(), suffixes.end(), [&](const Suffix& suffix) {
        return word.ends_with(suffix.from);
      });
  if (found == suffixes.end()) {
    return false;
  }
  const std::string_view rest =
      std::string_view(word).substr(0, word.size() - found->from.size());
  if (holds(found->rule, rest)) {
    replace_end(word, found->from, found->to);
  }
  return true;
}

/// Step 1a.
void remove_plural(std::string& word) {
  if (word.size() == 4 && word.ends_with("ies")) {
    word.pop_back(); // NLTK: lies, lie
    return;
  }
  replace_first(word, kPlurals);
}

/// Step 1b.
void remove_past_or_gerund(std::string& word) {
  if (word.ends_with("ied")) { // NLTK's
    replace_end(word, "ied", word.size() == 4 ? "ie" : "i");
    return;
  }
  if (word.ends_with("eed")) {
    if (measure(std::string_view(word).substr(0, word.size() - 3)) > 0) {
      word.pop_back();
    }
    return;
  }
  const size_t length = word.ends_with("ed")    ? 2
                        : word.ends_with("ing") ? 3
                                                : 0;
  const size_t rest = word.size() - length;
  if (length == 0 ||
      vowels_in(word.substr(0, rest)).find('v') == std::string::npos) {
    return;
  }
  word.resize(rest);
  if (replace_first(word, kRestored)) {
    return;
  }
  if (ends_with_double_consonant(word)) {
    const char last = word.back();
    if (last != 'l' && last != 's' && last != 'z') {
      word.pop_back();
    }
  } else if (measure(word) == 1 && ends_with_short_syllable(word)) {
    word += 'e';
  }
}

/// Step 1c, as NLTK has it.
void turn_y(std::string& word) {
  if (word.size() > 2 && word.ends_with('y') &&
      ends_with_consonant(std::string_view(word).substr(0, word.size() - 1))) {
    word.back() = 'i';
  }
}

/// Step 2.
void shorten_double_suffix(std::string& word) {
  if (word.ends_with("alli") &&
      measure(std::string_view(word).substr(0, word.size() - 4)) > 0) {
    replace_end(word, "alli", "al"); // NLTK goes on with the result
  }
  if (!replace_first(word, kDouble) && word.ends_with("logi") &&
      measure(std::string_view(word).substr(0, word.size() - 3)) > 0) {
    word.pop_back();
  }
}

/// Step 5.
void tidy_up(std::string& word) {
  if (word.ends_with('e')) {
    const std::string rest = word.substr(0, word.size() - 1);
    if (measure(rest) > 1 ||
        (measure(rest) == 1 && !ends_with_short_syllable(rest))) {
      word = rest;
    }
  }
  if (word.ends_with("ll") &&
      measure(std::string_view(word).substr(0, word.size() - 1)) > 1) {
    word.pop_back();
  }
}

} // namespace

std::string porter_stem(std::string word) {
  if (const auto found = irregular().find(word); found != irregular().end()) {
    return std::string(found->second);
  }
  if (word.size() <= kShortWord) {
    return word;
  }
  remove_plural(word);
  remove_past_or_gerund(word);
  turn_y(word);
  shorten_double_suffix(word);
  replace_first(word, kSingle);
  replace_first(word, kLast);
  tidy_up(word);
  return word;
}

} // namespace tessera::text
