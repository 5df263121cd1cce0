// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PreferenceEncoder` makes tokens of rows that have two answers to a prompt, a
// better and a worse one.

#include "tessera/tasks/supervised_texts.h"
#include "tessera/text/rows/text_rows.h"

#include <string>
#include <vector>

namespace tessera::tasks {

/// Keys of rows, in the section `data`.
struct PreferenceKeys {
  std::string prompt = "prompt";
  std::string chosen = "chosen";
  std::string rejected = "rejected";
};

/// The same prompt twice, each time with an answer, whose tokens are in
/// SupervisedText::answers.
struct PreferencePair {
  SupervisedText chosen;
  SupervisedText rejected;
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
  /// @throws tessera::Error naming the row and what is missing or wrong.
  PreferencePair encode(const text::TextRow& row) const;

  /// Encodes all rows of files, and logs how many lose their end.
  /// @throws tessera::Error as encode() and for_each_row(), and if a file has
  ///   no rows that can be used.
  std::vector<PreferencePair> read(const std::vector<std::string>& files) const;

 private:
  SupervisedText continued(const text::TextRow& row, const std::string& key)
      const;
  PreferencePair conversations(const text::TextRow& row) const;
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
