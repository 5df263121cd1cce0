// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/prompt_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"

#include <ATen/ops/tensor.h>
#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace tessera::zoo {

namespace {

/// Rows of tokens, padded on the right to a multiple.
at::Tensor padded_rows(
    const std::vector<std::vector<int64_t>>& rows,
    int64_t padding,
    int64_t multiple_of) {
  size_t longest = 1;
  for (const auto& row : rows) {
    longest = std::max(longest, row.size());
  }
  const auto multiple = static_cast<size_t>(multiple_of);
  longest = (longest + multiple - 1) / multiple * multiple;
  const at::Tensor all = torch::full(
      {static_cast<int64_t>(rows.size()), static_cast<int64_t>(longest)},
      padding,
      at::kLong);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy(
        rows[i].begin(),
        rows[i].end(),
        all.mutable_data_ptr<int64_t>() + i * longest);
  }
  return all;
}

/// Tokenized together, as the words would be written: their tokens are those
/// that reach beyond the prompt.
PromptedLabel continued(
    const std::string& prompt,
    const std::string& words,
    const Tokenizer& tokenizer,
    size_t max_length,
    bool& is_truncated) {
  const std::string separator = prompt.empty() ? "" : " ";
  Encoding encoding =
      tokenizer.encode(prompt + separator + words, {.with_offsets = true});
  TokenSequence& tokens = encoding.tokens;
  while (!tokens.empty() && tokens.back().text < 0) {
    tokens.pop_back(); // an end of the text
  }
  size_t first = 0;
  while (first < tokens.size() && tokens[first].text < 0) {
    ++first; // a beginning
  }
  const auto is_of_words = [&](const PlacedToken& token) {
    return token.bytes.end > prompt.size();
  };
  const auto begin = std::find_if(
      tokens.begin() + static_cast<std::ptrdiff_t>(first),
      tokens.end(),
      is_of_words);
  PromptedLabel result;
  for (auto token = begin; token != tokens.end(); ++token) {
    result.words.push_back(token->id);
  }
  // The first token is predicted by one before it.
  const size_t kept = std::max<size_t>(first, 1);
  TESSERA_CHECK(
      !result.words.empty() && result.words.size() + kept <= max_length,
      "the words \"{}\" of a label have {} tokens; model.max_length is {}",
      words,
      result.words.size(),
      max_length);
  if (tokens.size() > max_length) {
    is_truncated = true;
    const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(first);
    tokens.erase(
        from, from + static_cast<std::ptrdiff_t>(tokens.size() - max_length));
  }
  result.input = encoding.ids();
  TESSERA_CHECK(
      result.words.size() < result.input.size(),
      "the prompt \"{}\" has no tokens before the words \"{}\"",
      prompt,
      words);
  return result;
}

} // namespace

PromptedText prompted_text(
    const std::string& prompt,
    const std::vector<std::string>& verbalizers,
    const Tokenizer& tokenizer,
    PromptKind kind,
    int64_t max_length) {
  PromptedText text;
  for (const std::string& words : verbalizers) {
    if (kind == PromptKind::kDecoder) {
      text.labels.push_back(continued(
          prompt,
          words,
          tokenizer,
          static_cast<size_t>(max_length),
          text.is_truncated));
      continue;
    }
    EncodeOptions options;
    options.truncation = {.max_length = max_length, .side = Side::kLeft};
    const Encoding input = tokenizer.encode(prompt, options);
    text.is_truncated = text.is_truncated || input.is_truncated;
    text.labels.push_back({input.ids(), tokenizer.encode(words).ids()});
  }
  return text;
}

ModelInput prompted_input(
    const std::vector<const PromptedLabel*>& labels,
    PromptKind kind,
    const TextInputs& inputs) {
  std::vector<std::vector<int64_t>> ids, masks, words;
  for (const PromptedLabel* one : labels) {
    ids.push_back(one->input);
    masks.emplace_back(one->input.size(), 1);
    words.push_back(one->words);
    if (kind == PromptKind::kDecoder) {
      words.back().insert(
          words.back().begin(), one->input.size() - one->words.size(), -100);
    }
  }
  const auto on_device = [&](const auto& rows, int64_t padding) {
    return runtime::to_device(
        padded_rows(rows, padding, inputs.multiple_of), inputs.device);
  };
  ModelInput batch;
  batch.input_ids = on_device(ids, inputs.padding_token);
  batch.attention_mask = on_device(masks, 0);
  batch.labels = on_device(words, -100);
  return batch;
}

at::Tensor label_likelihoods(
    const at::Tensor& logits,
    const at::Tensor& labels,
    PromptKind kind) {
  const bool follows = kind == PromptKind::kDecoder; // tokens predict the next
  const at::Tensor wanted = follows ? labels.slice(1, 1) : labels;
  const at::Tensor of_each = (follows ? logits.slice(1, 0, -1) : logits)
                                 .to(at::kFloat)
                                 .log_softmax(-1)
                                 .gather(-1, wanted.clamp_min(0).unsqueeze(-1))
                                 .squeeze(-1);
  return of_each.masked_fill(wanted.lt(0), 0).sum(-1);
}

PromptBatches::PromptBatches(
    std::vector<PromptedText> texts,
    bool scores_labels,
    PromptKind kind,
    TextBatches score,
    const TextInputs& inputs)
    : texts_(std::move(texts)),
      scores_labels_(scores_labels),
      kind_(kind),
      score_(std::move(score)),
      inputs_(inputs) {}

std::string PromptBatches::text() const {
  return score_.text();
}

ModelInput PromptBatches::make(
    const std::vector<size_t>& examples,
    int64_t /*epoch*/,
    bool loss_only) const {
  std::vector<const PromptedLabel*> labels;
  for (const size_t example : examples) {
    const PromptedText& text =
        texts_[scores_labels_ ? example / classes() : example];
    labels.push_back(
        &text.labels[scores_labels_ ? example % classes() : text.label]);
  }
  ModelInput batch = prompted_input(labels, kind_, inputs_);
  batch.loss_only = loss_only;
  return batch;
}

at::Tensor PromptBatches::outputs_of(
    const ModelInput& input,
    const ModelOutput& output) const {
  return label_likelihoods(output.logits, input.labels, kind_);
}

TaskScore PromptBatches::report(const Score& score) const {
  Score by_class = score;
  const auto classes_count = static_cast<int64_t>(classes());
  by_class.outputs = score.outputs.view({-1, classes_count});
  by_class.examples = static_cast<int64_t>(texts_.size());
  // The loss of the right words; the model's own is over all labels.
  double loss = 0;
  double tokens = 0;
  for (size_t i = 0; i < texts_.size(); ++i) {
    const PromptedText& text = texts_[i];
    loss -=
        by_class.outputs.const_data_ptr<double>()[i * classes() + text.label];
    tokens += static_cast<double>(text.labels[text.label].words.size());
  }
  by_class.loss = loss / tokens;
  return score_.report(by_class);
}

} // namespace tessera::zoo
