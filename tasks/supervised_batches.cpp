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

/// Numbers the texts of each row, the padding behind them as one more, and
/// their positions.
void add_documents(const RowTexts& texts, zoo::ModelInput& batch) {
  const int64_t length = batch.input_ids.size(1);
  at::Tensor documents = filled_rows(texts.size(), length, 0);
  at::Tensor positions = filled_rows(texts.size(), length, 0);
  for (size_t row = 0; row < texts.size(); ++row) {
    int64_t begin = 0;
    int64_t document = 0;
    const auto add = [&](int64_t end) {
      int64_t* ids = begin_of(documents, row);
      std::fill(ids + begin, ids + end, document++);
      int64_t* numbers = begin_of(positions, row);
      std::iota(numbers + begin, numbers + end, int64_t{0});
      begin = end;
    };
    for (const SupervisedText* text : texts[row]) {
      add(begin + static_cast<int64_t>(text->tokens.size()));
    }
    add(length);
  }
  batch.position_ids = positions;
  batch.others["document_ids"] = documents;
}

std::vector<int64_t> text_lengths(const std::vector<SupervisedText>& texts) {
  std::vector<int64_t> lengths;
  for (const SupervisedText& text : texts) {
    lengths.push_back(static_cast<int64_t>(text.tokens.size()));
  }
  return lengths;
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

bool packs_rows(const TrainingConfig& config, const zoo::Model& model) {
  return config.as<SupervisedOptions>().packed.value_or(
      !model.first_token() && model.takes_documents());
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

zoo::ModelInput text_rows(
    const RowTexts& texts,
    const SupervisedInputs& inputs) {
  size_t longest = 1;
  for_each_text(texts, [&](const SupervisedText& text, size_t, int64_t) {
    longest = std::max(longest, text.tokens.size());
  });
  const int64_t length =
      inputs.is_packed ? inputs.max_length
                       : runtime::round_up(
                             static_cast<int64_t>(longest), inputs.multiple_of);
  zoo::ModelInput batch;
  batch.input_ids = filled_rows(texts.size(), length, inputs.padding_token);
  std::vector<int64_t> ends(texts.size(), 0);
  for_each_text(
      texts, [&](const SupervisedText& text, size_t row, int64_t begin) {
        std::copy(
            text.tokens.begin(),
            text.tokens.end(),
            begin_of(batch.input_ids, row) + begin);
        ends[row] = begin + static_cast<int64_t>(text.tokens.size());
      });
  if (inputs.is_packed) {
    add_documents(texts, batch);
  } else if (std::any_of(ends.begin(), ends.end(), [&](int64_t end) {
               return end < length;
             })) {
    batch.attention_mask = filled_rows(ends.size(), length, 0);
    for (size_t row = 0; row < ends.size(); ++row) {
      std::fill_n(begin_of(batch.attention_mask, row), ends[row], 1);
    }
  }
  return batch;
}

SupervisedBatches::SupervisedBatches(
    std::vector<SupervisedText> texts,
    const SupervisedInputs& inputs,
    SupervisedScoring scoring,
    text::Tokenizer tokenizer,
    uint64_t seed)
    : RowBatches(
          sequences_of(text_lengths(texts), inputs, seed),
          {.measures_metric = false}),
      texts_(std::move(texts)),
      inputs_(inputs),
      scoring_(std::move(scoring)),
      tokenizer_(std::move(tokenizer)) {
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

zoo::ModelInput SupervisedBatches::rows(
    const std::vector<size_t>& numbers) const {
  RowTexts texts;
  size_t longest_target = 1;
  for (const size_t number : numbers) {
    texts.emplace_back();
    for (const size_t row : examples()[number]) {
      texts.back().push_back(&texts_[row]);
      longest_target = std::max(longest_target, texts_[row].target.size());
    }
  }
  zoo::ModelInput batch = text_rows(texts, inputs_);
  batch.labels = filled_rows(
      numbers.size(),
      inputs_.kind == PromptKind::kDecoder
          ? batch.input_ids.size(1)
          : runtime::round_up(
                static_cast<int64_t>(longest_target), inputs_.multiple_of),
      kNoLabel);
  for_each_text(
      texts, [&](const SupervisedText& text, size_t row, int64_t begin) {
        int64_t* labels = begin_of(batch.labels, row);
        for (const TokenRange& range : text.answers) {
          std::copy(
              text.tokens.begin() + range.begin,
              text.tokens.begin() + range.end,
              labels + begin + range.begin);
        }
        std::copy(text.target.begin(), text.target.end(), labels);
      });
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
