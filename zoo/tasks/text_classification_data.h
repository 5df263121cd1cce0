// SPDX-License-Identifier: Apache-2.0
#pragma once
// read_labelled_texts() reads labeled texts from JSON lines files;
// encode_labelled_texts() tokenizes them.

#include "tessera/zoo/tokenizer/tokenizer.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::zoo {

struct TextClassificationColumns {
  std::vector<std::string> texts = {"text"}; ///< one, or two for pairs
  std::string label = "label";
};

/// What the labels of a file are.
enum class LabelKind { kStrings, kIntegers, kBooleans, kNumbers };

/// One text, or pair of texts, and its label.
struct LabelledText {
  std::string text;
  std::string second; ///< the second text of a pair
  std::string label; ///< the name of the class; empty for kNumbers
  double number = 0; ///< for kNumbers: what is predicted
  int64_t line = 0; ///< in the file
};

/// The texts of a file.
struct LabelledTexts {
  std::filesystem::path path;
  LabelKind kind = LabelKind::kStrings;
  bool are_pairs = false;
  std::vector<LabelledText> texts;
};

/// The text, or the pair of texts, of a JSON object; `place` names it in
/// messages, and `options` what names the columns.
/// @throws Error on a column that is missing or not a string.
LabelledText text_in(
    const nlohmann::json& object,
    const std::vector<std::string>& columns,
    const std::string& place,
    const char* options);

/// Reads a JSON lines file; empty lines are skipped. Labels are strings,
/// integers or booleans, which name classes as JSON writes them ("1", "true").
/// @param numbers labels are numbers to predict, or strings with numbers.
/// @throws Error naming file, line and problem; also if labels are of
///     different kinds, or if there are no examples.
LabelledTexts read_labelled_texts(
    const std::filesystem::path& path,
    const TextClassificationColumns& columns = {},
    bool numbers = false);

/// The distinct labels, sorted; integers by value.
std::vector<std::string> labels_of(const LabelledTexts& texts);

/// Logs what is probably a mistake: empty texts, an empty label, one class.
void warn_about_labels(const LabelledTexts& texts, bool is_heldout = false);

/// One tokenized example.
struct LabelledEncoding {
  Encoding encoding;
  int64_t label = 0; ///< index into the list of labels
  double number = 0; ///< LabelledText::number
};

/// Tokenizes all texts, each truncated to `max_length` tokens.
/// @param labels ignored if the labels are numbers.
/// @throws Error naming file and line if a text has a label that is not in
///     `labels`.
std::vector<LabelledEncoding> encode_labelled_texts(
    const LabelledTexts& texts,
    const std::vector<std::string>& labels,
    const Tokenizer& tokenizer,
    int64_t max_length);

/// Number of examples that were truncated.
int64_t truncated_count(const std::vector<LabelledEncoding>& examples);

/// The fraction of examples with the most frequent label: the accuracy of
/// always guessing it.
double majority_share(const std::vector<LabelledEncoding>& examples);

} // namespace tessera::zoo
