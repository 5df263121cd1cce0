// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BestScore` follows a metric of the held-out data over a run: the best value,
// and for how long there has been no better one.

#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/engine/trainer/training_task.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tessera::engine {

/// The best score of a run up to one of its checkpoints.
struct BestRecord {
  std::string metric; ///< without "heldout_"
  std::optional<double> value; ///< nothing: no score was finite
  int64_t step = 0; ///< of the value; 0: there is none
  int64_t since = 0; ///< scores since the best one
  /// Of the last score; nothing in checkpoints of before it was saved.
  std::optional<int64_t> scored_step;
  ScoredData data;

  /// "heldout_accuracy 0.917 of step 300".
  std::string text() const;
};

/// What a checkpoint of a run says of the best score; nothing if that run had
/// no trainer.
/// @throws tessera::Error as read_manifest().
std::optional<BestRecord> best_record(const std::filesystem::path& checkpoint);

class BestScore : public Checkpointable {
 public:
  /// @param metric "loss" or "heldout_loss"; of losses and perplexities the
  ///   lowest is the best, of others the highest.
  /// @param data that are scored.
  explicit BestScore(std::string metric, ScoredData data = {});

  /// Takes in the score after `step`.
  /// @return whether it is the best so far; NaN never is.
  /// @throws tessera::Error naming the metrics of the score if it lacks this
  ///   one.
  bool add(const TaskScore& score, int64_t step);

  /// Scores since the best one.
  int64_t since_best() const {
    return best_.since;
  }
  /// 0: there is none.
  int64_t step() const {
    return best_.step;
  }
  const BestRecord& record() const {
    return best_;
  }
  /// BestRecord::text().
  std::string text() const {
    return best_.text();
  }

  std::string name() const override;
  bool is_optional() const override {
    return true;
  }
  CheckpointState save_state() const override;
  /// Takes over the best score of the checkpoint, unless it is of another
  /// metric or of other data: such values cannot be compared, and nothing is
  /// the best until the next score, which the log says.
  void load_state(const CheckpointState& state) override;

 private:
  BestRecord best_;
  bool lower_is_better_;
};

} // namespace tessera::engine
