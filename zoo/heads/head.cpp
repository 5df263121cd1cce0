// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/heads/head.h"

#include <torch/types.h>

namespace tessera::zoo {

bool Head::has_labels(const NamedTensors& batch) const {
  const at::Tensor labels = find(batch, "labels");
  return !labels.defined() || labels.is_floating_point() ||
         labels.ne(-100).any().item<bool>();
}

LossCounts Head::loss_counts(const ModelInput& batch) const {
  switch (labels()) {
    case HeadLabels::kTokens:
      return {count_labels(batch.labels)};
    case HeadLabels::kNextTokens: // nothing predicts the first
      return {
          batch.labels.defined() ? count_labels(batch.labels.slice(1, 1)) : 0};
    default:
      return {static_cast<double>(batch.named().begin()->second.size(0))};
  }
}

bool Head::has_equal_counts(const ColumnChecks& /*examples*/) const {
  return labels() != HeadLabels::kTokens && labels() != HeadLabels::kNextTokens;
}

void Head::add_score(const ScoredBatch& batch, ScoreSums& sums) const {
  sums.add_loss(batch, batch.rows());
}

double count_labels(const at::Tensor& labels) {
  return labels.defined() ? labels.ne(-100).sum().item<double>() : 0;
}

at::Tensor find(const NamedTensors& batch, const std::string& name) {
  const auto found = batch.find(name);
  return found == batch.end() ? at::Tensor() : found->second;
}

} // namespace tessera::zoo
