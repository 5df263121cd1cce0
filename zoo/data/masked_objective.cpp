// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/masked_objective.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <algorithm>
#include <numeric>

namespace tessera::zoo {

struct MaskedObjective::Row {
  std::vector<int64_t> ids;
  std::vector<int64_t> firsts; ///< of each token the place of its word
  std::vector<int64_t> types;
  int64_t is_other = 0; ///< the next_sentence_label
};

MaskedObjective::MaskedObjective(
    const ObjectiveOptions& options,
    const std::optional<text::Tokenizer>& tokenizer,
    const Head& head,
    const ObjectiveSetting& setting)
    : options_(options.mask),
      is_special_(static_cast<size_t>(head.vocab())),
      vocab_(head.vocab()),
      length_(setting.max_length),
      seed_(setting.seed),
      is_pair_(head.predicts_pairs()),
      has_types_(head.token_types() > 1) {
  const SpecialTokens special = completed(options.special, tokenizer);
  const auto needed = [&](const std::optional<int64_t>& token,
                          const char* key) {
    return needed_token(token, key, ObjectiveKind::kMasked, vocab_);
  };
  options_.tokens.mask_token = needed(special.mask, "mask");
  start_ = needed(special.start, "start");
  end_ = needed(special.end, "end");
  TESSERA_CHECK(
      text_tokens() >= 2,
      "model.max_length is {}, which has no room for a text between special tokens",
      length_);
  for (int64_t token = 0; tokenizer && token < vocab_; ++token) {
    is_special_[static_cast<size_t>(token)] = tokenizer->is_special(token);
  }
  for (const auto& token :
       {special.mask, special.start, special.end, special.document_end}) {
    if (token && *token < vocab_) {
      is_special_[static_cast<size_t>(*token)] = true;
    }
  }
  if (options_.whole_word) {
    TESSERA_CHECK(
        tokenizer.has_value(),
        "data.mask.whole_word is true, for which the tokenizer has to be known: set data.tokenizer to the folder of the one that made the token files");
    words_.emplace(*tokenizer, options_.words);
  }
  TESSERA_CHECK(
      options_.words.empty() || options_.whole_word,
      "data.mask.words is '{}', but data.mask.whole_word is false; set it to true",
      options_.words.string());
}

void MaskedObjective::fill(
    Row& row,
    const PackedSamples& texts,
    size_t example,
    int64_t epoch) const {
  const int64_t count = text_tokens();
  std::vector<int64_t> text(static_cast<size_t>(count));
  std::vector<int64_t> starts;
  texts.read(example, epoch, text, starts);
  const auto words_of = [&] {
    std::vector<int64_t> firsts(text.size());
    if (words_) {
      words_->number(text, starts, firsts);
    } else {
      std::iota(firsts.begin(), firsts.end(), 0);
    }
    return firsts;
  };
  std::vector<int64_t> firsts = words_of();
  int64_t cut = count; // where the second segment begins
  bool is_exchanged = false;
  if (is_pair_) {
    // The first numbers are those of the masks.
    const Uniforms draws = uniforms_of(example, epoch, seed_, 3 * length_);
    cut = 1 + below(draws, count - 1);
    while (cut > 1 && firsts[static_cast<size_t>(cut)] != cut) {
      --cut;
    }
    row.is_other = draws() < 0.5 ? 1 : 0;
    is_exchanged =
        row.is_other != 0 && options_.pairs == PairKind::kSentenceOrder;
    if (row.is_other != 0 && !is_exchanged && texts.size() > 1) {
      const auto step =
          1 + below(draws, static_cast<int64_t>(texts.size()) - 1);
      const size_t other = (example + static_cast<size_t>(step)) % texts.size();
      const std::vector<int64_t> first = text;
      texts.read(other, epoch, text, starts);
      std::copy_n(first.begin(), cut, text.begin());
      std::erase_if(starts, [&](int64_t start) { return start <= cut; });
      starts.insert(starts.begin(), cut);
      const std::vector<int64_t> before = firsts;
      firsts = words_of();
      std::copy_n(before.begin(), cut, firsts.begin());
    }
  }
  row.ids.push_back(start_);
  row.firsts.push_back(0);
  const auto add = [&](int64_t begin, int64_t end, int64_t type) {
    const auto offset = static_cast<int64_t>(row.ids.size()) - begin;
    for (int64_t i = begin; i < end; ++i) {
      row.ids.push_back(text[static_cast<size_t>(i)]);
      row.firsts.push_back(firsts[static_cast<size_t>(i)] + offset);
    }
    row.firsts.push_back(static_cast<int64_t>(row.ids.size()));
    row.ids.push_back(end_);
    row.types.resize(row.ids.size(), type);
  };
  if (!is_pair_) {
    add(0, count, 0);
  } else if (is_exchanged) {
    add(cut, count, 0);
    add(0, cut, 1);
  } else {
    add(0, cut, 0);
    add(cut, count, 1);
  }
}

ModelInput MaskedObjective::make(
    const PackedSamples& texts,
    const std::vector<size_t>& examples,
    int64_t epoch) const {
  const auto rows = static_cast<int64_t>(examples.size());
  at::Tensor ids = torch::empty({rows, length_}, torch::kLong);
  at::Tensor firsts = torch::empty_like(ids);
  at::Tensor types = torch::empty_like(ids);
  at::Tensor others = torch::empty({rows}, torch::kLong);
  at::Tensor is_text = torch::empty({rows, length_}, torch::kBool);
  for (int64_t i = 0; i < rows; ++i) {
    Row row;
    fill(row, texts, examples[static_cast<size_t>(i)], epoch);
    const auto offset = static_cast<size_t>(i * length_);
    std::copy(
        row.ids.begin(),
        row.ids.end(),
        ids.mutable_data_ptr<int64_t>() + offset);
    std::copy(
        row.firsts.begin(),
        row.firsts.end(),
        firsts.mutable_data_ptr<int64_t>() + offset);
    std::copy(
        row.types.begin(),
        row.types.end(),
        types.mutable_data_ptr<int64_t>() + offset);
    std::transform(
        row.ids.begin(),
        row.ids.end(),
        is_text.mutable_data_ptr<bool>() + offset,
        [&](int64_t token) {
          return !is_special_[static_cast<size_t>(token)];
        });
    others[i] = row.is_other;
  }
  const MaskedTokens masked = mask_tokens(
      ids,
      is_text,
      draws_of(examples, epoch, seed_, 3 * length_),
      vocab_,
      options_.tokens,
      firsts);
  ModelInput batch;
  batch.input_ids = masked.ids;
  batch.labels = masked.labels;
  if (is_pair_) {
    batch.others["next_sentence_label"] = others;
    if (has_types_) {
      batch.token_type_ids = types;
    }
  }
  return batch;
}

} // namespace tessera::zoo
