// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RewardLoss` trains a model that gives texts a score, its reward, to give the
// better of two answers the higher one.

#include "tessera/tasks/pair_loss.h"

#include <cstdint>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::tasks {

/// The section `reward`.
struct RewardOptions {
  double center_weight = 0;
};

void visit_fields(runtime::OptionFields& fields, RewardOptions& options);

/// How much higher the reward of the better answer of each pair is to be, in
/// ModelInput::others: [P] float32. It may be missing.
inline constexpr const char* kRewardMargins = "reward_margins";

/// With the rewards c and r of the better and the worse answer and the margin
/// m, -log sigmoid(c - r - m) (Bradley-Terry; arXiv:2307.09288, equation 2) +
/// center_weight * (c + r)^2 (arXiv:2312.09244), as TRL has them.
/// @param rewards [2 P], chosen and rejected by turns.
/// @param margins [P]; undefined: 0.
PairScores reward_scores(
    const at::Tensor& rewards,
    const at::Tensor& margins,
    const RewardOptions& options);

/// Batches are those of PreferenceBatches with PairKind::kTexts, the model is a
/// classifier with one output.
class RewardLoss : public PairLoss {
 public:
  explicit RewardLoss(const RewardOptions& options) : options_(options) {}

 protected:
  PairScores scores(zoo::Model& model, const zoo::ModelInput& batch) override;
  int64_t pairs_in(const zoo::ModelInput& batch) const override {
    return batch.input_ids.size(0) / 2;
  }

 private:
  RewardOptions options_;
};

} // namespace tessera::tasks
