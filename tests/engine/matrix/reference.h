// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mixed precision as one writes it with plain LibTorch: low-precision weights
// in the model, float32 master weights in the optimizer.

#include "engine/matrix/matrix_net.h"
#include "tessera/engine/loss_scaler.h"

#include <torch/torch.h>

#include <cmath>
#include <vector>

namespace tessera::tests {

class Reference {
 public:
  /// @param net with float32 parameters; those that are not of norms become
  ///   `dtype`.
  Reference(
      MatrixNet net,
      at::ScalarType dtype,
      double lr,
      double eps,
      const LossScaleOptions& scale)
      : net_(std::move(net)), scaler_(scale, dtype == at::kHalf) {
    std::vector<at::Tensor> masters;
    for (const auto& item : net_->named_parameters()) {
      const at::Tensor& parameter = item.value();
      Weight weight{parameter, parameter.detach().clone()};
      if (item.key().find("norm") == std::string::npos) {
        parameter.set_data(parameter.detach().to(dtype));
      }
      if (parameter.requires_grad()) {
        weight.master.requires_grad_(true);
        masters.push_back(weight.master);
      }
      names_.push_back(item.key());
      weights_.push_back(std::move(weight));
    }
    optimizer_ = std::make_unique<torch::optim::AdamW>(
        masters, torch::optim::AdamWOptions(lr).eps(eps).weight_decay(0.01));
  }

  MatrixNet& net() {
    return net_;
  }

  /// Adds the gradients of a micro-batch to those of the masters, in float32.
  void backward(const at::Tensor& loss) {
    (loss * scaler_.scale()).backward();
    const c10::NoGradGuard no_grad;
    for (Weight& weight : weights_) {
      at::Tensor& gradient = weight.parameter.mutable_grad();
      if (gradient.defined()) {
        at::Tensor& sum = weight.master.mutable_grad();
        sum = sum.defined() ? sum + gradient.to(torch::kFloat)
                            : gradient.to(torch::kFloat);
        gradient = at::Tensor();
      }
    }
  }

  double scale() const {
    return scaler_.scale();
  }

  /// The unscaled gradient of parameter `i`, or undefined.
  at::Tensor gradient(size_t i) const {
    const at::Tensor& gradient = weights_[i].master.grad();
    return gradient.defined() ? gradient / scaler_.scale() : gradient;
  }

  /// @param max_norm 0: unclipped.
  /// @param overflow what some rank has seen.
  void step(double max_norm, bool overflow) {
    const c10::NoGradGuard no_grad;
    std::vector<at::Tensor> masters;
    for (Weight& weight : weights_) {
      at::Tensor& gradient = weight.master.mutable_grad();
      if (gradient.defined()) {
        gradient.div_(scaler_.scale());
        overflow = overflow || (scaler_.is_active() &&
                                !gradient.isfinite().all().item<bool>());
        masters.push_back(weight.master);
      }
    }
    if (!overflow) {
      if (max_norm > 0) {
        torch::nn::utils::clip_grad_norm_(masters, max_norm);
      }
      optimizer_->step();
      for (Weight& weight : weights_) {
        weight.parameter.copy_(weight.master);
      }
    }
    for (Weight& weight : weights_) {
      weight.master.mutable_grad() = at::Tensor();
    }
    scaler_.update(overflow);
  }

  const std::vector<std::string>& names() const {
    return names_;
  }
  /// What the optimizer knows of parameter `i`.
  const at::Tensor& master(size_t i) const {
    return weights_[i].master;
  }
  int64_t skipped_steps() const {
    return scaler_.skipped_steps();
  }

 private:
  struct Weight {
    at::Tensor parameter;
    at::Tensor master; ///< float32
  };
  MatrixNet net_;
  LossScaler scaler_;
  std::vector<std::string> names_;
  std::vector<Weight> weights_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

} // namespace tessera::tests
