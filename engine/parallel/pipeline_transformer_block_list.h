// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PipelineTransformerBlockList` divides a sequence of blocks over pipeline
// stages in a module that is otherwise the same on all ranks (as BMTrain's
// PipelineTransformerBlockList).

#include "tessera/engine/parallel/pipelined_batches.h"
#include "tessera/sharding/checkpointing/checkpoint_block.h"
#include "tessera/sharding/groups/group_policy.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// A TransformerBlockList over pipeline stages. Every rank calls the whole
/// module with a batch of its own, as in data parallelism; the blocks of a
/// pipeline stage see the batches of all pipeline stages. The modules around
/// the list exist on every pipeline stage: wrap() with EngineOptions::parallel
/// keeps their copies equal, and Engine::backward() averages over all ranks.
///
/// Hidden states are one tensor; further arguments are tensors of this rank's
/// batch, defined or not, and are passed to every block.
template <typename Holder>
class PipelineTransformerBlockListImpl : public torch::nn::Module,
                                         public ModuleContainer {
 public:
  using Block = CheckpointBlock<Holder>;

  /// Collective over the job; see PipelinedBatches.
  /// @param count number of blocks; at least the number of pipeline stages.
  /// @param make makes the block of a number; called only for the blocks of
  ///   this pipeline stage, whose names are their numbers.
  PipelineTransformerBlockListImpl(
      World& world,
      const ParallelMesh& mesh,
      int count,
      const std::function<Holder(int number)>& make,
      const CheckpointOptions& options = {})
      : batches_(std::make_shared<engine::PipelinedBatches>(world, mesh)),
        layers_(batches_->position(), count) {
    for (const int number : layers_.local()) {
      blocks_.push_back(this->register_module(
          std::to_string(number), Block(make(number), options).ptr()));
    }
  }

  /// Collective over the pipeline stages, as is its backward.
  template <typename... Others>
  at::Tensor forward(const at::Tensor& hidden, const Others&... others) {
    return run(hidden, {others...}, std::index_sequence_for<Others...>());
  }

  /// The blocks of this pipeline stage.
  const pipeline::StageLayers& layers() const {
    return layers_;
  }

 private:
  template <size_t... I>
  at::Tensor run(
      const at::Tensor& hidden,
      const std::vector<at::Tensor>& others,
      std::index_sequence<I...> /*number_of_others*/) {
    return batches_->run(
        hidden,
        others,
        [this](const at::Tensor& x, const std::vector<at::Tensor>& given) {
          at::Tensor y = x;
          for (const auto& block : blocks_) {
            y = block->forward(y, given[I]...);
          }
          return y;
        });
  }

  std::shared_ptr<engine::PipelinedBatches> batches_;
  pipeline::StageLayers layers_;
  std::vector<std::shared_ptr<typename Block::Impl>> blocks_;
};

/// The module holder.
template <typename Holder>
class PipelineTransformerBlockList
    : public torch::nn::ModuleHolder<PipelineTransformerBlockListImpl<Holder>> {
 public:
  using Impl = PipelineTransformerBlockListImpl<Holder>;
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;

  // ModuleHolder's own operator does not support a forward that is a template.
  template <typename... Arguments>
  at::Tensor operator()(const Arguments&... arguments) {
    return this->get()->forward(arguments...);
  }
};

} // namespace tessera
