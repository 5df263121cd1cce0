// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/supervised_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
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

int64_t rounded_up(size_t length, int64_t multiple) {
  const int64_t least = std::max<int64_t>(1, static_cast<int64_t>(length));
  return (least + multiple - 1) / multiple * multiple;
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
  std::multimap<int64_t, size_t> room; // sequences by what they have left
  for (const size_t row : order) {
    auto found = room.lower_bound(lengths[row]);
    if (found == room.end()) {
      sequences.emplace_back();
      found = room.emplace(length, sequences.size() - 1);
    }
    const auto [left, sequence] = *found;
    sequences[sequence].push_back(row);
    room.erase(found);
    room.emplace(left - lengths[row], sequence);
  }
  return sequences;
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
  if (inputs_.is_packed) {
    std::vector<int64_t> lengths;
    for (const SupervisedText& text : texts_) {
      lengths.push_back(static_cast<int64_t>(text.tokens.size()));
    }
    sequences_ = packed_rows(lengths, inputs_.max_length, seed);
  } else {
    for (size_t i = 0; i < texts_.size(); ++i) {
      sequences_.push_back({i});
    }
  }
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
      inputs_.is_packed
          ? formatted(
                ", in {} of {} tokens",
                runtime::count_text(static_cast<int64_t>(size()), "sequence"),
                inputs_.max_length)
          : "");
}

zoo::ModelInput SupervisedBatches::make(
    const std::vector<size_t>& examples,
    int64_t /*epoch*/,
    bool loss_only) const {
  const bool is_decoder = inputs_.kind == PromptKind::kDecoder;
  size_t longest = 0;
  size_t longest_target = 0;
  bool has_padding = false;
  for (const size_t example : examples) {
    const SupervisedText& text = texts_[sequences_[example].front()];
    has_padding = has_padding || (&example != &examples.front() &&
                                  text.tokens.size() != longest);
    longest = std::max(longest, text.tokens.size());
    longest_target = std::max(longest_target, text.target.size());
  }
  const int64_t length = inputs_.is_packed
                             ? inputs_.max_length
                             : rounded_up(longest, inputs_.multiple_of);
  has_padding = has_padding || length != static_cast<int64_t>(longest);
  zoo::ModelInput batch;
  batch.loss_only = loss_only;
  batch.input_ids = filled_rows(examples.size(), length, inputs_.padding_token);
  batch.labels = filled_rows(
      examples.size(),
      is_decoder ? length : rounded_up(longest_target, inputs_.multiple_of),
      kNoLabel);
  if (inputs_.is_packed) {
    batch.position_ids = filled_rows(examples.size(), length, 0);
    batch.others["document_ids"] = filled_rows(examples.size(), length, 0);
  } else if (has_padding && inputs_.has_mask) {
    batch.attention_mask = filled_rows(examples.size(), length, 0);
  }
  for (size_t i = 0; i < examples.size(); ++i) {
    int64_t* ids = begin_of(batch.input_ids, i);
    int64_t* labels = begin_of(batch.labels, i);
    int64_t at = 0;
    int64_t document = 0;
    const auto number = [&](int64_t end) {
      if (inputs_.is_packed) {
        int64_t* documents = begin_of(batch.others["document_ids"], i);
        int64_t* positions = begin_of(batch.position_ids, i);
        std::fill(documents + at, documents + end, document);
        for (int64_t place = at; place < end; ++place) {
          positions[place] = place - at;
        }
      }
    };
    for (const size_t row : sequences_[examples[i]]) {
      const SupervisedText& text = texts_[row];
      const int64_t end = at + static_cast<int64_t>(text.tokens.size());
      std::copy(text.tokens.begin(), text.tokens.end(), ids + at);
      for (const TokenRange& range : text.answers) {
        std::copy(
            text.tokens.begin() + range.begin,
            text.tokens.begin() + range.end,
            labels + at + range.begin);
      }
      std::copy(text.target.begin(), text.target.end(), labels);
      number(end);
      at = end;
      ++document;
    }
    if (batch.attention_mask.defined()) {
      std::fill_n(begin_of(batch.attention_mask, i), at, 1);
    }
    number(length);
  }
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
