// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PreferenceEncoder` makes tokens of rows that have two answers to a prompt, a
// better and a worse one, or one that is good or bad.

#include "tessera/tasks/supervised_texts.h"
#include "tessera/text/rows/text_rows.h"

#include <optional>
#include <string>
#include <vector>

namespace tessera::tasks {

/// Keys of rows, in the section `data`.
struct PreferenceKeys {
  std::string prompt = "prompt";
  std::string chosen = "chosen";
  std::string rejected = "rejected";
  std::string completion = "completion"; ///< of an answer without another
  std::string label = "label"; ///< whether that answer is good
  /// How much better an answer is, a number that rows may have; empty: none is
  /// read.
  std::string margin;
  /// Texts without a prompt are compared as a whole.
  bool takes_whole_texts = false;
};

/// The same prompt twice, each time with an answer, whose tokens are in
/// SupervisedText::answers.
struct PreferencePair {
  SupervisedText chosen;
  SupervisedText rejected;
  std::optional<double> margin = {};
};

/// A prompt with an answer that is good or bad.
struct JudgedText {
  SupervisedText text;
  bool is_desirable = false;
};

class PreferenceEncoder {
 public:
  /// @param texts of texts of a decoder; its SupervisedOptions::completion and
  ///   ::messages are names that rows do not have. Must outlive this object.
  /// @param options that `texts` was made with.
  PreferenceEncoder(
      const SupervisedEncoder& texts,
      SupervisedOptions options,
      PreferenceKeys keys);

  /// Answers are texts after a prompt that is one, or lists of messages, which
  /// the tokenizer's chat template renders after those of the prompt. Without a
  /// prompt both are whole conversations, whose common beginning is the prompt.
  /// Of what follows it, the assistant's messages are the answer.
  /// PreferencePair::margin is that of the row.
  /// @throws tessera::Error naming the row and what is missing or wrong.
  PreferencePair encode(const text::TextRow& row) const;

  /// Encodes all rows of files, and logs how many lose their end.
  /// @throws tessera::Error as encode() and for_each_row(), if a file has no
  ///   rows that can be used, and if only some rows have a margin.
  std::vector<PreferencePair> read(const std::vector<std::string>& files) const;

  /// A row is a prompt, an answer and whether that is good: true or false, 1 or
  /// 0. The answer is a text after a prompt that is one, or a list of messages,
  /// or what the assistant says after those of the prompt. A row of encode() is
  /// two of them.
  /// @throws tessera::Error naming the row and what is missing or wrong.
  std::vector<JudgedText> encode_judged(const text::TextRow& row) const;

  /// The same of all rows of files; see read().
  std::vector<JudgedText> read_judged(
      const std::vector<std::string>& files) const;

 private:
  /// encode() without the margin.
  PreferencePair answers(const text::TextRow& row) const;
  SupervisedText continued(const text::TextRow& row, const std::string& key)
      const;
  PreferencePair conversations(const text::TextRow& row) const;
  /// The answer at `key` of a row with a prompt.
  SupervisedText answer(const text::TextRow& row, const std::string& key) const;
  SupervisedText conversation(
      const text::TextRow& row,
      const nlohmann::ordered_json& messages,
      size_t shared,
      const std::string& key) const;

  const SupervisedEncoder& texts_;
  SupervisedOptions options_;
  PreferenceKeys keys_;
};

} // namespace tessera::tasks
