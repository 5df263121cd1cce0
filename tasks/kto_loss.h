// SPDX-License-Identifier: Apache-2.0
#pragma once
// `KtoLoss` is Kahneman-Tversky optimization (KTO, arXiv:2402.01306) of answers
// that are good or bad each, without a counterpart.

#include "tessera/tasks/answer_inputs.h"
#include "tessera/tasks/batch_loss.h"
#include "tessera/tasks/preference_loss.h"

#include <memory>
#include <vector>

namespace tessera::tasks {

/// ModelInput::others besides AnswerInputs.
struct KtoInputs {
  /// [N] float32: 1 of a good answer, 0 of a bad one.
  static constexpr const char* kDesirable = "desirable";
  /// Before the names of a second batch, of N mismatched answers.
  static constexpr const char* kMismatched = "mismatched_";
};

/// The numbers of a scored answer, in the order of DataSet::outputs_of().
enum class KtoOutput { kReward, kMismatched };
inline constexpr int64_t kKtoOutputs = 2;

/// With the reward beta * (log p - log p_reference) and z = beta * max(0, kl),
/// weight * (1 - sigmoid(reward - z)) of a good answer, and
/// weight * (1 - sigmoid(z - reward)) of a bad one, as TRL has it.
/// @param rewards [N]
/// @param desirable [N] 1 or 0.
/// @param kl scalar, without gradient.
/// @return [N]
at::Tensor kto_losses(
    const at::Tensor& rewards,
    const at::Tensor& desirable,
    const at::Tensor& kl,
    const PreferenceOptions& options);

/// Batches are those of KtoBatches. `kl` of kto_losses() is the mean of
/// log p - log p_reference over the mismatched answers of the optimizer step,
/// of all ranks and micro-batches, for which begin_step() runs both models once
/// more. Dropout is off: the model is left in evaluation mode.
class KtoLoss : public BatchLoss {
 public:
  /// @param reference null: the base of the adapter.
  KtoLoss(
      const PreferenceOptions& options,
      std::unique_ptr<FrozenModel> reference);

  bool begins_steps() const override {
    return true;
  }
  void begin_step(
      zoo::Model& model,
      const std::vector<zoo::ModelInput>& batches,
      const SumOverRanks& sum_over_ranks) override;
  at::Tensor loss(zoo::Model& model, const zoo::ModelInput& batch) override;
  bool is_mean_over_labels() const override {
    return true;
  }
  std::optional<int64_t> count_labels(
      const zoo::ModelInput& batch) const override;
  const FrozenModel* frozen() const override {
    return reference_.frozen();
  }
  /// ModelOutput::logits are [N, kKtoOutputs], without gradient, and ::loss is
  /// that of the batch alone.
  zoo::ModelOutput score(zoo::Model& model, const zoo::ModelInput& batch)
      override;
  void add_score(
      const zoo::Head& head,
      const zoo::ScoredBatch& batch,
      zoo::ScoreSums& sums) const override;

 private:
  /// log p - log p_reference: [N] float32.
  at::Tensor log_ratios(zoo::Model& model, const zoo::ModelInput& batch);
  at::Tensor rewards(zoo::Model& model, const zoo::ModelInput& batch);
  at::Tensor mismatched_ratios(zoo::Model& model, const zoo::ModelInput& batch);

  PreferenceOptions options_;
  AnswerReference reference_;
  at::Tensor kl_; ///< of the step
};

} // namespace tessera::tasks
