// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BatchLoss` is what a task trains for where that is not the loss that the
// model computes itself; `LossMean` is what the loss of a step is the mean
// over.

#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/heads/score.h"
#include "tessera/zoo/models/model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tessera::tasks {

class FrozenModel;

/// What the loss of an optimizer step is the mean over, where examples have
/// different numbers of labels, as of tokens or packed pairs of answers.
enum class LossMean {
  /// All labels of the step, whose loss and gradient then do not depend on how
  /// its rows are divided into ranks and micro-batches.
  kLabels,
  /// Micro-batches, each the mean over its own labels: those of a micro-batch
  /// with few labels weigh more.
  kMicroBatches,
};

/// Engine::sum_over_ranks().
using SumOverRanks = std::function<void(const at::Tensor& values)>;

/// Not for pipeline stages. Functions are collective over the ranks of the job.
class BatchLoss {
 public:
  virtual ~BatchLoss() = default;

  /// Whether begin_step() sees the batches of a step, all of which are then
  /// loaded before its first forward.
  virtual bool begins_steps() const {
    return false;
  }
  /// Called before loss() of the batches of an optimizer step on this rank.
  virtual void begin_step(
      zoo::Model& /*model*/,
      const std::vector<zoo::ModelInput>& /*batches*/,
      const SumOverRanks& /*sum_over_ranks*/) {}

  /// The loss of a training batch, scalar, with its autograd graph.
  virtual at::Tensor loss(zoo::Model& model, const zoo::ModelInput& batch) = 0;

  /// The model that is run beside the trained one; null: there is none.
  virtual const FrozenModel* frozen() const {
    return nullptr;
  }

  /// Runs a batch that is scored, without gradients; by default as the model
  /// does.
  virtual zoo::ModelOutput score(
      zoo::Model& model,
      const zoo::ModelInput& batch) {
    return model.forward(batch);
  }
  /// Adds a scored batch to `sums`; by default as the head of the model does.
  virtual void add_score(
      const zoo::Head& head,
      const zoo::ScoredBatch& batch,
      zoo::ScoreSums& sums) const {
    head.add_score(batch, sums);
  }

  /// Whether loss() is the mean over the labels of tokens, where the head has
  /// such, or over count_labels(); see LossMean.
  virtual bool is_mean_over_labels() const {
    return false;
  }
  /// What loss() of a batch is the mean over; nothing: the labels of tokens.
  virtual std::optional<int64_t> count_labels(
      const zoo::ModelInput& /*batch*/) const {
    return std::nullopt;
  }
};

} // namespace tessera::tasks
