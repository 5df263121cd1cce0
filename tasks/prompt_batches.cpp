// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/prompt_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/zoo/generation/blanks.h"

#include <ATen/ops/tensor.h>
#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace tessera::tasks {

namespace {

/// @param kept tokens that there must be beside the words.
void check_fit(
    const PromptedLabel& label,
    const std::string& words,
    size_t kept,
    size_t max_length) {
  TESSERA_CHECK(
      !label.words.empty() && label.words.size() + kept <= max_length,
      "the words \"{}\" of a label have {} tokens; model.max_length is {}",
      words,
      label.words.size(),
      max_length);
}

std::vector<PromptExample> prompt_examples(
    const std::vector<PromptedText>& texts,
    bool with_all_labels) {
  std::vector<PromptExample> examples;
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t count = with_all_labels ? texts[i].labels.size() : 1;
    for (size_t label = 0; label < count; ++label) {
      examples.push_back({i, with_all_labels ? label : texts[i].label});
    }
  }
  return examples;
}

/// Tokenized together, as the words would be written: their tokens are those
/// that reach beyond the prompt.
PromptedLabel continued(
    const PromptText& text,
    const std::string& words,
    const text::Tokenizer& tokenizer,
    size_t max_length,
    bool& is_truncated) {
  const std::string& prompt = text.prompt;
  text::Encoding encoding =
      tokenizer.encode(prompt + text.separator + words, {.with_offsets = true});
  text::TokenSequence& tokens = encoding.tokens;
  while (!tokens.empty() && tokens.back().text < 0) {
    tokens.pop_back(); // an end of the text
  }
  size_t first = 0;
  while (first < tokens.size() && tokens[first].text < 0) {
    ++first; // a beginning
  }
  const auto is_of_words = [&](const text::PlacedToken& token) {
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
  check_fit(result, words, kept, max_length);
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

/// Removes what is too much before the blank, and then at the end, but for the
/// tokens that `marks` has around a text.
void shorten(
    zoo::BlankedText& text,
    const zoo::BlankTokens& marks,
    size_t length) {
  const size_t before = marks.text_start >= 0 ? 1 : 0;
  const size_t after = marks.text_end >= 0 ? 1 : 0;
  const auto drop = [&](size_t begin, size_t end) {
    const auto first = text.context.begin();
    text.context.erase(
        first + static_cast<std::ptrdiff_t>(begin),
        first + static_cast<std::ptrdiff_t>(end));
  };
  auto& blank = text.blanks.front();
  const size_t from_front = std::min(
      text.context.size() - length, static_cast<size_t>(blank) - before);
  drop(before, before + from_front);
  blank -= static_cast<int64_t>(from_front);
  if (text.context.size() > length) {
    const size_t end = text.context.size() - after;
    drop(length - after, end);
  }
}

/// The words in the blank of a prompt, without an end token: words of all
/// labels are scored up to their last token.
PromptedLabel in_blank(
    const PromptText& blanked,
    const std::string& words,
    const text::Tokenizer& tokenizer,
    size_t max_length,
    bool& is_truncated) {
  const std::string& prompt = blanked.prompt;
  const zoo::BlankTokens marks = zoo::BlankTokens::of(tokenizer);
  zoo::BlankedText text = zoo::blanked_text(tokenizer, marks, prompt);
  TESSERA_CHECK(
      text.blanks.size() == 1,
      "the prompt \"{}\" has {} blanks; one [MASK] is where the label goes",
      prompt,
      text.blanks.size());
  const size_t mark = prompt.find(zoo::kBlankMarks.front());
  const bool has_space =
      mark != std::string::npos && mark > 0 && prompt[mark - 1] == ' ';
  PromptedLabel result;
  result.words = tokenizer.ids((has_space ? " " : "") + words);
  const size_t kept =
      1 + (marks.text_start >= 0 ? 1 : 0) + (marks.text_end >= 0 ? 1 : 0);
  check_fit(result, words, kept, max_length);
  if (text.context.size() + result.words.size() > max_length) {
    is_truncated = true;
    shorten(text, marks, max_length - result.words.size());
  }
  result.blank = text.blanks.front();
  result.input = std::move(text.context);
  result.input.push_back(marks.start);
  result.input.insert(
      result.input.end(), result.words.begin(), result.words.end() - 1);
  return result;
}

/// Adds what a model that fills blanks is told of its input.
void add_blanks(
    const std::vector<const PromptedLabel*>& labels,
    const c10::Device& device,
    zoo::ModelInput& batch) {
  const int64_t length = batch.input_ids.size(1);
  const auto rows = static_cast<int64_t>(labels.size());
  at::Tensor positions = torch::zeros({rows, 2, length}, at::kLong);
  at::Tensor sep = torch::empty({rows}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const PromptedLabel& one = *labels[static_cast<size_t>(row)];
    const auto written = static_cast<int64_t>(one.words.size());
    const auto context = static_cast<int64_t>(one.input.size()) - written;
    sep[row] = context;
    const auto part = [&](int64_t which, int64_t begin, int64_t count) {
      return positions[row][which].narrow(0, begin, count);
    };
    part(0, 0, context).copy_(torch::arange(context));
    part(0, context, written).fill_(one.blank);
    part(1, context, written).copy_(torch::arange(1, written + 1));
  }
  batch.position_ids = runtime::to_device(positions, device);
  batch.others["sep"] = runtime::to_device(sep, device);
}

} // namespace

PromptedText prompted_text(
    const PromptText& prompt,
    const std::vector<std::string>& verbalizers,
    const text::Tokenizer& tokenizer,
    PromptKind kind,
    int64_t max_length) {
  PromptedText text;
  for (const std::string& words : verbalizers) {
    if (kind != PromptKind::kEncoderDecoder) {
      text.labels.push_back((kind == PromptKind::kBlank ? in_blank : continued)(
          prompt,
          words,
          tokenizer,
          static_cast<size_t>(max_length),
          text.is_truncated));
      continue;
    }
    text::EncodeOptions options;
    options.truncation = {.max_length = max_length, .side = text::Side::kLeft};
    const text::Encoding input = tokenizer.encode(prompt.prompt, options);
    text.is_truncated = text.is_truncated || input.is_truncated;
    text.labels.push_back({input.ids(), tokenizer.encode(words).ids()});
  }
  return text;
}

zoo::ModelInput prompted_input(
    const std::vector<const PromptedLabel*>& labels,
    PromptKind kind,
    const TextInputs& inputs) {
  std::vector<std::vector<int64_t>> ids, masks, words;
  for (const PromptedLabel* one : labels) {
    ids.push_back(one->input);
    masks.emplace_back(one->input.size(), 1);
    words.push_back(one->words);
    if (kind != PromptKind::kEncoderDecoder) {
      words.back().insert(
          words.back().begin(), one->input.size() - one->words.size(), -100);
    }
  }
  zoo::ModelInput batch;
  batch.input_ids = padded_rows(ids, inputs.padding_token, inputs);
  batch.labels = padded_rows(words, -100, inputs);
  if (kind == PromptKind::kBlank) {
    add_blanks(labels, inputs.device, batch); // padding is not looked at
  } else {
    batch.attention_mask = padded_rows(masks, 0, inputs);
  }
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
    : RowBatches(
          prompt_examples(texts, scores_labels),
          {.outputs_per_example = scores_labels ? 1 : 0}),
      texts_(std::move(texts)),
      kind_(kind),
      score_(std::move(score)),
      inputs_(inputs) {}

std::string PromptBatches::text() const {
  return score_.text();
}

zoo::ModelInput PromptBatches::rows(const std::vector<size_t>& numbers) const {
  std::vector<const PromptedLabel*> labels;
  for (const size_t number : numbers) {
    const auto [text, label] = examples()[number];
    labels.push_back(&texts_[text].labels[label]);
  }
  return prompted_input(labels, kind_, inputs_);
}

at::Tensor PromptBatches::outputs_of(
    const zoo::ModelInput& input,
    const zoo::ModelOutput& output) const {
  return label_likelihoods(output.logits, input.labels, kind_);
}

TaskScore PromptBatches::report(const zoo::Score& score) const {
  zoo::Score by_class = score;
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

} // namespace tessera::tasks
