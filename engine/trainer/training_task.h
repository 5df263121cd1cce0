// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a Trainer trains: data and loss, without the trainer knowing either.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// The loss of one micro-batch, with its graph.
struct MicroBatch {
  at::Tensor loss; ///< scalar, the mean over the micro-batch
  int64_t tokens = 0; ///< of this rank that were computed, padding included
};

/// One rank's share of a training job. All ranks have the same number of
/// batches per epoch.
class TrainingTask {
 public:
  virtual ~TrainingTask() = default;

  virtual int64_t batches_per_epoch() const = 0;

  /// Samples in one batch of one rank. Over all ranks and epochs, batch after
  /// batch takes the next samples of an order that does not depend on the
  /// number of ranks: so a run goes on with other ranks.
  virtual int64_t batch_size() const = 0;

  /// Puts the examples of epoch 0, 1, ... in order; deterministic.
  virtual void begin_epoch(int64_t epoch) = 0;

  /// Makes batch `index` of the epoch and brings it to the model's device; its
  /// forward follows. For tasks whose forward does not do that itself: the time
  /// of data is told apart from that of compute.
  virtual void load(int64_t /*index*/) {}

  /// Forward of batch `index` of the epoch, which was loaded last.
  virtual MicroBatch forward(int64_t index) = 0;

  /// Called behind optimizer step `step` of `steps`, 1 the first, but not where
  /// an overflow left the weights as they were. Collective.
  virtual void after_step(int64_t /*step*/, int64_t /*steps*/) {}
};

/// A task whose model may be in stages of a pipeline.
class PipelineTask : public TrainingTask {
 public:
  /// Makes batch `index` of the epoch and keeps it as number `number` of the
  /// step, on all stages.
  /// @return its tokens, padding included.
  virtual int64_t load_micro_batch(int64_t index, int number) = 0;

  /// One chunk of this stage on it; see PipelineForward.
  virtual std::vector<at::Tensor> forward_chunk(
      int chunk,
      int number,
      const std::vector<at::Tensor>& received) = 0;
};

} // namespace tessera
