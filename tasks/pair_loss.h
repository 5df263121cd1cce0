// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PairLoss` is a loss of pairs of a better and a worse answer to the same
// prompt, each of which gets a reward.

#include "tessera/tasks/batch_loss.h"
#include "tessera/zoo/data/data_set.h"

#include <cstdint>
#include <optional>

namespace tessera::tasks {

/// Of P pairs.
struct PairScores {
  at::Tensor losses; ///< [P] float32
  at::Tensor chosen; ///< [P] rewards, without gradient
  at::Tensor rejected; ///< [P] likewise
};

/// The numbers of a scored pair, in the order of DataSet::outputs_of().
enum class PairOutput { kLoss, kChosen, kRejected };
inline constexpr int64_t kPairOutputs = 3;

/// The mean over the pairs of a batch. Dropout is off, also in training, as in
/// TRL: the model is left in evaluation mode.
class PairLoss : public BatchLoss {
 public:
  at::Tensor loss(zoo::Model& model, const zoo::ModelInput& batch) override;
  bool is_mean_over_labels() const override {
    return true;
  }
  /// Pairs, of which packed sequences have different numbers.
  std::optional<int64_t> count_labels(
      const zoo::ModelInput& batch) const override {
    return pairs_in(batch);
  }
  /// ModelOutput::logits are [P, kPairOutputs].
  zoo::ModelOutput score(zoo::Model& model, const zoo::ModelInput& batch)
      override;
  void add_score(
      const zoo::Head& head,
      const zoo::ScoredBatch& batch,
      zoo::ScoreSums& sums) const override;

 protected:
  /// @param model in evaluation mode.
  virtual PairScores scores(
      zoo::Model& model,
      const zoo::ModelInput& batch) = 0;
  virtual int64_t pairs_in(const zoo::ModelInput& batch) const = 0;

 private:
  PairScores evaluated(zoo::Model& model, const zoo::ModelInput& batch);
};

/// Loss, accuracy (the share of pairs whose better answer has the higher
/// reward), margin and rewards.
/// @param outputs [P, kPairOutputs] float64
TaskScore pair_report(const at::Tensor& outputs);

} // namespace tessera::tasks
