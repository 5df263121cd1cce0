// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PromptBatches` makes batches of prompts with the words of a label at their
// end or in their blank, for language models.

#include "tessera/tasks/text_batches.h"

namespace tessera::tasks {

/// How a language model gets a prompt and the label's words.
enum class PromptKind {
  kDecoder, ///< one after the other
  kEncoderDecoder, ///< the prompt as input, the words as target
  kBlank, ///< the words fill a blank of the prompt, see BlankedText
};

/// A prompt with the words of one label.
struct PromptedLabel {
  std::vector<int64_t> input;
  /// The words: of decoders the last tokens of `input`; of encoder-decoders
  /// the target; of a blank what the last tokens of `input`, as many, predict:
  /// a start token and the words but the last.
  std::vector<int64_t> words;
  int64_t blank = 0; ///< the place of the blank in `input`
};

struct PromptedText {
  std::vector<PromptedLabel> labels; ///< by class
  size_t label = 0; ///< the right one
  bool is_truncated = false;
};

/// A prompt, and what is between it and the words of a label.
struct PromptText {
  std::string prompt; ///< PromptTemplate::fill()
  std::string separator; ///< PromptTemplate::separator()
};

/// The prompt with each label's words. Prompts that are too long lose their
/// beginning, of one with a blank what is before it and then the end. Words of
/// a decoder go after the separator, in a blank after a space if it has one
/// before it; those of an encoder-decoder are a text of their own.
/// @param max_length of `input`.
/// @throws tessera::Error if the words alone do not fit, or if a prompt has not
///     one blank.
PromptedText prompted_text(
    const PromptText& prompt,
    const std::vector<std::string>& verbalizers,
    const text::Tokenizer& tokenizer,
    PromptKind kind,
    int64_t max_length);

/// A batch of prompts with the words of a label each.
zoo::ModelInput prompted_input(
    const std::vector<const PromptedLabel*>& labels,
    PromptKind kind,
    const TextInputs& inputs);

/// The log-likelihood of the labels of each row: float32 [rows].
/// @param logits [rows, length, vocabulary]
/// @param labels [rows, length], -100 for none.
at::Tensor label_likelihoods(
    const at::Tensor& logits,
    const at::Tensor& labels,
    PromptKind kind);

/// A text with the words of one of its labels.
struct PromptExample {
  size_t text;
  size_t label;
};

class PromptBatches : public RowBatches<PromptExample> {
 public:
  /// @param scores_labels each text is an example for each label, which is
  ///     scored; false: for the right one, which is trained on.
  /// @param score of the same texts by class: metrics, files and labels; it
  ///     makes no batches.
  PromptBatches(
      std::vector<PromptedText> texts,
      bool scores_labels,
      PromptKind kind,
      TextBatches score,
      const TextInputs& inputs);

  std::string text() const override;
  at::Tensor outputs_of(
      const zoo::ModelInput& input,
      const zoo::ModelOutput& output) const override;
  TaskScore report(const zoo::Score& score) const override;

 private:
  zoo::ModelInput rows(const std::vector<size_t>& numbers) const override;
  size_t classes() const {
    return texts_.front().labels.size();
  }

  std::vector<PromptedText> texts_;
  PromptKind kind_;
  TextBatches score_;
  TextInputs inputs_;
};

} // namespace tessera::tasks
