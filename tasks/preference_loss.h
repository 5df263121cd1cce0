// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PreferenceLoss` is the loss of a better and a worse answer to the same
// prompt: DPO and its relatives, a row of PreferenceRule each. That of answers
// without a counterpart is `KtoLoss`.

#include "tessera/tasks/answer_inputs.h"
#include "tessera/tasks/frozen_model.h"
#include "tessera/tasks/pair_loss.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::tasks {

enum class PreferenceLossKind {
  kSigmoid,
  kRobust,
  kHinge,
  kIpo,
  kSimpo,
  kCpo,
  kOrpo,
  kKto,
};

/// The section `preference`.
struct PreferenceOptions {
  PreferenceLossKind loss = PreferenceLossKind::kSigmoid;
  double beta = 0.1;
  double label_smoothing = 0; ///< where PreferenceRule::has_smoothing
  double gamma = 0.5; ///< of kSimpo: the margin, as a reward
  /// Of the negative log-likelihood of the better answer of pairs; nullopt:
  /// PreferenceRule::nll_weight.
  std::optional<double> nll_weight = {};
  double desirable_weight = 1; ///< of kKto: of good answers
  double undesirable_weight = 1; ///< of kKto: of bad ones
  bool reference_free = false; ///< where pairs have a reference
  /// Instead of the base of an adapter, likewise.
  std::optional<FrozenModelOptions> reference = {};

  /// Whether log-probabilities are less those of a reference.
  bool has_reference() const;
};

void visit_fields(runtime::OptionFields& fields, PreferenceOptions& options);

/// What one value of `preference.loss` means.
struct PreferenceRule {
  const char* name;
  PreferenceLossKind kind;
  /// Log-probabilities are less those of a reference.
  bool has_reference;
  /// They are means over the tokens of an answer, not sums.
  bool has_means;
  bool has_smoothing; ///< PreferenceOptions::label_smoothing is used
  double nll_weight; ///< default of PreferenceOptions::nll_weight
  /// The losses of P pairs, without the negative log-likelihood. Null: it is a
  /// loss of answers that are not in pairs, see kto_losses().
  /// @param chosen, rejected [P] float32 log-probabilities.
  at::Tensor (*losses)(
      const at::Tensor& chosen,
      const at::Tensor& rejected,
      const PreferenceOptions& options);

  bool has_pairs() const {
    return losses != nullptr;
  }
};

/// All of them.
const std::vector<PreferenceRule>& preference_rules();
const PreferenceRule& rule_of(PreferenceLossKind kind);

/// The loss of each pair, and the rewards beta * (log p - log p_reference). For
/// c and r, the log-probabilities of the better and the worse answer, h = c - r
/// and the label smoothing s,
///
/// - kSigmoid: -(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h), DPO
///   (arXiv:2305.18290), with s conservative,
/// - kRobust: (-(1 - s) log sigmoid(beta h) + s log sigmoid(-beta h)) /
///   (1 - 2 s) (arXiv:2403.00409),
/// - kHinge: max(0, 1 - beta h) (arXiv:2305.10425),
/// - kIpo: (h - 1 / (2 beta))^2 of means (arXiv:2310.12036, as TRL has it),
/// - kSimpo: kSigmoid of h - gamma / beta, of means (arXiv:2405.14734),
/// - kCpo: kSigmoid (arXiv:2401.08417),
/// - kOrpo: -beta log sigmoid(h - log(1 - e^c) + log(1 - e^r)), of means
///   (arXiv:2403.07691).
///
/// Each is added nll_weight * (-log p(chosen) / its tokens).
/// @param policy [2 P] float32, sums of the log-probabilities of the tokens of
///   answers, chosen and rejected by turns.
/// @param reference [2 P] likewise, without gradient; undefined: 0 everywhere.
/// @param lengths [2 P] tokens of the answers.
PairScores pair_scores(
    const at::Tensor& policy,
    const at::Tensor& reference,
    const at::Tensor& lengths,
    const PreferenceOptions& options);

/// Batches are those of PreferenceBatches.
class PreferenceLoss : public PairLoss {
 public:
  /// @param reference null: the base of the adapter, or none.
  PreferenceLoss(
      const PreferenceOptions& options,
      std::unique_ptr<FrozenModel> reference);

  const FrozenModel* frozen() const override {
    return reference_.frozen();
  }

 protected:
  PairScores scores(zoo::Model& model, const zoo::ModelInput& batch) override;
  int64_t pairs_in(const zoo::ModelInput& batch) const override;

 private:
  PreferenceOptions options_;
  AnswerReference reference_;
};

} // namespace tessera::tasks
