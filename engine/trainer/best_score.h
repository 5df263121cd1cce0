// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BestScore` follows a metric of the held-out data over a run: the best value,
// and for how long there has been no better one.

#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/engine/trainer/training_task.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::engine {

class BestScore : public Checkpointable {
 public:
  /// @param metric "loss" or "heldout_loss"; of losses and perplexities the
  ///   lowest is the best, of others the highest.
  explicit BestScore(std::string metric);

  /// Takes in the score after `step`.
  /// @return whether it is the best so far; NaN never is.
  /// @throws tessera::Error naming the metrics of the score if it lacks this
  ///   one.
  bool add(const TaskScore& score, int64_t step);

  /// Scores since the best one.
  int64_t since_best() const {
    return since_best_;
  }
  /// 0: there is none.
  int64_t step() const {
    return step_;
  }
  /// "heldout_accuracy 0.917 of step 300".
  std::string text() const;

  std::string name() const override {
    return "best score";
  }
  bool is_optional() const override {
    return true;
  }
  CheckpointState save_state() const override;
  void load_state(const CheckpointState& state) override;

 private:
  std::string metric_; ///< without "heldout_"
  bool lower_is_better_;
  std::optional<double> value_;
  int64_t step_ = 0;
  int64_t since_best_ = 0;
};

} // namespace tessera::engine
