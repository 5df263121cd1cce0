// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PipelinedBatches` runs a pipeline inside a module whose ranks have batches
// of their own.

#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/pipeline/stage_layers.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"
#include "tessera/runtime/comm/ring_channels.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace tessera::engine {

/// The pipeline stages of one pipeline, each with a batch of its own: every
/// batch passes through all pipeline stages and returns to the one that it came
/// from. To the module around it, this is an operator like any other, whose
/// backward passes through the pipeline stages in reverse.
///
/// Batches are gathered on all pipeline stages and results sent to all of them:
/// of n pipeline stages each receives n-1 batches and n results, and as much in
/// backward. Takes tensors on World::device() or on the CPU.
class PipelinedBatches {
 public:
  /// The layers of one pipeline stage: takes hidden states and the arguments of
  /// every layer, returns hidden states.
  using Stage = std::function<
      at::Tensor(const at::Tensor& hidden, const std::vector<at::Tensor>&)>;

  /// Collective over the job, in the same order as the creation of other
  /// communicators; blocks until the neighboring pipeline stages have called
  /// it.
  /// @param world must outlive this object.
  PipelinedBatches(World& world, const ParallelMesh& mesh);

  /// The place to construct StageLayers with.
  pipeline::PipelinePosition position() const {
    return {ranks_.size(), 1, ranks_.index(), {}};
  }

  /// Runs `stage` of every rank on every rank's batch. Collective over the
  /// pipeline stages, in backward too, so all ranks must agree on which
  /// arguments require a gradient; blocks.
  /// @param hidden, others of this rank's batch; of the same shapes and dtypes
  ///   on all ranks. Others may be undefined.
  /// @param stage is not called again in backward; it and this object must
  ///   outlive the graph.
  /// @return hidden states of this rank's batch, of the shape and dtype of
  ///   `hidden`.
  /// @throws tessera::Error on every pipeline stage if shapes or dtypes differ.
  at::Tensor run(
      const at::Tensor& hidden,
      const std::vector<at::Tensor>& others,
      const Stage& stage);

 private:
  friend struct PipelinedCall;
  friend struct PipelinedFunction;
  using Tensors = std::vector<at::Tensor>;

  /// Batches of all pipeline stages, as leaves of this pipeline stage's graph.
  struct Arguments {
    Tensors hidden; ///< by pipeline stage; used by the first one
    std::vector<Tensors> others; ///< by argument, then by pipeline stage
  };

  /// The pipeline stages, for tensors on the device of `tensor`.
  Communicator& group_of(const at::Tensor& tensor) const {
    return tensor.is_cpu() ? *host_group_ : *device_group_;
  }
  void check_forms(const Tensors& arguments);
  Tensors gather(const at::Tensor& local, const char* label);
  Arguments gather_arguments(const at::Tensor& hidden, const Tensors& others);
  PipelineForward forward_of(const Arguments& arguments, const Stage& stage)
      const;
  at::Tensor local_result(std::vector<Tensors> results, const at::Tensor& like);
  at::Tensor forward(const Arguments& arguments, const Stage& stage);
  /// @return gradients of this rank's hidden states and others.
  Tensors backward(const Arguments& arguments, const at::Tensor& gradient);

  runtime::RingChannels ranks_;
  std::unique_ptr<Communicator> host_group_;
  std::unique_ptr<Communicator> device_group_; ///< null if that is the CPU
  PipelineExecutor executor_;
};

} // namespace tessera::engine
