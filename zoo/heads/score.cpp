// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/heads/score.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

namespace tessera::zoo {

double ScoredBatch::rows() const {
  return static_cast<double>(input.named().begin()->second.size(0));
}

void ScoreSums::add_loss(const ScoredBatch& batch, double batch_weight) {
  rows += batch.rows();
  if (batch_weight > 0) {
    loss += batch_weight * batch.output.loss.item<double>();
    weight += batch_weight;
  }
}

double ScoreSums::add_labels(
    const at::Tensor& labels,
    const at::Tensor& logits) {
  const auto count = labels.ne(-100).sum().item<double>();
  items += count;
  if (logits.defined()) {
    // -100 is never predicted.
    right += logits.argmax(-1).eq(labels).sum().item<double>();
  }
  return count;
}

void ScoreSums::add_numbers(
    const at::Tensor& targets,
    const at::Tensor& predictions) {
  const at::Tensor found = predictions.flatten().to(at::kDouble);
  const at::Tensor wanted = targets.flatten().to(at::kDouble);
  const at::Tensor more = at::stack({at::ones_like(found).sum(),
                                     found.sum(),
                                     wanted.sum(),
                                     found.square().sum(),
                                     wanted.square().sum(),
                                     (found * wanted).sum(),
                                     (found - wanted).square().sum()})
                              .cpu();
  for (size_t i = 0; i < moments.size(); ++i) {
    moments[i] += more.const_data_ptr<double>()[i];
  }
}

Score ScoreSums::total(Engine& engine, const Metric& metric) const {
  std::vector<double> all{loss, weight, rows, right, items};
  all.insert(all.end(), moments.begin(), moments.end());
  const at::Tensor sums = at::tensor(all, at::kDouble);
  engine.sum_over_ranks(sums);
  const auto* totals = sums.const_data_ptr<double>();
  Score score;
  score.loss = totals[0] / totals[1];
  score.examples = static_cast<int64_t>(totals[2]);
  score.items = static_cast<int64_t>(totals[4]);
  if (score.items > 0) {
    score.metric = metric;
    score.right = totals[3] / totals[4];
  }
  const double* m = totals + 5;
  const double covariance = m[0] * m[5] - m[1] * m[2];
  const double variances =
      (m[0] * m[3] - m[1] * m[1]) * (m[0] * m[4] - m[2] * m[2]);
  score.squared_error = m[6] / m[0];
  score.pearson = variances > 0 ? covariance / std::sqrt(variances)
                                : std::numeric_limits<double>::quiet_NaN();
  return score;
}

} // namespace tessera::zoo
