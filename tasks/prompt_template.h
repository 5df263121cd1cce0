// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PromptTemplate` makes a prompt of a row, which a language model goes on with
// the words that stand for a label, or whose blank it fills with them.

#include "tessera/text/rows/text_rows.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::tasks {

inline constexpr std::string_view kLabelPlace = "[label]";
/// The place of a label in the middle of a text, for models that fill blanks.
inline constexpr std::string_view kBlankPlace = "[MASK]";

/// "{passage} question: {question}? answer: [label]": keys of rows in braces,
/// and at the end the place of the label, or of another thing. Instead of
/// [label] at the end [MASK] anywhere: "{premise}? [MASK], {hypothesis}".
class PromptTemplate {
 public:
  /// @throws Error if `place` is not at the end, or a brace is not closed.
  explicit PromptTemplate(
      std::string_view text,
      std::string_view place = kLabelPlace);

  /// The prompt of a row, up to the place and without separator(); with a
  /// blank, all of it. Numbers and booleans are written as in JSON.
  /// @param more values that a row does not have.
  /// @throws Error naming the row and a key that it lacks, or one with a mark
  ///     of a blank, if the template has one.
  std::string fill(
      const text::TextRow& row,
      const std::map<std::string, std::string>& more = {}) const;

  /// Whether the label has its place at [MASK].
  bool has_blank() const {
    return has_blank_;
  }

  /// The keys of rows, each once, in the order of the text.
  std::vector<std::string> keys() const;

  /// The spaces between the prompt and the place.
  const std::string& separator() const {
    return separator_;
  }

 private:
  /// A key, and the text after it; the first one has no key.
  std::vector<std::pair<std::string, std::string>> parts_;
  std::string separator_;
  bool has_blank_ = false;
};

/// The words of each label.
/// @param given "LABEL=WORDS" each; a label that is not given stands for
///     itself.
/// @throws Error naming data.verbalizers on an unknown label, or on two labels
///     with the same words.
std::vector<std::string> verbalizers_of(
    const std::vector<std::string>& labels,
    const std::vector<std::string>& given);

} // namespace tessera::tasks
