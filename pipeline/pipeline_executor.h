// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PipelineExecutor` executes a schedule on one pipeline stage.

#include "tessera/pipeline/model_chunk_graph.h"
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

/// The forward of one chunk on one micro-batch. `inputs` is what the previous
/// piece returned; it is empty for the first piece of the model, whose data the
/// function finds by the number of the micro-batch. Returns what the next piece
/// needs, tensors of any dtypes, also undefined ones, or, on the last piece,
/// only the loss.
using PipelineForward = std::function<std::vector<at::Tensor>(
    int chunk,
    int micro_batch,
    const std::vector<at::Tensor>& inputs)>;

/// What a pipeline stage computes; the executor knows no modules.
struct PipelineCallbacks {
  PipelineForward forward;
  /// Called when the gradients of all micro-batches are accumulated in the
  /// parameters of a chunk; may be empty.
  std::function<void(int chunk)> gradients_complete;
};

struct PipelineOptions {
  /// Whether shapes differ between micro-batches or steps. They are then sent
  /// with every activation, and the receiving host waits for them. Otherwise
  /// the shapes of the first micro-batch of the first step are those of all.
  bool shapes_vary = false;
};

/// One stage of a pipeline. Gradients accumulate in grad() of the parameters,
/// as in any backward; the loss of a step is the mean over its micro-batches.
///
/// Sends and receives are issued where the schedule has them and waited for
/// where their tensors are needed, so that they overlap with computation. Of an
/// output, only the graph is kept once it has been sent. Tensors are on the
/// channels' device.
class PipelineExecutor {
 public:
  /// @param channels the ring of pipeline stages, which must outlive this
  ///   object; null for a single pipeline stage. channels->index() is the
  ///   number of this one.
  /// @throws tessera::Error for a schedule that validate_schedule() rejects, or
  ///   one for another number of pipeline stages.
  PipelineExecutor(
      PipelineSchedule schedule,
      runtime::RingChannels* channels,
      const PipelineOptions& options = {});

  /// Runs the forward and backward of all micro-batches. Collective over the
  /// pipeline stages; blocks.
  /// @param loss_scale factor of the loss in backward.
  /// @param check called while it waits for another pipeline stage; may throw.
  /// @return on the last pipeline stage, the losses by micro-batch, detached
  ///   and unscaled; empty elsewhere.
  /// @throws tessera::Error if the last piece does not return a single loss, an
  ///   activation changes its shape, or another pipeline stage is gone; the
  ///   executor is unusable afterwards.
  std::vector<at::Tensor> run(
      const PipelineCallbacks& callbacks,
      double loss_scale = 1,
      const WaitCheck& check = {});

  /// Runs only the forwards of a step, for schedules that have all of them
  /// before the first backward (kGPipe); one backward() must follow. Collective
  /// over the pipeline stages; blocks.
  /// @return on the last pipeline stage, what its last piece returned by
  ///   micro-batch, detached, any tensors; empty elsewhere.
  /// @throws tessera::Error as run(), and for other schedules.
  std::vector<std::vector<at::Tensor>> forward(const PipelineForward& forward);

  /// Runs the backwards of a step whose forward() was called.
  /// @param gradients on the last pipeline stage, by micro-batch, the gradients
  ///   of the outputs that require one, in order; empty elsewhere.
  void backward(std::vector<std::vector<at::Tensor>> gradients);

  /// Runs forwards without gradients for any number of micro-batches; shapes
  /// are sent along. Collective over the pipeline stages; blocks.
  /// @param forward as PipelineCallbacks::forward, but the last piece may
  ///   return any tensors.
  /// @return on the last pipeline stage, what its last piece returned by
  ///   micro-batch; empty elsewhere.
  std::vector<std::vector<at::Tensor>> evaluate(
      const PipelineForward& forward,
      int micro_batches);

 private:
  using Tensors = std::vector<at::Tensor>;
  /// Chunk and micro-batch.
  using Work = std::pair<int, int>;

  /// The tensors of a chunk's work on a micro-batch. The graph exists in
  /// training only.
  struct InFlight {
    pipeline::IncomingTensors inputs;
    pipeline::TensorForms input_forms;
    Tensors outputs; ///< until they are sent or handed on
    pipeline::TensorForms output_forms;
    std::optional<pipeline::ModelChunkGraph> graph;
    pipeline::IncomingTensors output_gradients;
  };

  /// The instructions of this pipeline stage.
  const std::vector<PipelineInstruction>& local(
      const PipelineSchedule& schedule) const {
    return schedule.stages[static_cast<size_t>(stage_)];
  }
  void begin_step();
  /// Executes instructions one after the other.
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
  bool is_last_model_chunk(int chunk) const;

  PipelineSchedule schedule_;
  PipelineShape shape_;
  int stage_ = 0;
  runtime::RingChannels* channels_;
  /// Those of the schedule being executed; null for a single pipeline stage.
  pipeline::PipelineTransfers* transfers_ = nullptr;
  std::optional<pipeline::PipelineTransfers> training_transfers_;
  WaitCheck check_; ///< of the waits of run()
  std::map<Work, InFlight> in_flight_;
  std::map<int, Tensors> results_; ///< of the last piece, by micro-batch
  double loss_gradient_ = 1; ///< of each micro-batch
  /// Gradients given to backward() instead of losses, by micro-batch.
  std::optional<std::vector<Tensors>> given_gradients_;
  bool ends_in_loss_ = true; ///< what the last piece returns
};

} // namespace tessera
