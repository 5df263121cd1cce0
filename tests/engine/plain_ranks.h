// SPDX-License-Identifier: Apache-2.0
#pragma once
// Data-parallel training of plain LibTorch, all ranks in one process.

#include "support/average_over_ranks.h"
#include "support/ranks.h"

#include <torch/torch.h>

#include <functional>
#include <utility>
#include <vector>

namespace tessera::tests {

/// A copy of a model for every rank, with buffers of its own. Each sees its
/// rank's batches; the average of their gradients updates one copy, which the
/// others then follow.
template <typename Model>
class PlainRanks {
 public:
  /// @param make is called once a rank, with the same seed.
  /// @param reduces_once gradients of all micro-batches are added up before
  ///   their average is taken.
  /// @param shard_ranks as in average_over_ranks().
  PlainRanks(
      const std::function<Model()>& make,
      int ranks,
      uint64_t seed = 1,
      bool reduces_once = false,
      size_t shard_ranks = 0)
      : reduces_once_(reduces_once), shard_ranks_(shard_ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      torch::manual_seed(seed);
      models_.push_back(make());
    }
    sums_.resize(model()->parameters().size());
  }

  /// That is updated.
  Model& model() {
    return models_.front();
  }
  Model& of(int rank) {
    return models_[static_cast<size_t>(rank)];
  }
  int ranks() const {
    return static_cast<int>(models_.size());
  }

  /// Backward of what `loss` makes of every rank's copy, from the same random
  /// state. @return the loss of `rank`.
  at::Tensor backward(
      uint64_t seed,
      int rank,
      const std::function<at::Tensor(Model&, int rank)>& loss) {
    at::Tensor local;
    for (int r = 0; r < ranks(); ++r) {
      torch::manual_seed(seed);
      const at::Tensor value = loss(of(r), r);
      value.backward();
      if (r == rank) {
        local = value.detach();
      }
    }
    if (!reduces_once_) {
      reduce();
    }
    return local;
  }

  /// Gives model() the averages as its gradients.
  void finish_gradients() {
    if (reduces_once_) {
      reduce();
    }
    const auto parameters = model()->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = std::exchange(sums_[i], {});
    }
  }

  /// Drops the gradients; all copies get the weights of model().
  void follow() {
    const c10::NoGradGuard no_grad;
    const auto weights = model()->parameters();
    for (Model& copy : models_) {
      const auto parameters = copy->parameters();
      for (size_t i = 0; i < weights.size(); ++i) {
        parameters[i].mutable_grad() = at::Tensor();
        if (!parameters[i].is_same(weights[i])) {
          parameters[i].copy_(weights[i]);
        }
      }
    }
  }

 private:
  void reduce() {
    const c10::NoGradGuard no_grad;
    std::vector<std::vector<at::Tensor>> gradients(sums_.size());
    for (Model& copy : models_) {
      const auto parameters = copy->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        gradients[i].push_back(
            std::exchange(parameters[i].mutable_grad(), at::Tensor()));
      }
    }
    for (size_t i = 0; i < sums_.size(); ++i) {
      const at::Tensor average =
          average_over_ranks(std::move(gradients[i]), shard_ranks_);
      if (average.defined()) {
        sums_[i] = sums_[i].defined() ? sums_[i].add_(average) : average;
      }
    }
  }

  bool reduces_once_;
  size_t shard_ranks_;
  std::vector<Model> models_;
  std::vector<at::Tensor> sums_; ///< of the averages of micro-batches
};

} // namespace tessera::tests
