// SPDX-License-Identifier: Apache-2.0
#pragma once
// read_labelled_texts() reads labeled texts from JSON lines, CSV and TSV files;
// encode_labelled_texts() tokenizes them.

#include "tessera/tasks/text_presets.h"
#include "tessera/text/rows/text_rows.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/heads/head.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::tasks {

/// Where texts and labels are in a row, and how rows are read.
struct TextClassificationColumns {
  std::vector<std::string> texts = {"text"}; ///< one, or two for pairs
  std::string label = "label";
  /// Between several labels that are one string.
  std::string label_separator = ",";
  /// A published set of texts, whose own keys count instead of these; may be
  /// null.
  const TextPreset* preset = nullptr;
  /// Of a PromptTemplate, whose prompt is then the text; empty: there is none.
  std::string prompt;
  text::TextRowOptions rows;
};

/// What the labels of files are.
enum class LabelKind { kStrings, kIntegers, kBooleans, kNumbers };

/// One text, or pair of texts, and its labels.
struct LabelledText {
  std::string text;
  std::string second; ///< the second text of a pair
  /// The names of its classes: one, or with kClasses any number; none for
  /// kNumbers.
  std::vector<std::string> labels;
  double number = 0; ///< for kNumbers: what is predicted
  /// What it belongs to, such as a question with several texts; of its file.
  std::string group;
  std::string candidate; ///< the answer that it stands for
  std::vector<std::string> answers; ///< the right ones of the group
  size_t file = 0; ///< in LabelledTexts::files
  int64_t line = 0; ///< in the file
};

/// The texts of files.
struct LabelledTexts {
  std::vector<std::filesystem::path> files;
  LabelKind kind = LabelKind::kStrings;
  bool are_pairs = false;
  bool have_several_labels = false; ///< or none: any number per text
  /// Of a preset, or of labels that are a value for each; empty: the labels.
  std::vector<std::string> classes;
  std::vector<LabelledText> texts;

  /// The files, for messages.
  std::string name() const;
  /// "FILE:LINE" of a text.
  std::string place(const LabelledText& text) const;
};

/// A finite number, or a string that is one, as in a converted CSV file.
std::optional<double> finite_number(const nlohmann::json& value);

/// @param key of the value. @param place of its row, for messages.
/// @throws tessera::Error unless the value is a string.
std::string checked_string(
    const nlohmann::json& value,
    const std::string& key,
    const std::string& place);

/// The text, or the pair of texts, of a JSON object; `place` names it in
/// messages, and `options` what names the columns.
/// @throws Error on a column that is missing, or not a string.
LabelledText text_in(
    const nlohmann::json& object,
    const std::vector<std::string>& columns,
    const std::string& place,
    const char* options);

/// Checks what text_in() has returned.
/// @param skips the option that skips such rows, for the message.
/// @throws Error on a text that is empty, or of spaces.
void check_is_not_blank(
    const LabelledText& text,
    const std::vector<std::string>& columns,
    const std::string& place,
    const char* skips);

/// Reads labeled texts. Labels are strings, integers or booleans, which name
/// classes as JSON writes them ("1", "true").
/// @param labels kClass; kClasses: a label is an array of them, or a string
///     that is divided at the separator. Arrays of 0 and 1, in all rows of one
///     length, are a value for each of the classes "0", "1", ... where one of
///     them has a value twice or a float, so that it can be nothing else.
///     kNumbers: labels are numbers to predict, or strings with numbers.
/// @throws Error naming file, line and problem; on texts and labels of classes
///     that are blank, other than those of presets; also if labels of JSON
///     lines are of different kinds, if a label is given twice, if arrays of 0
///     and 1 may be read in both ways, or if a file has no examples.
LabelledTexts read_labelled_texts(
    const std::vector<std::filesystem::path>& files,
    const TextClassificationColumns& columns = {},
    zoo::HeadLabels labels = zoo::HeadLabels::kClass);

/// The labels of texts for a problem_type, transformers' key; kClass for "".
zoo::HeadLabels text_labels_of(const std::string& problem_type);

/// LabelledTexts::classes, or the distinct labels, sorted; integers by value.
std::vector<std::string> labels_of(const LabelledTexts& texts);

/// Logs what is probably a mistake: empty texts of a preset, one class.
void warn_about_labels(const LabelledTexts& texts, bool is_heldout = false);

/// One tokenized example.
struct LabelledEncoding {
  text::Encoding encoding;
  /// Indices into the list of labels: one, or with kClasses any number.
  std::vector<int64_t> labels;
  double number = 0; ///< LabelledText::number
  size_t text = 0; ///< in LabelledTexts::texts
  size_t file = 0; ///< LabelledText::file
  std::string group; ///< as of LabelledText
  std::string candidate;
  std::vector<std::string> answers;
};

/// The texts with their labels, not tokenized.
/// @throws Error as encode_labelled_texts().
std::vector<LabelledEncoding> labelled_examples(
    const LabelledTexts& texts,
    const std::vector<std::string>& labels,
    text::BadRows bad_rows = text::BadRows::kError);

/// Tokenizes all texts, each truncated to `max_length` tokens.
/// @param labels ignored if the labels are numbers.
/// @param bad_rows what becomes of texts with labels that are not in `labels`.
/// @throws Error naming file and line if a text has a label that is not in
///     `labels`.
std::vector<LabelledEncoding> encode_labelled_texts(
    const LabelledTexts& texts,
    const std::vector<std::string>& labels,
    const text::Tokenizer& tokenizer,
    int64_t max_length,
    text::BadRows bad_rows = text::BadRows::kError);

/// The fraction of examples with the most frequent label: the accuracy of
/// always guessing it.
double majority_share(const std::vector<LabelledEncoding>& examples);

} // namespace tessera::tasks
