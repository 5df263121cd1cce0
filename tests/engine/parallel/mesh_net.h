// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small language model whose layers are divided over a mesh, and its
// training, for tests that hold one layout against another.

#include "engine/twin.h"
#include "sharding/tensor_parallel/small_block.h"
#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/runtime/comm/ring_channels.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_embedding.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tests {

inline constexpr int kMeshBlocks = 3; // uneven over two stages
inline constexpr int kMeshBatches = 4; // of a step, over all ranks

struct MeshLayout {
  const char* name;
  ParallelSizes sizes;
  int zero_stage = 3;
  bool sequence = false;

  int world_size() const {
    return sizes.data * sizes.shard * sizes.tensor * sizes.pipeline;
  }
};

/// Blocks [first, last) of the model; with the first one the embedding, with
/// the last one the norm, the head and the loss. Tied, the head is the
/// embedding. Some parameters are frozen, a divided and a whole one.
struct MeshNetImpl : torch::nn::Module {
  MeshNetImpl(const TensorParallel& tp, int first, int last, bool tied)
      : tp(tp), first(first), last(last), tied(tied) {
    const bool is_end = last == kMeshBlocks;
    if (first == 0 || (is_end && tied)) {
      VocabParallelEmbeddingOptions table;
      table.vocab = kVocab;
      table.features = kFeatures;
      table.weight_init = normal_init(0, 0.5);
      table.parameters = kDouble;
      embedding =
          register_module("embedding", VocabParallelEmbedding(tp, table));
    }
    for (int i = first; i < last; ++i) {
      const std::string name = "block" + std::to_string(i);
      blocks.push_back(register_module(name, tessera::Block(tp, 0.0)));
      register_buffer("number" + std::to_string(i), torch::full({1}, i));
    }
    if (is_end) {
      norm = register_module("norm", double_norm());
    }
    if (is_end && !tied) {
      ParallelLinearOptions linear;
      linear.in = kFeatures;
      linear.out = kVocab;
      linear.bias = false;
      linear.parameters = kDouble;
      head = register_module("head", ColumnParallelLinear(tp, linear));
    }
    for (auto& item : named_parameters()) {
      if (item.key() == "block0.down.weight" ||
          item.key() == "block2.norm1.weight") {
        item.value().requires_grad_(false);
      }
    }
  }

  /// @param x token ids, or what the stage before it made.
  at::Tensor forward(at::Tensor x, const at::Tensor& targets) {
    x = first == 0 ? embedding->forward(x) : received(x, tp);
    for (tessera::Block& block : blocks) {
      x = block->forward(x);
    }
    if (last < kMeshBlocks) {
      return local_tensor(x);
    }
    x = norm->forward(x);
    const at::Tensor logits =
        tied ? at::linear(x, embedding->weight) : head->forward(x);
    return torch::nn::functional::cross_entropy(
        logits.flatten(0, 1), targets.flatten());
  }

  TensorParallel tp;
  int first;
  int last;
  bool tied;
  VocabParallelEmbedding embedding{nullptr};
  std::vector<tessera::Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  ColumnParallelLinear head{nullptr};
};
TORCH_MODULE(MeshNet);

/// One rank of a job that trains the model under a layout.
class MeshJob {
 public:
  struct Step {
    double loss = 0; ///< the mean over the batches
    double norm = 0; ///< before clipping
  };

  /// @param seed of the parameters.
  MeshJob(
      World& world,
      const MeshLayout& layout,
      EngineOptions options,
      bool tied = false,
      int seed = 5)
      : world_(world),
        mesh_(layout.sizes, world.size(), world.size()),
        groups_(world, mesh_, at::kCPU),
        stage_(mesh_.index(ParallelGroup::kPipeline, world.rank())),
        net_(make(layout, tied, seed)),
        engine_(make_engine(layout, options)) {
    const int batch_ranks = mesh_.size(ParallelGroup::kBatches);
    const int index = mesh_.index(ParallelGroup::kBatches, world.rank());
    for (int i = index; i < kMeshBatches; i += batch_ranks) {
      batches_.push_back(i);
    }
    if (stages() > 1) {
      channels_ = std::make_unique<runtime::RingChannels>(
          world,
          world.unique_name("stages"),
          mesh_.ranks(ParallelGroup::kPipeline, world.rank()),
          at::kCPU);
    }
    executor_ = std::make_unique<PipelineExecutor>(
        make_schedule(
            PipelineScheduleKind::kOneForwardOneBackward,
            {stages(), static_cast<int>(batches_.size()), 1}),
        channels_.get());
  }

  /// The forwards and backwards of a step.
  /// @return this rank's losses.
  std::vector<at::Tensor> run(int number) {
    PipelineCallbacks callbacks;
    callbacks.forward = [&](int, int i, const std::vector<at::Tensor>& in) {
      const int batch = batches_[static_cast<size_t>(i)];
      torch::manual_seed(static_cast<uint64_t>(100 * number + batch));
      const at::Tensor tokens =
          torch::randint(kVocab, {2, kLength + 1}, at::kLong);
      return std::vector<at::Tensor>{net_->forward(
          in.empty() ? tokens.narrow(1, 0, kLength) : in[0],
          tokens.narrow(1, 1, kLength).contiguous())};
    };
    return engine_.run_pipeline(*executor_, callbacks);
  }

  Step train(int number) {
    const at::Tensor sum = at::zeros({}, at::kDouble);
    for (const auto& loss : run(number)) {
      sum.add_(loss);
    }
    engine_.sum_over_ranks(sum);
    const double norm = engine_.clip_grad_norm(0.5);
    engine_.step();
    const int tensor_ranks = mesh_.size(ParallelGroup::kTensor);
    return {sum.item<double>() / kMeshBatches / tensor_ranks, norm};
  }

  Engine& engine() {
    return engine_;
  }
  int stage() const {
    return stage_;
  }
  MeshNet& net() {
    return net_;
  }
  ParallelGroups& groups() {
    return groups_;
  }

 private:
  int stages() const {
    return mesh_.size(ParallelGroup::kPipeline);
  }

  MeshNet make(const MeshLayout& layout, bool tied, int seed) {
    const TensorParallel tp{&groups_[ParallelGroup::kTensor], layout.sequence};
    MeshNet net(
        tp,
        stage_ * kMeshBlocks / stages(),
        (stage_ + 1) * kMeshBlocks / stages(),
        tied);
    init_parameters(*net, static_cast<uint64_t>(seed));
    materialize(*net);
    return net;
  }

  Engine make_engine(const MeshLayout& layout, EngineOptions options) {
    options.sharding.zero_stage = layout.zero_stage;
    options.parallel = &mesh_;
    return {world_, net_.ptr(), options};
  }

  World& world_;
  ParallelMesh mesh_;
  ParallelGroups groups_;
  int stage_;
  MeshNet net_;
  Engine engine_;
  std::vector<int> batches_;
  std::unique_ptr<runtime::RingChannels> channels_;
  std::unique_ptr<PipelineExecutor> executor_;
};

} // namespace tessera::tests
