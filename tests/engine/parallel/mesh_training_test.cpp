// SPDX-License-Identifier: Apache-2.0
// A language model whose layers are divided over tensor-parallel ranks and
// pipeline stages, and whose parameters, gradients and optimizer state are
// divided over data-parallel ranks: the numbers of one rank with all batches,
// dropout included.
#include "engine/twin.h"
#include "sharding/tensor_parallel/small_block.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/inspect_engine.h"
#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/runtime/comm/ring_channels.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_embedding.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_loss.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine::mesh_training_test {

namespace {

constexpr int kSteps = 3;
constexpr int kBlocks = 4;
constexpr int kBatches = 4; // of a step, over all ranks

/// Blocks [first, last) of the model; with the first one the embedding, with
/// the last one the norm, the head and the loss. A tied head is the embedding:
/// the last stage has it too.
struct StageImpl : torch::nn::Module {
  StageImpl(const TensorParallel& tp, int first, int last, bool tied)
      : tp(tp), first(first), last(last) {
    if (first == 0 || (tied && last == kBlocks)) {
      VocabParallelEmbeddingOptions table;
      table.vocab = kVocab;
      table.features = kFeatures;
      table.weight_init = normal_init(0, 0.5);
      table.parameters = kDouble;
      embedding =
          register_module("embedding", VocabParallelEmbedding(tp, table));
    }
    for (int i = first; i < last; ++i) {
      blocks.push_back(register_module(
          "block" + std::to_string(i), Block(tp, /*dropout=*/0.02, i)));
    }
    if (last == kBlocks) {
      norm = register_module("norm", double_norm());
    }
    if (last == kBlocks && !tied) {
      ParallelLinearOptions linear;
      linear.in = kFeatures;
      linear.out = kVocab;
      linear.bias = false;
      linear.parameters = kDouble;
      head = register_module("head", ColumnParallelLinear(tp, linear));
    }
  }

  /// @param x token ids, or what the stage before it made.
  at::Tensor forward(at::Tensor x, const at::Tensor& targets) {
    x = first == 0 ? embedding->forward(x) : received(x, tp);
    for (Block& block : blocks) {
      x = block->forward(x);
    }
    if (last < kBlocks) {
      return local_tensor(x);
    }
    x = norm->forward(x);
    return vocab_parallel_cross_entropy(
        head.is_empty() ? at::linear(x, embedding->weight) : head->forward(x),
        targets);
  }

  TensorParallel tp;
  int first;
  int last;
  VocabParallelEmbedding embedding{nullptr};
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  ColumnParallelLinear head{nullptr};
};
TORCH_MODULE(Stage);

Stage make_stage(
    const TensorParallel& tp,
    int first,
    int last,
    bool tied = false) {
  Stage stage(tp, first, last, tied);
  init_parameters(*stage, 5);
  materialize(*stage);
  return stage;
}

/// Inputs and targets of one batch of one step.
std::pair<at::Tensor, at::Tensor> batch_of(int step, int number) {
  torch::manual_seed(static_cast<uint64_t>(100 * step + number));
  const at::Tensor tokens = torch::randint(kVocab, {2, kLength + 1}, at::kLong);
  return {tokens.narrow(1, 0, kLength), tokens.narrow(1, 1, kLength).clone()};
}

RandomKeyScope random_of(int step, int number) {
  return {{.seed = 4, .step = step, .micro_batch = number}, at::kCPU};
}

EngineOptions small_groups(int stage) {
  EngineOptions options;
  options.sharding.groups.min_group_numel = 0;
  options.sharding.zero_stage = stage;
  options.optimizer.lr = 1e-2;
  options.optimizer.weight_decay = 0.1;
  options.log_memory = false;
  return options;
}

struct Seen {
  std::vector<double> losses; ///< mean over the batches of a step
  std::vector<double> norms;
  std::map<std::string, at::Tensor> parameters;
};

Seen train_alone(const EngineOptions& options, bool tied) {
  Communicator group("alone");
  World world(0, 1, 0, nullptr, {});
  Stage model = make_stage(TensorParallel{&group}, 0, kBlocks, tied);
  Engine engine(world, model.ptr(), options);
  Seen seen;
  for (int step = 0; step < kSteps; ++step) {
    double sum = 0;
    for (int i = 0; i < kBatches; ++i) {
      const auto [inputs, targets] = batch_of(step, i);
      const RandomKeyScope random = random_of(step, i);
      const at::Tensor loss = model->forward(inputs, targets) / kBatches;
      engine.backward(loss);
      sum += loss.item<double>();
    }
    seen.losses.push_back(sum);
    seen.norms.push_back(engine.clip_grad_norm(0.5));
    engine.step();
  }
  engine.for_each_parameter([&](const std::string& name, const at::Tensor& v) {
    seen.parameters[name] = v.clone();
  });
  return seen;
}

struct Setting {
  const char* name;
  ParallelSizes sizes;
  int zero_stage = 3;
  bool sequence = false;
  PipelineScheduleKind schedule = PipelineScheduleKind::kOneForwardOneBackward;
  bool tied = false;
  UpdateOverlap overlap = UpdateOverlap::kAutomatic;
};

int world_of(const ParallelSizes& sizes) {
  return sizes.data * sizes.shard * sizes.tensor * sizes.pipeline;
}

class MeshTraining : public ::testing::TestWithParam<Setting> {};

/// The batches of a step that this rank's pipeline sees.
std::vector<int> own_batches(const ParallelMesh& mesh, int rank) {
  const int ranks = mesh.size(ParallelGroup::kBatches);
  const int index = mesh.index(ParallelGroup::kBatches, rank);
  std::vector<int> local;
  for (int i = index; i < kBatches; i += ranks) {
    local.push_back(i);
  }
  return local;
}

} // namespace

// Float64 in another order, over three steps whose updates and clipping factors
// depend on each other, through AdamW's division by small second moments.
TEST_P(MeshTraining, IsThatOfOneRank) {
  const Setting& setting = GetParam();
  tests::run_ranks(world_of(setting.sizes), [&](World& world) {
    EngineOptions options = small_groups(setting.zero_stage);
    const Seen alone = train_alone(options, setting.tied);
    options.optimizer.overlap = setting.overlap;

    const ParallelMesh mesh(setting.sizes, world.size(), world.size());
    ParallelGroups groups(world, mesh, at::kCPU);
    const int stages = mesh.size(ParallelGroup::kPipeline);
    const int stage = mesh.index(ParallelGroup::kPipeline, world.rank());
    const TensorParallel tp{&groups[ParallelGroup::kTensor], setting.sequence};
    Stage model = make_stage(
        tp,
        stage * kBlocks / stages,
        (stage + 1) * kBlocks / stages,
        setting.tied);
    if (setting.tied && stage == stages - 1 && stages > 1) {
      const c10::NoGradGuard no_grad; // it is to take over the first stage's
      model->embedding->weight.zero_();
    }
    options.parallel = &mesh;
    auto engine = wrap(model, options);

    const std::vector<int> batches = own_batches(mesh, world.rank());
    const PipelineShape shape{stages, static_cast<int>(batches.size()), 1};
    std::unique_ptr<runtime::RingChannels> channels;
    if (stages > 1) {
      channels = std::make_unique<runtime::RingChannels>(
          world,
          "stages",
          mesh.ranks(ParallelGroup::kPipeline, world.rank()),
          at::kCPU);
    }
    PipelineExecutor executor(
        make_schedule(setting.schedule, shape), channels.get());

    for (int step = 0; step < kSteps; ++step) {
      PipelineCallbacks callbacks;
      callbacks.forward = [&](int, int i, const std::vector<at::Tensor>& in) {
        const int number = batches[static_cast<size_t>(i)];
        const auto [inputs, targets] = batch_of(step, number);
        const RandomKeyScope random = random_of(step, number);
        return std::vector<at::Tensor>{
            model->forward(in.empty() ? inputs : in[0], targets)};
      };
      const auto losses = engine.run_pipeline(executor, callbacks);
      const at::Tensor sum = at::zeros({}, at::kDouble);
      if (mesh.index(ParallelGroup::kTensor, world.rank()) == 0) {
        for (const at::Tensor& loss : losses) {
          sum.add_(loss);
        }
      }
      engine.sum_over_ranks(sum);
      // Of tied weights both stages have the whole gradient, whoever is first.
      const auto inspected = inspect_model(engine);
      engine.grad_norm();
      const auto again = inspect_model(engine);
      for (size_t i = 0; i < again.size(); ++i) {
        ASSERT_TRUE(again[i].gradient && inspected[i].gradient);
        EXPECT_NEAR(
            inspected[i].gradient->norm(), again[i].gradient->norm(), 1e-12)
            << again[i].name;
      }
      const double norm = engine.clip_grad_norm(0.5);
      engine.step();
      const auto at_step = static_cast<size_t>(step);
      EXPECT_NEAR(sum.item<double>() / kBatches, alone.losses[at_step], 1e-9);
      EXPECT_NEAR(norm, alone.norms[at_step], 1e-9) << step;
    }
    EXPECT_GT(alone.norms.back(), 0);

    engine.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          const at::Tensor& expected = alone.parameters.at(name);
          EXPECT_TRUE(value.allclose(expected, 1e-7, 1e-8))
              << name << (value - expected).abs().max();
        });
    // Of whole parameters, whatever this rank has of them.
    for (const TensorSummary& row : inspect_model(engine)) {
      SCOPED_TRACE(row.name);
      const at::Tensor& whole = alone.parameters.at(row.name);
      EXPECT_EQ(row.sizes, whole.sizes().vec());
      EXPECT_EQ(row.value.count, whole.numel());
      EXPECT_NEAR(row.value.max, whole.max().item<double>(), 1e-7);
      EXPECT_NEAR(row.value.norm(), whole.norm().item<double>(), 1e-6);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    MeshTraining,
    ::testing::Values(
        Setting{"one", {.shard = 1}},
        Setting{"shard2", {.shard = 2}},
        Setting{"tensor2", {.shard = 1, .tensor = 2}},
        Setting{"tensor2_shard2", {.shard = 2, .tensor = 2}, 3, true},
        Setting{"tensor2_data2", {.data = 2, .shard = 1, .tensor = 2}, 1},
        Setting{"tensor3_shard2", {.shard = 2, .tensor = 3}, 2, true},
        Setting{"pipeline2", {.shard = 1, .pipeline = 2}},
        Setting{"pipeline2_shard2", {.shard = 2, .pipeline = 2}, 3},
        Setting{
            "pipeline4_gpipe",
            {.shard = 1, .pipeline = 4},
            1,
            false,
            PipelineScheduleKind::kGPipe},
        Setting{
            "pipeline2_data2_zb",
            {.data = 2, .shard = 1, .pipeline = 2},
            2,
            false,
            PipelineScheduleKind::kZeroBubble},
        Setting{
            "tensor2_pipeline2_shard2",
            {.shard = 2, .tensor = 2, .pipeline = 2},
            3,
            true},
        Setting{
            "tensor2_pipeline2_data2",
            {.data = 2, .shard = 1, .tensor = 2, .pipeline = 2},
            1},
        Setting{
            "tied_pipeline2",
            {.shard = 1, .pipeline = 2},
            3,
            false,
            PipelineScheduleKind::kGPipe,
            true},
        Setting{
            "tied_tensor2_pipeline2_shard2",
            {.shard = 2, .tensor = 2, .pipeline = 2},
            3,
            true,
            PipelineScheduleKind::kOneForwardOneBackward,
            true},
        Setting{
            "tied_pipeline4_data2_overlapped",
            {.data = 2, .shard = 1, .pipeline = 4},
            2,
            false,
            PipelineScheduleKind::kZeroBubble,
            true,
            UpdateOverlap::kWait}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(MeshTraining, RefusesOptimizersThatNeedWholeParameters) {
  tests::run_ranks(2, [](World& world) {
    const ParallelMesh mesh({.shard = 1, .tensor = 2}, 2, 2);
    ParallelGroups groups(world, mesh, at::kCPU);
    Stage model =
        make_stage(TensorParallel{&groups[ParallelGroup::kTensor]}, 0, kBlocks);
    EngineOptions options = small_groups(3);
    options.parallel = &mesh;
    options.optimizer.rule = LambOptions{};
    const std::string message = error_of([&] { wrap(model, options); });
    EXPECT_NE(
        message.find("partitioned over tensor-parallel"), std::string::npos)
        << message;
    EXPECT_NE(message.find("LAMB"), std::string::npos) << message;
  });
}

} // namespace tessera::engine::mesh_training_test
