// SPDX-License-Identifier: Apache-2.0
// Data, tensor, sequence and pipeline parallelism at once, held against one
// rank.
#include "sharding/tensor_parallel/small_block.h"
#include "support/ranks.h"
#include "support/tensor_parts.h"
#include "support/tied_parameter.h"
#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/partition.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/sharding/checkpointing/checkpoint.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_embedding.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_loss.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

namespace tessera::engine::combined_parallel_test {

namespace {

using Kind = PipelineScheduleKind;
using Tensors = std::vector<at::Tensor>;

constexpr int kLayers = 5; // uneven over 2 and 4 pieces

struct Layout {
  std::string name;
  Kind kind = Kind::kOneForwardOneBackward;
  int data = 1;
  int tensor = 1;
  PipelineShape shape;
  bool sequence = false;
  bool checkpointed = false;
};

/// The pieces of a tied language model that one stage has. Parameters have the
/// names, and so the numbers, that they have in the whole.
struct StageImpl : torch::nn::Module {
  StageImpl(const TensorParallel& tp, const Layout& layout, int stage)
      : tp(tp),
        shape(layout.shape),
        stage(stage),
        checkpointed(layout.checkpointed),
        partition(pipeline::partition_by_count(kLayers, shape.model_chunks())) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      const int model_chunk = shape.model_chunk(stage, chunk);
      for (int i = partition.begin(model_chunk); i < partition.end(model_chunk);
           ++i) {
        const std::string name = "block" + std::to_string(i);
        blocks.emplace(i, register_module(name, Block(tp, /*dropout=*/0)));
      }
    }
    const bool last = stage == shape.stages - 1;
    if (last) {
      norm = register_module("norm", double_norm());
    }
    if (last || stage == 0) {
      VocabParallelEmbeddingOptions options;
      options.vocab = kVocab;
      options.features = kFeatures;
      options.weight_init = normal_init(0, 0.5);
      options.parameters = kDouble;
      embedding =
          register_module("embedding", VocabParallelEmbedding(tp, options));
    }
  }

  Tensors forward(int chunk, const at::Tensor& tokens, const Tensors& inputs) {
    const int model_chunk = shape.model_chunk(stage, chunk);
    at::Tensor x = model_chunk == 0
                       ? embedding->forward(tokens.narrow(1, 0, kLength))
                       : received(inputs[0], tp);
    for (int i = partition.begin(model_chunk); i < partition.end(model_chunk);
         ++i) {
      const auto run = [block = blocks.at(i).ptr()](const at::Tensor& input) {
        return block->forward(input);
      };
      x = checkpointed ? checkpoint({.trains = true}, run, x) : run(x);
    }
    if (model_chunk < shape.model_chunks() - 1) {
      return {local_tensor(x)};
    }
    return {vocab_parallel_cross_entropy(
        at::linear(norm->forward(x), embedding->weight),
        tokens.narrow(1, 1, kLength))};
  }

  TensorParallel tp;
  PipelineShape shape;
  int stage;
  bool checkpointed;
  pipeline::LayerPartition partition;
  std::map<int, Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  VocabParallelEmbedding embedding{nullptr};
};
TORCH_MODULE(Stage);

at::Tensor tokens_of(int data_rank, int micro_batch) {
  torch::manual_seed(static_cast<uint64_t>(1000 * data_rank + micro_batch));
  return torch::randint(kVocab, {2, kLength + 1}, at::kLong);
}

Stage make_stage(const TensorParallel& tp, const Layout& layout, int stage) {
  Stage made(tp, layout, stage);
  init_parameters(*made, 5);
  materialize(*made);
  return made;
}

struct Reference {
  Stage model{nullptr};
  double loss = 0; ///< the mean over all
};

/// All batches of all data ranks on one rank.
Reference run_alone(const Layout& layout, Communicator& alone) {
  Layout single = layout;
  single.shape = {1, layout.shape.micro_batches, 1};
  single.checkpointed = false;
  Reference reference;
  reference.model = make_stage(TensorParallel{&alone}, single, 0);
  const int count = layout.data * layout.shape.micro_batches;
  for (int data_rank = 0; data_rank < layout.data; ++data_rank) {
    for (int i = 0; i < layout.shape.micro_batches; ++i) {
      const at::Tensor loss =
          reference.model->forward(0, tokens_of(data_rank, i), {})[0] / count;
      loss.backward();
      reference.loss += loss.item<double>();
    }
  }
  return reference;
}

class CombinedParallel : public ::testing::TestWithParam<Layout> {};

} // namespace

// Float64 in another order: sums of some hundreds of terms of size 1.
TEST_P(CombinedParallel, IsThatOfOneRank) {
  const Layout& layout = GetParam();
  const int ranks = layout.data * layout.tensor * layout.shape.stages;
  tests::run_ranks(ranks, [&](World& world) {
    Communicator alone("alone");
    const Reference reference = run_alone(layout, alone);

    ParallelSizes sizes;
    sizes.data = layout.data;
    sizes.shard = 1;
    sizes.tensor = layout.tensor;
    sizes.pipeline = layout.shape.stages;
    ParallelGroups groups(
        world, ParallelMesh(sizes, world.size(), world.local_size()), at::kCPU);
    const ParallelMesh& mesh = groups.mesh();
    runtime::RingChannels stages(
        world,
        "pipeline",
        mesh.ranks(ParallelGroup::kPipeline, world.rank()),
        at::kCPU);
    const int data_rank = mesh.index(ParallelGroup::kData, world.rank());
    Stage stage = make_stage(
        TensorParallel{&groups[ParallelGroup::kTensor], layout.sequence},
        layout,
        stages.index());
    if (stage->embedding) {
      tests::copy_tied_parameter(stage->embedding->weight, stages);
    }
    PipelineExecutor executor(
        make_schedule(layout.kind, layout.shape),
        stages.size() > 1 ? &stages : nullptr);
    PipelineCallbacks callbacks;
    callbacks.forward = [&](int chunk, int i, const Tensors& inputs) {
      return stage->forward(chunk, tokens_of(data_rank, i), inputs);
    };
    const Tensors losses = executor.run(callbacks);
    if (stage->embedding) {
      tests::sum_tied_gradients(stage->embedding->weight, stages);
    }

    const TensorSpecs specs = specs_in(*stage);
    const auto full_tensors = reference.model->named_parameters();
    for (const auto& item : stage->named_parameters()) {
      at::Tensor gradient = item.value().grad();
      groups[ParallelGroup::kGradients]
          .all_reduce_sum(gradient, "a test's sum")
          .wait();
      gradient /= layout.data;
      const at::Tensor expected = tests::local_part(
          full_tensors[item.key()].grad(),
          specs.at(item.value().unsafeGetTensorImpl()),
          mesh.index(ParallelGroup::kTensor, world.rank()));
      EXPECT_TRUE(gradient.allclose(expected, 1e-10, 1e-12)) << item.key();
    }
    if (stages.index() == stages.size() - 1) {
      const at::Tensor loss = torch::stack(losses).mean().view({1});
      groups[ParallelGroup::kBatches]
          .all_reduce_sum(loss, "a test's sum")
          .wait();
      EXPECT_NEAR(loss.item<double>() / layout.data, reference.loss, 1e-12);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Matrix,
    CombinedParallel,
    ::testing::Values(
        Layout{"gpipe_2x2x2", Kind::kGPipe, 2, 2, {2, 3}},
        Layout{
            "1f1b_2x2x2_sequence",
            Kind::kOneForwardOneBackward,
            2,
            2,
            {2, 4},
            true},
        Layout{
            "interleaved_2x2x2_checkpointed",
            Kind::kInterleaved,
            2,
            2,
            {2, 4, 2},
            false,
            true},
        Layout{"zbh1_2x2x2_sequence", Kind::kZeroBubble, 2, 2, {2, 3}, true},
        Layout{
            "zbh1_1x2x4_checkpointed",
            Kind::kZeroBubble,
            1,
            2,
            {4, 6},
            false,
            true},
        Layout{
            "1f1b_1x4x2_sequence",
            Kind::kOneForwardOneBackward,
            1,
            4,
            {2, 2},
            true},
        Layout{"1f1b_2x1x4", Kind::kOneForwardOneBackward, 2, 1, {4, 5}},
        Layout{"gpipe_2x3x1", Kind::kGPipe, 2, 3, {1, 2}}),
    [](const auto& info) { return info.param.name; });

} // namespace tessera::engine::combined_parallel_test
