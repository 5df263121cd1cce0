// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/heads/token_heads.h"

#include "tessera/zoo/inputs/column_checks.h"
#include "tessera/zoo/layers/losses.h"

#include <torch/types.h>

namespace tessera::zoo {

namespace {

constexpr const char* kPairLabel = "next_sentence_label";

} // namespace

void TokenHead::check_labels(const ColumnChecks& examples) const {
  examples.need("labels");
}

void TokenHead::add_score(const ScoredBatch& batch, ScoreSums& sums) const {
  sums.add_loss(batch, sums.add_labels(batch.input.labels, batch.logits()));
}

void NextTokenHead::complete(NamedTensors& batch) const {
  if (batch.count("labels") == 0) {
    const at::Tensor& ids = batch.at("input_ids");
    const at::Tensor mask = find(batch, "attention_mask");
    batch["labels"] = mask.defined() ? ids.masked_fill(mask.eq(0), -100) : ids;
  }
}

bool NextTokenHead::has_labels(const NamedTensors& batch) const {
  // Nothing predicts the first.
  return batch.at("labels").slice(1, 1).ne(-100).any().item<bool>();
}

void NextTokenHead::add_score(const ScoredBatch& batch, ScoreSums& sums) const {
  const at::Tensor targets = next_token_targets(batch.input.labels);
  sums.add_loss(batch, sums.add_labels(targets, batch.logits()));
}

std::vector<std::string> MaskedTokenHead::targets() const {
  return follows_ ? std::vector<std::string>{"labels", kPairLabel}
                  : TokenHead::targets();
}

void MaskedTokenHead::check_labels(const ColumnChecks& examples) const {
  if (examples.options().token_mask) {
    examples.refuse("labels", "data.mask makes labels; remove one of them");
  } else {
    examples.need("labels", ", or data.mask, which makes them");
  }
  if (follows_) {
    examples.need(kPairLabel);
  }
}

void MaskedTokenHead::draw(
    NamedTensors& batch,
    const ExampleOptions& options,
    const BatchDraws& draws) const {
  if (!options.token_mask) {
    return;
  }
  at::Tensor& ids = batch.at("input_ids");
  const MaskedTokens masked = mask_tokens(
      ids,
      find(batch, "attention_mask"),
      draws(3 * ids.size(1)),
      vocab(),
      *options.token_mask);
  ids = masked.ids;
  batch["labels"] = masked.labels;
}

bool MaskedTokenHead::has_labels(const NamedTensors& batch) const {
  return TokenHead::has_labels(batch) ||
         (follows_ && count_labels(find(batch, kPairLabel)) > 0);
}

LossCounts MaskedTokenHead::loss_counts(const ModelInput& batch) const {
  LossCounts counts = TokenHead::loss_counts(batch);
  if (follows_) {
    counts.second = count_labels(find(batch.others, kPairLabel));
  }
  return counts;
}

void MaskedTokenHead::add_score(const ScoredBatch& batch, ScoreSums& sums)
    const {
  if (!follows_) {
    TokenHead::add_score(batch, sums);
    return;
  }
  sums.add_labels(
      batch.input.labels,
      batch.has_metric ? batch.output.others.at("prediction_logits")
                       : at::Tensor());
  const LossCounts counts = loss_counts(batch.input);
  const at::Tensor& of_rows = batch.output.others.at(kSecondLoss);
  sums.add_losses(
      batch,
      {batch.output.loss - of_rows, counts.first},
      {of_rows, counts.second});
}

void SecondTextHead::check_labels(const ColumnChecks& examples) const {
  const auto& labels = examples.need("labels");
  examples.dims(labels, 1, "[rows, length]");
  examples.divides(labels);
  examples.shape("decoder_input_ids", labels.row_shape);
  examples.shape("decoder_attention_mask", labels.row_shape);
}

} // namespace tessera::zoo
