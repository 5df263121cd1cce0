// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pipeline in the middle of a module whose ranks have batches of their own.

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

namespace tessera {

/// The stages of one pipeline, each with a batch of its own: every batch goes
/// through all stages and back to whom it belongs. To a module around it that
/// is an operator like any other, whose backward goes through the stages in
/// reverse.
///
/// Batches are gathered on all stages and results sent to all of them: of n
/// stages each receives (n-1) batches and n results, and as much in backward.
/// For CPU tensors.
class PipelinedBatches {
 public:
  /// One stage's layers: hidden states and what goes to every layer -> hidden
  /// states.
  using Stage = std::function<
      at::Tensor(const at::Tensor& hidden, const std::vector<at::Tensor>&)>;

  /// Collective over the job, in the same order among other communicators;
  /// blocks until a stage's neighbours have called.
  /// @param world outlives this.
  PipelinedBatches(World& world, const ParallelMesh& mesh);

  /// For StageLayers.
  PipelinePlace place() const {
    return {ranks_.size(), 1, ranks_.index(), {}};
  }

  /// Runs `stage` of every rank on every rank's batch. Collective over the
  /// stages; blocks; in backward too, so whether an argument requires a
  /// gradient must not differ between them.
  /// @param hidden, others of this rank's batch; of one form on all ranks.
  ///     Others may be undefined.
  /// @param stage is called again in no backward; it and this object outlive
  ///     the graph.
  /// @return hidden states of this rank's batch, of the form of `hidden`.
  /// @throws tessera::Error on every stage when the forms differ.
  at::Tensor run(
      const at::Tensor& hidden,
      const std::vector<at::Tensor>& others,
      const Stage& stage);

 private:
  friend struct PipelinedCall;
  friend struct PipelinedFunction;
  using Tensors = std::vector<at::Tensor>;

  /// Batches of all stages, as leaves of the stage's graph.
  struct Arguments {
    Tensors hidden; ///< by stage; used by the first one
    std::vector<Tensors> others; ///< by argument, then by stage
  };

  void check_forms(const Tensors& arguments);
  Tensors gather(const at::Tensor& own, const char* what);
  Arguments gather_arguments(const at::Tensor& hidden, const Tensors& others);
  PipelineForward forward_of(const Arguments& arguments, const Stage& stage)
      const;
  at::Tensor own_result(std::vector<Tensors> results, const at::Tensor& like);
  at::Tensor forward(const Arguments& arguments, const Stage& stage);
  /// @return gradients of the own hidden states and others.
  Tensors backward(const Arguments& arguments, const at::Tensor& gradient);

  RingChannels ranks_;
  std::unique_ptr<Communicator> group_;
  PipelineExecutor executor_;
};

} // namespace tessera
