// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/span_objective.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/round_up.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera::zoo {

namespace {

/// The lengths for a text of so many tokens.
SpanLengths lengths_of(int64_t text, const SpanOptions& options) {
  // To even numbers in the middle, as Python rounds.
  const auto rounded = [](double number) {
    return static_cast<int64_t>(std::nearbyint(number));
  };
  SpanLengths lengths;
  lengths.text = text;
  lengths.noise = std::clamp<int64_t>(
      rounded(static_cast<double>(text) * options.density),
      1,
      std::max<int64_t>(1, text - 1));
  lengths.spans = std::clamp<int64_t>(
      rounded(static_cast<double>(lengths.noise) / options.mean_length),
      1,
      std::max<int64_t>(1, std::min(lengths.noise, text - lengths.noise)));
  lengths.inputs = text - lengths.noise + lengths.spans + 1;
  lengths.targets = lengths.noise + lengths.spans + 1;
  return lengths;
}

/// `parts` positive numbers of this sum; all such lists have the same
/// probability.
std::vector<int64_t> random_partition(
    int64_t sum,
    int64_t parts,
    const Uniforms& draws) {
  std::vector<int64_t> cuts(static_cast<size_t>(sum - 1));
  std::iota(cuts.begin(), cuts.end(), 1);
  for (int64_t i = 0; i < parts - 1; ++i) {
    std::swap(
        cuts[static_cast<size_t>(i)],
        cuts[static_cast<size_t>(i + below(draws, sum - 1 - i))]);
  }
  cuts.resize(static_cast<size_t>(parts - 1));
  std::sort(cuts.begin(), cuts.end());
  cuts.push_back(sum);
  std::adjacent_difference(cuts.begin(), cuts.end(), cuts.begin());
  return cuts;
}

} // namespace

SpanLengths SpanLengths::of(int64_t inputs, const SpanOptions& options) {
  SpanLengths lengths = lengths_of(2, options);
  for (;;) {
    const SpanLengths next = lengths_of(lengths.text + 1, options);
    if (next.inputs > inputs) {
      return lengths;
    }
    lengths = next;
  }
}

CorruptedText corrupted_text(
    std::span<const int64_t> text,
    const SpanLengths& lengths,
    const std::vector<int64_t>& sentinels,
    int64_t end,
    const Uniforms& draws) {
  const auto taken = random_partition(lengths.noise, lengths.spans, draws);
  const auto kept =
      random_partition(lengths.text - lengths.noise, lengths.spans, draws);
  CorruptedText corrupted;
  auto at = text.begin();
  for (size_t i = 0; i < taken.size(); ++i) {
    corrupted.inputs.insert(corrupted.inputs.end(), at, at + kept[i]);
    at += kept[i];
    corrupted.inputs.push_back(sentinels[i]);
    corrupted.targets.push_back(sentinels[i]);
    corrupted.targets.insert(corrupted.targets.end(), at, at + taken[i]);
    at += taken[i];
  }
  corrupted.inputs.push_back(end);
  corrupted.targets.push_back(end);
  return corrupted;
}

SpanObjective::SpanObjective(
    const ObjectiveOptions& options,
    const std::optional<text::Tokenizer>& tokenizer,
    const Head& head,
    const ObjectiveSetting& setting)
    : lengths_(SpanLengths::of(setting.max_length, options.spans)),
      length_(setting.max_length),
      target_length_(
          runtime::round_up(lengths_.targets, setting.sequence_multiple)),
      seed_(setting.seed) {
  TESSERA_CHECK(
      lengths_.inputs == length_,
      "model.max_length is {}, but span corruption with data.spans.density {} and data.spans.mean_length {} makes inputs of {} tokens; set model.max_length to that",
      length_,
      options.spans.density,
      options.spans.mean_length,
      lengths_.inputs);
  const SpecialTokens special = completed(options.special, tokenizer);
  end_ = needed_token(
      special.end, "end", ObjectiveKind::kSpanCorruption, head.vocab());
  sentinels_ = sentinels_of(special, tokenizer, lengths_.spans, head.vocab());
}

ModelInput SpanObjective::make(
    const PackedSamples& texts,
    const std::vector<size_t>& examples,
    int64_t epoch) const {
  const auto rows = static_cast<int64_t>(examples.size());
  ModelInput batch;
  batch.input_ids = torch::empty({rows, length_}, torch::kLong);
  batch.labels = torch::full({rows, target_length_}, -100, torch::kLong);
  std::vector<int64_t> text(static_cast<size_t>(lengths_.text));
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < rows; ++i) {
    const size_t example = examples[static_cast<size_t>(i)];
    texts.read(example, epoch, text, starts);
    const CorruptedText row = corrupted_text(
        text, lengths_, sentinels_, end_, uniforms_of(example, epoch, seed_));
    std::copy(
        row.inputs.begin(),
        row.inputs.end(),
        batch.input_ids.mutable_data_ptr<int64_t>() + i * length_);
    std::copy(
        row.targets.begin(),
        row.targets.end(),
        batch.labels.mutable_data_ptr<int64_t>() + i * target_length_);
  }
  return batch;
}

PrefixObjective::PrefixObjective(
    const ObjectiveOptions& options,
    const std::optional<text::Tokenizer>& tokenizer,
    const Head& head,
    const ObjectiveSetting& setting)
    : end_(needed_token(
          completed(options.special, tokenizer).end,
          "end",
          ObjectiveKind::kPrefix,
          head.vocab())),
      length_(setting.max_length),
      seed_(setting.seed) {}

ModelInput PrefixObjective::make(
    const PackedSamples& texts,
    const std::vector<size_t>& examples,
    int64_t epoch) const {
  const auto rows = static_cast<int64_t>(examples.size());
  ModelInput batch;
  batch.input_ids = torch::full({rows, length_}, end_, torch::kLong);
  batch.attention_mask = torch::zeros({rows, length_}, torch::kLong);
  batch.labels = torch::full({rows, length_}, -100, torch::kLong);
  std::vector<int64_t> text(static_cast<size_t>(length_));
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < rows; ++i) {
    const size_t example = examples[static_cast<size_t>(i)];
    texts.read(example, epoch, text, starts);
    const int64_t cut =
        1 + below(uniforms_of(example, epoch, seed_), length_ - 1);
    std::copy_n(
        text.begin(),
        cut,
        batch.input_ids.mutable_data_ptr<int64_t>() + i * length_);
    batch.attention_mask[i].narrow(0, 0, cut).fill_(1);
    auto* labels = batch.labels.mutable_data_ptr<int64_t>() + i * length_;
    std::copy(text.begin() + cut, text.end(), labels);
  }
  return batch;
}

} // namespace tessera::zoo
