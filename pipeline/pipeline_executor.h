// SPDX-License-Identifier: Apache-2.0
#pragma once
// Carries a schedule out on one stage.

#include "tessera/pipeline/piece_graph.h"
#include "tessera/pipeline/pipeline_schedule.h"
#include "tessera/pipeline/pipeline_transfers.h"
#include "tessera/runtime/comm/ring_channels.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {

/// The forward of one chunk on one micro-batch. `inputs` are what the piece
/// before it returned, none for the first piece of the model, whose data the
/// function knows by the micro-batch's number. Returns what the next piece
/// needs, tensors of any types, undefined ones too, or, on the last piece, the
/// loss alone.
using PipelineForward = std::function<std::vector<at::Tensor>(
    int chunk,
    int micro_batch,
    const std::vector<at::Tensor>& inputs)>;

/// What a stage computes; the executor knows no modules.
struct PipelineCallbacks {
  PipelineForward forward;
  /// All micro-batches' gradients of a chunk's parameters are accumulated; may
  /// be empty.
  std::function<void(int chunk)> gradients_complete;
};

struct PipelineOptions {
  /// Shapes differ between micro-batches or steps, and are sent along with
  /// every activation, for which the receiving host waits. Otherwise those of
  /// the first micro-batch of the first step are those of all.
  bool shapes_vary = false;
};

/// One stage of a pipeline. Gradients accumulate in the parameters' grad(), as
/// in any backward; the loss of a step is the mean over its micro-batches.
///
/// Sends and receives are issued where the schedule has them and waited for
/// where their tensors are needed, so they overlap with computation. Of an
/// output only its graph is kept once it has been sent. Tensors are on the
/// channels' device.
class PipelineExecutor {
 public:
  /// @param channels the ring of stages, which outlives this; null for a single
  ///     stage. channels->index() is the stage.
  /// @throws tessera::Error for a schedule that validate_schedule() refuses, or
  ///     one for another number of stages.
  PipelineExecutor(
      PipelineSchedule schedule,
      RingChannels* channels,
      const PipelineOptions& options = {});

  /// One forward and backward of all micro-batches. Collective over the stages;
  /// blocks.
  /// @param loss_scale factor of the loss in backward.
  /// @return where the last piece is, the losses by micro-batch, detached and
  ///     unscaled; elsewhere nothing.
  /// @throws tessera::Error when the last piece returns no single loss, an
  ///     activation has another shape than before, or another stage is gone;
  ///     the executor is of no use afterwards.
  std::vector<at::Tensor> run(
      const PipelineCallbacks& callbacks,
      double loss_scale = 1);

  /// The forwards of a step alone, for schedules that have them all before the
  /// first backward (kGPipe); backward() follows, once. Collective over the
  /// stages; blocks.
  /// @return where the last piece is, what it returned by micro-batch,
  ///     detached: any tensors; elsewhere nothing.
  /// @throws tessera::Error as run(), and for another schedule.
  std::vector<std::vector<at::Tensor>> forward(const PipelineForward& forward);

  /// The backwards of a step whose forward() was called.
  /// @param gradients where the last piece is, by micro-batch, of those of its
  ///     outputs that require one, in order; elsewhere nothing.
  void backward(std::vector<std::vector<at::Tensor>> gradients);

  /// Forwards without gradients, of as many micro-batches as you like; shapes
  /// are sent along. Collective over the stages; blocks.
  /// @param forward as PipelineCallbacks::forward, but the last piece may
  /// return
  ///     any tensors.
  /// @return where the last piece is, what it returned by micro-batch;
  ///     elsewhere nothing.
  std::vector<std::vector<at::Tensor>> evaluate(
      const PipelineForward& forward,
      int micro_batches);

 private:
  using Tensors = std::vector<at::Tensor>;
  /// Chunk and micro-batch.
  using Work = std::pair<int, int>;

  /// What there is of a chunk's work on a micro-batch. Its graph is there in
  /// training only.
  struct InFlight {
    IncomingTensors inputs;
    TensorForms input_forms;
    Tensors outputs; ///< until they are sent or handed on
    TensorForms output_forms;
    std::optional<PieceGraph> graph;
    IncomingTensors output_gradients;
  };

  /// This stage's instructions.
  const std::vector<PipelineInstruction>& own(
      const PipelineSchedule& schedule) const {
    return schedule.stages[static_cast<size_t>(stage_)];
  }
  void begin_step();
  /// Carries out some instructions, one after the other.
  void follow(
      const std::vector<PipelineInstruction>& list,
      const PipelineCallbacks& callbacks,
      bool trains);
  std::vector<Tensors> take_results();
  void transfer(const PipelineInstruction& instruction);
  void forward(const Work& work, const PipelineForward& function, bool trains);
  void backward(PipelineOp op, const Work& work);
  Tensors take_inputs(const Work& work);
  Tensors take_output_gradients(const Work& work);
  void check_loss(const Work& work) const;
  bool is_last_piece(int chunk) const;

  PipelineSchedule schedule_;
  PipelineShape shape_;
  int stage_ = 0;
  RingChannels* channels_;
  /// Those of what is being carried out; null for a single stage.
  PipelineTransfers* transfers_ = nullptr;
  std::optional<PipelineTransfers> training_transfers_;
  std::map<Work, InFlight> in_flight_;
  std::map<int, Tensors> results_; ///< of the last piece, by micro-batch
  double loss_gradient_ = 1; ///< of each micro-batch's
  /// In place of losses, by micro-batch; see backward().
  std::optional<std::vector<Tensors>> given_gradients_;
  bool ends_in_loss_ = true; ///< what the last piece returns
};

} // namespace tessera
