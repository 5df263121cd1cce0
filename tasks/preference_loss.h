// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PreferenceLoss` is direct preference optimization (DPO, arXiv:2305.18290) of
// pairs of answers.

#include "tessera/tasks/batch_loss.h"
#include "tessera/tasks/frozen_model.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::tasks {

enum class PreferenceLossKind { kSigmoid, kIpo };

/// The section `preference`.
struct PreferenceOptions {
  PreferenceLossKind loss = PreferenceLossKind::kSigmoid;
  double beta = 0.1;
  double label_smoothing = 0;
  bool reference_free = false;
  /// Instead of the base of an adapter.
  std::optional<FrozenModelOptions> reference = {};
};

void visit_fields(runtime::OptionFields& fields, PreferenceOptions& options);

/// Of P pairs.
struct PairScores {
  at::Tensor losses; ///< [P] float32
  at::Tensor chosen; ///< [P] rewards, without gradient
  at::Tensor rejected; ///< [P] likewise
};

/// The loss of each pair, and the rewards beta * (log p - log p_reference).
/// With h = (log p(chosen) - log p(rejected)), less the same of the reference,
///
/// - kSigmoid: -(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h), with the
///   label smoothing s (conservative DPO),
/// - kIpo: (h - 1 / (2 beta))^2, with log-probabilities that are means over the
///   tokens of the answer (arXiv:2310.12036, as TRL has it).
///
/// @param policy [2 P] float32, sums of the log-probabilities of the tokens of
///   answers, chosen and rejected by turns.
/// @param reference [2 P] likewise, without gradient; undefined: 0 everywhere.
/// @param lengths [2 P] tokens of the answers.
PairScores pair_scores(
    const at::Tensor& policy,
    const at::Tensor& reference,
    const at::Tensor& lengths,
    const PreferenceOptions& options);

/// Batches are those of PreferenceBatches. The reference is the base of the
/// model's adapter, another model, or none. Dropout is off, also in training,
/// as in TRL: the model is left in evaluation mode.
class PreferenceLoss : public BatchLoss {
 public:
  /// @param reference null: the base of the adapter, or none.
  PreferenceLoss(
      const PreferenceOptions& options,
      std::unique_ptr<FrozenModel> reference);

  at::Tensor loss(zoo::Model& model, const zoo::ModelInput& batch) override;
  bool is_mean_over_labels() const override {
    return true;
  }
  /// Pairs, of which packed sequences have different numbers.
  std::optional<int64_t> count_labels(
      const zoo::ModelInput& batch) const override;
  const FrozenModel* frozen() const override {
    return reference_.get();
  }
  /// ModelOutput::logits are [P, kPairOutputs].
  zoo::ModelOutput score(zoo::Model& model, const zoo::ModelInput& batch)
      override;
  void add_score(
      const zoo::Head& head,
      const zoo::ScoredBatch& batch,
      zoo::ScoreSums& sums) const override;

 private:
  PairScores scores(zoo::Model& model, const zoo::ModelInput& batch);
  at::Tensor reference_of(zoo::Model& model, const zoo::ModelInput& batch);

  PreferenceOptions options_;
  std::unique_ptr<FrozenModel> reference_;
};

} // namespace tessera::tasks
