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

void MeanSums::add(const LossPart& part) {
  if (part.weight > 0) {
    sum += part.weight * part.loss.item<double>();
    weight += part.weight;
  }
}

void ScoreSums::add_loss(const ScoredBatch& batch, double weight) {
  rows += batch.rows();
  losses[0].add({batch.output.loss, weight});
}

void ScoreSums::add_losses(
    const ScoredBatch& batch,
    const LossPart& first,
    const LossPart& second) {
  rows += batch.rows();
  losses[0].add(first);
  losses[1].add(second);
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
  std::vector<double> all{rows, right, items};
  all.insert(all.end(), moments.begin(), moments.end());
  for (const MeanSums& part : losses) {
    all.insert(all.end(), {part.sum, part.weight});
  }
  const at::Tensor sums = at::tensor(all, at::kDouble);
  engine.sum_over_ranks(sums);
  const auto* totals = sums.const_data_ptr<double>();
  Score score;
  score.examples = static_cast<int64_t>(totals[0]);
  score.items = static_cast<int64_t>(totals[2]);
  if (score.items > 0) {
    score.metric = metric;
    score.right = totals[1] / totals[2];
  }
  const double* m = totals + 3;
  const double covariance = m[0] * m[5] - m[1] * m[2];
  const double variances =
      (m[0] * m[3] - m[1] * m[1]) * (m[0] * m[4] - m[2] * m[2]);
  score.squared_error = m[6] / m[0];
  score.pearson = variances > 0 ? covariance / std::sqrt(variances)
                                : std::numeric_limits<double>::quiet_NaN();
  const double* part = m + moments.size();
  bool counts = false;
  for (size_t i = 0; i < losses.size(); ++i, part += 2) {
    if (part[1] > 0) {
      score.loss += part[0] / part[1];
      counts = true;
    }
  }
  if (!counts) {
    score.loss = std::numeric_limits<double>::quiet_NaN();
  }
  return score;
}

} // namespace tessera::zoo
