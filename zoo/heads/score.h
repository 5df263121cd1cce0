// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ScoreSums` adds up what is measured of scored batches; `Score` is the result
// over all ranks.

#include "tessera/engine/engine.h"
#include "tessera/zoo/inputs/model_input.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::zoo {

/// What is measured besides the loss.
struct Metric {
  std::string name; ///< "accuracy"; empty: nothing
  std::string items; ///< its unit: "examples", "tokens", "answers"
};

struct Score {
  double loss = 0; ///< mean
  int64_t examples = 0;
  Metric metric; ///< without a name if nothing is measured
  int64_t items = 0; ///< those that have a label
  double right = 0; ///< fraction of the items
  /// Of heads that predict numbers.
  double squared_error = 0; ///< mean
  double pearson = 0; ///< correlation; NaN if either side is constant
  /// DataSet::outputs_of() all examples, in their order: float64 [examples,
  /// outputs] on the CPU. Undefined unless outputs_per_example() asks for them.
  at::Tensor outputs;
  /// The new tokens of DataSet::prompts(), without what ends them.
  std::vector<std::vector<int64_t>> generated;
};

struct ScoredBatch {
  const ModelInput& input;
  const ModelOutput& output;
  bool has_metric; ///< else the input has ModelInput::loss_only

  double rows() const;
  /// ModelOutput::logits; undefined if the metric is not measured.
  at::Tensor logits() const {
    return has_metric ? output.logits : at::Tensor();
  }
};

/// What a loss is the mean over, or what its two parts are; see kSecondLoss.
struct LossCounts {
  double first = 0;
  double second = 0;
};

/// A loss of a batch that is a mean.
struct LossPart {
  at::Tensor loss;
  double weight; ///< what it is the mean over; 0: it does not count
};

/// The sum of means, times what they are over.
struct MeanSums {
  double sum = 0;
  double weight = 0;

  void add(const LossPart& part);
};

struct ScoreSums {
  /// The loss is the sum of its parts, each the mean over its own items; a part
  /// without any is 0, a loss without any NaN.
  std::array<MeanSums, 2> losses{};
  double rows = 0;
  double right = 0; ///< items that are predicted correctly
  double items = 0; ///< items that have a label
  std::array<double, 7> moments{}; ///< see add_numbers()

  /// @param weight what the batch's loss is the mean over.
  void add_loss(const ScoredBatch& batch, double weight);
  /// Of a loss that is the sum of two means.
  void add_losses(
      const ScoredBatch& batch,
      const LossPart& first,
      const LossPart& second);
  /// Items are labels other than -100.
  /// @param logits [..., classes]; undefined: they are only counted.
  /// @return their number.
  double add_labels(const at::Tensor& labels, const at::Tensor& logits);
  /// Moments of predictions and targets.
  void add_numbers(const at::Tensor& targets, const at::Tensor& predictions);

  /// Sums over all ranks of the job. Collective.
  /// @param metric that was measured.
  Score total(Engine& engine, const Metric& metric) const;
};

} // namespace tessera::zoo
