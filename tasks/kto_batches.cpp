// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/kto_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/tasks/answer_inputs.h"

#include <torch/types.h>

#include <algorithm>
#include <span>
#include <utility>

namespace tessera::tasks {

namespace {

/// What is before the answer.
std::span<const int64_t> prompt_tokens(const SupervisedText& text) {
  return {text.tokens.data(), static_cast<size_t>(text.answers.front().begin)};
}

bool have_same_prompt(const SupervisedText& a, const SupervisedText& b) {
  const auto first = prompt_tokens(a);
  const auto second = prompt_tokens(b);
  return std::equal(first.begin(), first.end(), second.begin(), second.end());
}

std::vector<size_t> counterparts(const std::vector<JudgedText>& texts) {
  const size_t count = texts.size();
  std::vector<size_t> others;
  for (size_t i = 0; i < count; ++i) {
    size_t other = (i + count - 1) % count;
    while (other != i && have_same_prompt(texts[i].text, texts[other].text)) {
      other = (other + count - 1) % count;
    }
    TESSERA_CHECK(
        other != i,
        "preference.loss is \"kto\", which compares answers with those of other prompts, but all {} have the same prompt; give rows with several, or choose a loss of pairs",
        runtime::count_text(static_cast<int64_t>(count), "row"));
    others.push_back(other);
  }
  return others;
}

} // namespace

KtoBatches::KtoBatches(
    std::vector<JudgedText> texts,
    const SupervisedInputs& inputs,
    const PreferenceOptions& options)
    : RowBatches(
          std::move(texts),
          {.outputs_per_example = kKtoOutputs, .has_equal_labels = true}),
      inputs_(inputs),
      options_(options),
      others_(counterparts(examples())) {}

std::string KtoBatches::text() const {
  int64_t tokens = 0;
  int64_t good = 0;
  for (const JudgedText& one : examples()) {
    tokens += static_cast<int64_t>(one.text.tokens.size());
    good += one.is_desirable ? 1 : 0;
  }
  return formatted(
      "{} of {} tokens, {} of which are good",
      runtime::count_text(static_cast<int64_t>(size()), "answer"),
      tokens,
      good);
}

SupervisedText KtoBatches::mismatched(size_t example) const {
  const auto prompt = prompt_tokens(examples()[example].text);
  const SupervisedText& other = examples()[others_[example]].text;
  const int64_t removed = other.answers.front().begin;
  const auto begin = static_cast<int64_t>(prompt.size());
  SupervisedText text;
  text.tokens.assign(prompt.begin(), prompt.end());
  text.tokens.insert(
      text.tokens.end(), other.tokens.begin() + removed, other.tokens.end());
  const int64_t length =
      std::min(static_cast<int64_t>(text.tokens.size()), inputs_.max_length);
  text.tokens.resize(static_cast<size_t>(length));
  for (const TokenRange& range : other.answers) {
    const TokenRange moved{
        range.begin - removed + begin,
        std::min(range.end - removed + begin, length)};
    if (moved.begin < moved.end) {
      text.answers.push_back(moved);
    }
  }
  return text;
}

zoo::ModelInput KtoBatches::rows(const std::vector<size_t>& numbers) const {
  std::vector<SupervisedText> mismatched_texts;
  std::vector<float> desirable;
  for (const size_t number : numbers) {
    mismatched_texts.push_back(mismatched(number));
    desirable.push_back(examples()[number].is_desirable ? 1.0F : 0.0F);
  }
  RowTexts texts;
  RowTexts others;
  for (size_t i = 0; i < numbers.size(); ++i) {
    texts.push_back({&examples()[numbers[i]].text});
    others.push_back({&mismatched_texts[i]});
  }
  zoo::ModelInput batch = answer_rows(texts, inputs_);
  for (const auto& [name, tensor] : answer_rows(others, inputs_).named()) {
    batch.others[KtoInputs::kMismatched + name] = tensor;
  }
  batch.others[KtoInputs::kDesirable] = torch::tensor(desirable);
  return batch;
}

TaskScore KtoBatches::report(const zoo::Score& score) const {
  const auto column = [&](KtoOutput output) {
    return score.outputs.select(1, static_cast<int64_t>(output));
  };
  std::vector<double> flags;
  for (const JudgedText& one : examples()) {
    flags.push_back(one.is_desirable ? 1 : 0);
  }
  const at::Tensor desirable = torch::tensor(flags, torch::kDouble);
  const at::Tensor rewards = column(KtoOutput::kReward);
  const at::Tensor kl = column(KtoOutput::kMismatched).mean().clamp_min(0);
  const double loss =
      kto_losses(rewards, desirable, kl, options_).mean().item<double>();
  const at::Tensor is_good = desirable.gt(0);
  const at::Tensor is_above = rewards.gt(options_.beta * kl);
  const double accuracy =
      is_above.eq(is_good).to(at::kDouble).mean().item<double>();
  TaskScore result{
      formatted(
          "loss {:.4f}, accuracy {:.1f} %, KL {:.4f} of {}",
          loss,
          100 * accuracy,
          kl.item<double>(),
          runtime::count_text(static_cast<int64_t>(size()), "answer")),
      {}};
  result.values["heldout_loss"] = loss;
  result.values["heldout_accuracy"] = accuracy;
  result.values["heldout_kl"] = kl.item<double>();
  const double good = desirable.mean().item<double>();
  if (good > 0 && good < 1) {
    const double chosen = rewards.masked_select(is_good).mean().item<double>();
    const double rejected =
        rewards.masked_select(is_good.logical_not()).mean().item<double>();
    result.values["heldout_margin"] = chosen - rejected;
    result.values["heldout_chosen_reward"] = chosen;
    result.values["heldout_rejected_reward"] = rejected;
  }
  result.values["heldout_answers"] = size();
  return result;
}

} // namespace tessera::tasks
