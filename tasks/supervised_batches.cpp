// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/supervised_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/tasks/supervised_texts.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/data/random_order.h"
#include "tessera/zoo/data/token_batches.h"
#include "tessera/zoo/models/model.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace tessera::tasks {

namespace {

constexpr int64_t kNoLabel = -100;

/// [rows, length] of one value.
at::Tensor filled_rows(size_t rows, int64_t length, int64_t value) {
  return torch::full({static_cast<int64_t>(rows), length}, value, at::kLong);
}

int64_t* begin_of(at::Tensor& tensor, size_t row) {
  return tensor.mutable_data_ptr<int64_t>() +
         static_cast<int64_t>(row) * tensor.size(1);
}

/// Tokens that end what a row is to say, such as the end of a chat's message,
/// which the tokenizer's eos_token need not be.
std::vector<int64_t> end_tokens(
    const std::vector<SupervisedText>& texts,
    const text::Tokenizer& tokenizer,
    std::vector<int64_t> ends) {
  constexpr int64_t kAfter = 2; // white space
  for (const SupervisedText& text : texts) {
    if (text.answers.empty() || text.is_truncated) {
      continue;
    }
    const TokenRange& last = text.answers.back();
    for (int64_t i = last.end;
         --i >= std::max(last.begin, last.end - kAfter);) {
      const int64_t id = text.tokens[static_cast<size_t>(i)];
      if (tokenizer.is_special(id)) {
        if (std::find(ends.begin(), ends.end(), id) == ends.end()) {
          ends.push_back(id);
        }
        break;
      }
    }
  }
  return ends;
}

} // namespace

bool has_ring_attention(const TrainingConfig& config) {
  return config.parallel.sizes.context > 1 &&
         config.parallel.context_attention == ContextKind::kRing;
}

bool packs_rows(const TrainingConfig& config, const zoo::Model& model) {
  return config.as<SupervisedOptions>().packed.value_or(
      !model.first_token() && model.takes_documents() &&
      !has_ring_attention(config));
}

std::vector<std::vector<size_t>> packed_rows(
    const std::vector<int64_t>& lengths,
    int64_t length,
    uint64_t seed) {
  const auto count = static_cast<int64_t>(lengths.size());
  const zoo::RandomOrder random(count, runtime::split_mix(seed));
  std::vector<size_t> order;
  for (int64_t i = 0; i < count; ++i) {
    order.push_back(static_cast<size_t>(random[i]));
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return lengths[a] > lengths[b];
  });
  std::vector<std::vector<size_t>> sequences;
  std::multimap<int64_t, size_t>
      free_tokens; // sequences by what they have left
  for (const size_t row : order) {
    auto found = free_tokens.lower_bound(lengths[row]);
    if (found == free_tokens.end()) {
      sequences.emplace_back();
      found = free_tokens.emplace(length, sequences.size() - 1);
    }
    const auto [left, sequence] = *found;
    sequences[sequence].push_back(row);
    free_tokens.erase(found);
    free_tokens.emplace(left - lengths[row], sequence);
  }
  return sequences;
}

std::vector<std::vector<size_t>> sequences_of(
    const std::vector<int64_t>& lengths,
    const SupervisedInputs& inputs,
    uint64_t seed) {
  if (inputs.is_packed) {
    return packed_rows(lengths, inputs.max_length, seed);
  }
  std::vector<std::vector<size_t>> sequences;
  for (size_t i = 0; i < lengths.size(); ++i) {
    sequences.push_back({i});
  }
  return sequences;
}

std::string packed_text(const SupervisedInputs& inputs, size_t sequences) {
  return inputs.is_packed
             ? formatted(
                   ", in {} of {} tokens",
                   runtime::count_text(
                       static_cast<int64_t>(sequences), "sequence"),
                   inputs.max_length)
             : "";
}

DocumentRows::DocumentRows(
    size_t rows,
    int64_t length,
    const SupervisedInputs& inputs)
    : inputs_(inputs),
      ids_(filled_rows(rows, length, inputs.padding_token)),
      ends_(rows, 0),
      counts_(rows, 0) {
  if (inputs_.is_packed) {
    documents_ = filled_rows(rows, length, 0);
    positions_ = filled_rows(rows, length, 0);
  }
}

int64_t DocumentRows::add(size_t row, const std::vector<int64_t>& tokens) {
  const int64_t begin = ends_[row];
  std::copy(tokens.begin(), tokens.end(), begin_of(ids_, row) + begin);
  number(row, begin + static_cast<int64_t>(tokens.size()));
  return begin;
}

void DocumentRows::number(size_t row, int64_t end) {
  if (inputs_.is_packed) {
    const int64_t begin = ends_[row];
    std::fill(
        begin_of(documents_, row) + begin,
        begin_of(documents_, row) + end,
        counts_[row]);
    int64_t* positions = begin_of(positions_, row);
    std::iota(positions + begin, positions + end, int64_t{0});
  }
  ends_[row] = end;
  ++counts_[row];
}

void DocumentRows::store(zoo::ModelInput& batch) {
  const int64_t length = ids_.size(1);
  const bool has_padding = std::any_of(
      ends_.begin(), ends_.end(), [&](int64_t end) { return end < length; });
  batch.input_ids = ids_;
  if (inputs_.is_packed) {
    for (size_t row = 0; row < ends_.size(); ++row) {
      number(row, length);
    }
    batch.position_ids = positions_;
    batch.others["document_ids"] = documents_;
  } else if (has_padding && inputs_.has_mask) {
    batch.attention_mask = filled_rows(ends_.size(), length, 0);
    for (size_t row = 0; row < ends_.size(); ++row) {
      std::fill_n(begin_of(batch.attention_mask, row), ends_[row], 1);
    }
  }
}

SupervisedBatches::SupervisedBatches(
    std::vector<SupervisedText> texts,
    const SupervisedInputs& inputs,
    SupervisedScoring scoring,
    text::Tokenizer tokenizer,
    uint64_t seed)
    : texts_(std::move(texts)),
      inputs_(inputs),
      scoring_(std::move(scoring)),
      tokenizer_(std::move(tokenizer)) {
  std::vector<int64_t> lengths;
  for (const SupervisedText& text : texts_) {
    lengths.push_back(static_cast<int64_t>(text.tokens.size()));
  }
  sequences_ = sequences_of(lengths, inputs_, seed);
  if (!scoring_.metrics.empty()) {
    prompts_.emplace();
    prompts_->options = scoring_.options;
    prompts_->options.eos_token_id =
        end_tokens(texts_, tokenizer_, scoring_.options.eos_token_id);
    const auto rows =
        std::min(static_cast<size_t>(scoring_.rows), texts_.size());
    for (size_t i = 0; i < rows; ++i) {
      prompts_->prompts.push_back(texts_[i].prompt());
    }
  }
}

std::string SupervisedBatches::text() const {
  int64_t tokens = 0;
  int64_t learned = 0;
  for (const SupervisedText& text : texts_) {
    tokens += static_cast<int64_t>(text.tokens.size() + text.target.size());
    learned += text.learned();
  }
  return formatted(
      "{} of {} tokens, {} of which are learned{}",
      runtime::count_text(static_cast<int64_t>(texts_.size()), "row"),
      tokens,
      learned,
      packed_text(inputs_, size()));
}

zoo::ModelInput SupervisedBatches::make(
    const std::vector<size_t>& examples,
    int64_t /*epoch*/,
    bool loss_only) const {
  const auto longest_of = [&](const auto& member) {
    size_t longest = 1;
    for (const size_t example : examples) {
      const SupervisedText& text = texts_[sequences_[example].front()];
      longest = std::max(longest, (text.*member).size());
    }
    return runtime::round_up(
        static_cast<int64_t>(longest), inputs_.multiple_of);
  };
  const int64_t length = inputs_.is_packed
                             ? inputs_.max_length
                             : longest_of(&SupervisedText::tokens);
  zoo::ModelInput batch;
  batch.loss_only = loss_only;
  batch.labels = filled_rows(
      examples.size(),
      inputs_.kind == PromptKind::kDecoder
          ? length
          : longest_of(&SupervisedText::target),
      kNoLabel);
  DocumentRows rows(examples.size(), length, inputs_);
  for (size_t i = 0; i < examples.size(); ++i) {
    int64_t* labels = begin_of(batch.labels, i);
    for (const size_t row : sequences_[examples[i]]) {
      const SupervisedText& text = texts_[row];
      const int64_t begin = rows.add(i, text.tokens);
      for (const TokenRange& range : text.answers) {
        std::copy(
            text.tokens.begin() + range.begin,
            text.tokens.begin() + range.end,
            labels + begin + range.begin);
      }
      std::copy(text.target.begin(), text.target.end(), labels);
    }
  }
  rows.store(batch);
  return batch;
}

TaskScore SupervisedBatches::report(const zoo::Score& score) const {
  TaskScore result = zoo::token_score(score);
  result.values["heldout_perplexity"] = std::exp(score.loss);
  result.values["heldout_examples"] = texts_.size();
  if (!prompts_) {
    return result;
  }
  std::vector<GeneratedPair> pairs;
  for (size_t i = 0; i < score.generated.size(); ++i) {
    pairs.push_back(
        {tokenizer_.decode(score.generated[i], /*skip_special_tokens=*/true),
         texts_[i].reference});
  }
  for (const GeneratedMetric& metric : scoring_.metrics) {
    const double value = metric.value(pairs, scoring_.compared);
    result.values[formatted("heldout_{}", metric.name)] = value;
    result.text += metric.is_share
                       ? formatted(", {} {:.1f} %", metric.title, 100 * value)
                       : formatted(", {} {:.2f}", metric.title, value);
  }
  result.values["heldout_generated"] = pairs.size();
  result.text += formatted(
      " of {}",
      runtime::count_text(
          static_cast<int64_t>(pairs.size()), "generated text"));
  return result;
}

} // namespace tessera::tasks
