// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TrainingTask` gives the trainer batches, losses and scores; the trainer
// knows neither the data nor the model.

#include "tessera/engine/data/epoch_batches.h"

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// The loss of one micro-batch, with its autograd graph.
struct MicroBatch {
  at::Tensor loss; ///< scalar, the mean over the micro-batch
  int64_t tokens = 0; ///< on this rank, padding included
};

/// A score of held-out data, for people and for programs.
struct TaskScore {
  std::string text; ///< "accuracy 91.7 % of 24 texts, ..."
  nlohmann::ordered_json values; ///< by name in result.json
};

/// The held-out data of a run.
struct ScoredData {
  std::string name; ///< "texts/valid.jsonl"
  /// Differs for other data, e.g. a checksum; empty: not known.
  std::string identity;
};

/// One rank's share of the data and the model's forward. All ranks have the
/// same number of batches per epoch.
class TrainingTask {
 public:
  virtual ~TrainingTask() = default;

  virtual int64_t batches_per_epoch() const = 0;

  /// Samples in one batch of one rank. Over all ranks and epochs, successive
  /// batches take the next samples of an order that does not depend on the
  /// number of ranks, so that a run can resume on other ranks.
  virtual int64_t batch_size() const = 0;

  /// Samples of an epoch, those that fill no batch included. 0: batches begin
  /// nowhere else, and a run that resumes within a batch of its size goes back
  /// to the beginning of the batch.
  virtual int64_t samples_per_epoch() const {
    return 0;
  }

  /// Batches of one optimizer step, if the rest of an epoch after begin_at() is
  /// whole steps: that of its EpochBatches.
  virtual int64_t batches_per_step() const {
    return 1;
  }

  /// Lets a batch begin exactly there, see EpochBatches::begin_at(). Called
  /// when a run resumes, unless samples_per_epoch() is 0.
  virtual void begin_at(const SamplePosition& /*position*/) {}

  /// Shuffles the samples of epoch `epoch`, counted from 0; deterministic.
  virtual void begin_epoch(int64_t epoch) = 0;

  /// Called before the micro-batches of optimizer step `step`, counted from 0.
  virtual void begin_step(int64_t /*step*/) {}

  /// Makes batch `index` of the epoch and copies it to the model's device;
  /// forward() of it follows. For tasks whose forward() does not do so itself:
  /// the time spent on data is then measured separately.
  virtual void load(int64_t /*index*/) {}

  /// The tokens of the batch loaded last, as MicroBatch::tokens; 0 if they are
  /// known after forward() only. Operations are counted once per number.
  virtual int64_t loaded_tokens() const {
    return 0;
  }

  /// Of the tokens of the batch made last, by load(), load_micro_batch() or
  /// forward(), those that are padding. Asked after forward(), or
  /// load_micro_batch(); only for the log.
  virtual int64_t loaded_padding() const {
    return 0;
  }

  /// Forward of batch `index` of the epoch, the one loaded last.
  virtual MicroBatch forward(int64_t index) = 0;

  /// Called after optimizer step `step` of `steps`, counted from 1, except
  /// after steps skipped because of an overflow. Collective.
  virtual void after_step(int64_t /*step*/, int64_t /*steps*/) {}

  /// Scores the model on held-out data, and leaves it as it was. Collective.
  /// @param stops asked between batches, after the same ones on all ranks:
  ///   returns true on all of them if the run is to end. Collective; blocks.
  /// @return the same on all ranks; nothing if there are no such data, or
  ///   `stops` has returned true.
  virtual std::optional<TaskScore> score(
      const std::function<bool()>& /*stops*/) {
    return std::nullopt;
  }
};

/// A task whose model may be divided into pipeline stages.
class PipelineTask : public TrainingTask {
 public:
  /// Makes batch `index` of the epoch and keeps it as micro-batch `number` of
  /// the step, on all pipeline stages.
  /// @return its tokens, padding included.
  virtual int64_t load_micro_batch(int64_t index, int number) = 0;

  /// Runs one chunk of this pipeline stage on it; see PipelineForward.
  virtual std::vector<at::Tensor> forward_chunk(
      int chunk,
      int number,
      const std::vector<at::Tensor>& received) = 0;
};

} // namespace tessera
