// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/objective.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/data/blank_objective.h"
#include "tessera/zoo/data/masked_objective.h"
#include "tessera/zoo/data/span_objective.h"
#include "tessera/zoo/data/token_batches.h"

#include <algorithm>

namespace tessera::zoo {

ObjectiveKind objective_of(
    const ObjectiveOptions& options,
    const Head& head,
    const std::string& architecture) {
  const std::vector<ObjectiveKind> kinds = head.objectives();
  TESSERA_CHECK(
      !kinds.empty(),
      "language_model: a {} is not pretrained on tokens; set a model.folder or model.architecture that is, such as GPT2LMHeadModel, LlamaForCausalLM, BertForMaskedLM, T5ForConditionalGeneration or GLMForConditionalGeneration",
      architecture);
  if (!options.kind) {
    return kinds.front();
  }
  TESSERA_CHECK(
      std::find(kinds.begin(), kinds.end(), *options.kind) != kinds.end(),
      "data.objective is \"{}\", which a {} cannot be trained on; its objective is \"{}\"",
      name_of(*options.kind),
      architecture,
      name_of(kinds.front()));
  return *options.kind;
}

std::unique_ptr<const Objective> make_objective(
    ObjectiveKind kind,
    const ObjectiveOptions& options,
    const Head& head,
    const ObjectiveSetting& setting) {
  const auto tokenizer =
      objective_tokenizer(options.tokenizer, setting.model_folder);
  switch (kind) {
    case ObjectiveKind::kMasked:
      return std::make_unique<MaskedObjective>(
          options, tokenizer, head, setting);
    case ObjectiveKind::kSpanCorruption:
      return std::make_unique<SpanObjective>(options, tokenizer, head, setting);
    case ObjectiveKind::kBlankFilling:
      return std::make_unique<BlankObjective>(
          options, tokenizer, head, setting);
    case ObjectiveKind::kPrefix:
      return std::make_unique<PrefixObjective>(
          options, tokenizer, head, setting);
    case ObjectiveKind::kNextToken:
      break;
  }
  TESSERA_CHECK(false, "the next token is the objective of PackedBatches");
}

ModelInput ObjectiveBatches::make(
    const std::vector<size_t>& examples,
    int64_t epoch,
    bool loss_only) const {
  ModelInput batch = objective_->make(texts_, examples, epoch);
  batch.loss_only = loss_only;
  return batch;
}

TaskScore ObjectiveBatches::report(const Score& score) const {
  if (objective_->has_token_loss()) {
    return token_score(score);
  }
  return {
      formatted(
          "loss {:.4f} over {} tokens in {} examples",
          score.loss,
          score.items,
          score.examples),
      {{"heldout_loss", score.loss},
       {"heldout_tokens", score.items},
       {"heldout_examples", score.examples}}};
}

} // namespace tessera::zoo
