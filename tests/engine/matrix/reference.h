// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mixed precision of several ranks as one writes it with plain LibTorch, in one
// process: low-precision weights in the model, float32 master weights in the
// optimizer, which get the average of the gradients of all ranks' batches.

#include "engine/matrix/matrix_net.h"
#include "support/average_over_ranks.h"
#include "support/plain_adamw.h"
#include "tessera/engine/optim/loss_scaler.h"

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tests {

struct ReferenceOptions {
  at::ScalarType dtype = at::kFloat; ///< of all parameters but those of norms
  double lr = 0;
  double eps = 0;
  LossScaleOptions loss_scale;
  int ranks = 1;
  size_t shard_ranks = 0; ///< see average_over_ranks()
  /// Gradients of micro-batches are added up before their average is taken.
  bool reduces_once = false;
};

class Reference {
 public:
  /// @param net with float32 parameters.
  Reference(MatrixNet net, const ReferenceOptions& options)
      : net_(std::move(net)),
        options_(options),
        scaler_(options.loss_scale, options.dtype == at::kHalf) {
    std::vector<at::Tensor> masters;
    for (const auto& item : net_->named_parameters()) {
      const at::Tensor& parameter = item.value();
      Weight weight{
          parameter,
          parameter.detach().clone(),
          parameter.detach().clone(),
          std::vector<at::Tensor>(static_cast<size_t>(options.ranks))};
      if (item.key().find("norm") == std::string::npos) {
        parameter.set_data(parameter.detach().to(options.dtype));
      }
      if (parameter.requires_grad()) {
        weight.master.requires_grad_(true);
        masters.push_back(weight.master);
      }
      names_.push_back(item.key());
      weights_.push_back(std::move(weight));
    }
    optimizer_ = std::make_unique<PlainAdamW>(
        masters, PlainAdamWOptions{.lr = options.lr, .eps = options.eps});
  }

  MatrixNet& net() {
    return net_;
  }

  /// Backward of every rank's micro-batch. @return the loss of `rank`.
  at::Tensor backward(
      int rank,
      const std::function<at::Tensor(MatrixNet&, int rank)>& loss_of) {
    at::Tensor local;
    for (int r = 0; r < options_.ranks; ++r) {
      const at::Tensor loss = loss_of(net_, r);
      (loss * scaler_.scale()).backward();
      if (r == rank) {
        local = loss.detach();
      }
      const c10::NoGradGuard no_grad;
      for (Weight& weight : weights_) {
        at::Tensor& gradient = weight.parameter.mutable_grad();
        if (gradient.defined()) {
          add(weight.of_ranks[static_cast<size_t>(r)],
              std::exchange(gradient, {}).to(torch::kFloat));
        }
      }
    }
    if (!options_.reduces_once) {
      reduce();
    }
    return local;
  }

  /// Ends the last backward of a step.
  void finish_gradients() {
    if (options_.reduces_once) {
      reduce();
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
        std::vector<at::Tensor> gradients;
        for (const at::Tensor& master : masters) {
          gradients.push_back(master.grad());
        }
        clip_plain_gradients(gradients, max_norm);
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
  /// And what it was in the beginning.
  const at::Tensor& start(size_t i) const {
    return weights_[i].start;
  }

 private:
  struct Weight {
    at::Tensor parameter;
    at::Tensor master; ///< float32
    at::Tensor start; ///< master before training
    std::vector<at::Tensor> of_ranks; ///< gradients, float32
  };

  static void add(at::Tensor& sum, at::Tensor value) {
    sum = sum.defined() ? sum + value : std::move(value);
  }

  /// Adds the average over the ranks to the gradients of the masters.
  void reduce() {
    const c10::NoGradGuard no_grad;
    for (Weight& weight : weights_) {
      at::Tensor average =
          average_over_ranks(weight.of_ranks, options_.shard_ranks);
      if (average.defined()) {
        add(weight.master.mutable_grad(), std::move(average));
      }
      weight.of_ranks.assign(weight.of_ranks.size(), {});
    }
  }

  MatrixNet net_;
  ReferenceOptions options_;
  LossScaler scaler_;
  std::vector<std::string> names_;
  std::vector<Weight> weights_;
  std::unique_ptr<PlainAdamW> optimizer_;
};

} // namespace tessera::tests
