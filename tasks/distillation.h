// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DistillationLoss` trains a model on the outputs of a larger one, its teacher
// (arXiv:1503.02531).

#include "tessera/tasks/batch_loss.h"
#include "tessera/tasks/frozen_model.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::tasks {

/// The section `distill`.
struct DistillationOptions {
  FrozenModelOptions model;
  double temperature = 2;
  double alpha = 0.5;
  double hidden_weight = 0;
  /// Of equal length; 0: the embeddings, n: the output of layer n.
  std::vector<int64_t> student_layers;
  std::vector<int64_t> teacher_layers;
};

void visit_fields(runtime::OptionFields& fields, DistillationOptions& options);

/// @throws tessera::Error on options that do not fit each other.
void check(const DistillationOptions& options);

/// alpha * distillation_loss() + (1 - alpha) * the model's own loss +
/// hidden_weight * the mean, over the pairs of layers, of the mean squared
/// difference of their hidden states at tokens that are not padding. Soft
/// targets are taken where the model has a label. Scores are the model's own.
class DistillationLoss : public BatchLoss {
 public:
  /// @param head of the model that is trained; must outlive this object.
  /// @throws tessera::Error if it does not predict one of several classes, or
  ///   the teacher predicts others.
  DistillationLoss(
      const DistillationOptions& options,
      const zoo::Model& student,
      const zoo::Head& head,
      std::unique_ptr<FrozenModel> teacher);

  at::Tensor loss(zoo::Model& model, const zoo::ModelInput& batch) override;
  bool is_mean_over_labels() const override {
    return true;
  }
  const FrozenModel* frozen() const override {
    return teacher_.get();
  }

 private:
  at::Tensor hidden_loss(
      const zoo::ModelInput& batch,
      const zoo::ModelOutput& student,
      const zoo::ModelOutput& teacher) const;

  DistillationOptions options_;
  const zoo::Head& head_;
  std::unique_ptr<FrozenModel> teacher_;
};

} // namespace tessera::tasks
