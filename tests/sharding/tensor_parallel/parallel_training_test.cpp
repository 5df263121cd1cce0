// SPDX-License-Identifier: Apache-2.0
// A small language model of parallel layers, trained on 1 to 4 ranks.
#include "sharding/tensor_parallel/small_block.h"
#include "sharding/tensor_parallel/tensor_gradient_norm.h"
#include "support/ranks.h"
#include "support/tensor_parts.h"
#include "tessera/sharding/checkpointing/checkpoint.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/tensor_parallel/parallel_linear.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_embedding.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_loss.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <tuple>
#include <vector>

namespace tessera::sharding::parallel_training_test {

namespace {

constexpr int kSteps = 3;

struct ModelOptions {
  double dropout = 0;
  bool tied = false;
  bool checkpointed = false;
};

struct ModelImpl : torch::nn::Module {
  ModelImpl(const TensorParallel& tp, const ModelOptions& options)
      : options(options) {
    VocabParallelEmbeddingOptions table;
    table.vocab = kVocab;
    table.features = kFeatures;
    table.weight_init = normal_init(0, 0.5);
    table.parameters = kDouble;
    embedding = register_module("embedding", VocabParallelEmbedding(tp, table));
    for (int i = 0; i < 2; ++i) {
      blocks.push_back(register_module(
          "block" + std::to_string(i), Block(tp, options.dropout, i)));
    }
    norm = register_module("norm", double_norm());
    if (!options.tied) {
      ParallelLinearOptions linear;
      linear.in = kFeatures;
      linear.out = kVocab;
      linear.bias = false;
      linear.parameters = kDouble;
      head = register_module("head", ColumnParallelLinear(tp, linear));
    }
  }

  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) {
    at::Tensor x = embedding->forward(tokens);
    for (Block& block : blocks) {
      x = options.checkpointed
              ? checkpoint(
                    CheckpointMode{.trains = true},
                    [impl = block.ptr()](const at::Tensor& input) {
                      return impl->forward(input);
                    },
                    x)
              : block->forward(x);
    }
    x = norm->forward(x);
    const at::Tensor logits =
        options.tied ? at::linear(x, embedding->weight) : head->forward(x);
    return vocab_parallel_cross_entropy(
        logits, targets, {.label_smoothing = 0.1, .z_loss = 1e-3});
  }

  ModelOptions options;
  VocabParallelEmbedding embedding{nullptr};
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  ColumnParallelLinear head{nullptr};
};
TORCH_MODULE(Model);

struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  Model model{nullptr};
};

/// Clipped gradient descent from the same numbers, whatever the group.
Trained train(const TensorParallel& tp, const ModelOptions& options) {
  Trained run;
  run.model = Model(tp, options);
  init_parameters(*run.model, 5);
  materialize(*run.model);
  torch::manual_seed(1);
  const at::Tensor tokens = torch::randint(kVocab, {3, kLength + 1}, at::kLong);
  const at::Tensor inputs = tokens.narrow(1, 0, kLength);
  const at::Tensor targets = tokens.narrow(1, 1, kLength).clone();
  targets[1].narrow(0, 0, 3).fill_(-100);
  for (int step = 0; step < kSteps; ++step) {
    run.model->zero_grad();
    const RandomKeyScope random({.seed = 3, .step = step}, at::kCPU);
    const at::Tensor loss = run.model->forward(inputs, targets);
    loss.backward();
    run.losses.push_back(loss.item<double>());
    run.norms.push_back(clip_tensor_gradients(*run.model, *tp.group, 1.0));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : run.model->parameters()) {
      parameter.sub_(0.5 * parameter.grad());
    }
  }
  return run;
}

using Setting = std::tuple<int, bool, bool, bool>;

class ParallelTraining : public ::testing::TestWithParam<Setting> {};

std::string name_of(const ::testing::TestParamInfo<Setting>& info) {
  const auto& [ranks, sequence, tied, checkpointed] = info.param;
  return "ranks" + std::to_string(ranks) + (sequence ? "_sequence" : "") +
         (tied ? "_tied" : "") + (checkpointed ? "_checkpointed" : "");
}

/// Float64 in another order, over three steps whose gradients and clipping
/// factors depend on each other: 1e-10 leaves some hundreds of roundings each.
void expect_that_of_one_rank(const Setting& setting, double dropout) {
  const auto& [ranks, sequence, tied, checkpointed] = setting;
  tests::run_ranks(ranks, [=, sequence = sequence](World& world) {
    Communicator alone_group("alone");
    const Trained alone =
        train(TensorParallel{&alone_group}, {.dropout = dropout, .tied = tied});
    auto group = world.new_communicator("tensor");
    const Trained divided = train(
        TensorParallel{group.get(), sequence},
        {.dropout = dropout, .tied = tied, .checkpointed = checkpointed});
    for (int step = 0; step < kSteps; ++step) {
      const auto i = static_cast<size_t>(step);
      EXPECT_NEAR(divided.losses[i], alone.losses[i], 1e-10) << step;
      EXPECT_NEAR(divided.norms[i], alone.norms[i], 1e-10) << step;
    }
    EXPECT_LT(alone.losses.back(), alone.losses.front() - 0.1);
    const TensorSpecs specs = specs_in(*divided.model);
    const auto full_tensors = alone.model->named_parameters();
    for (const auto& item : divided.model->named_parameters()) {
      const TensorSpec& spec = specs.at(item.value().unsafeGetTensorImpl());
      const at::Tensor expected =
          tests::local_part(full_tensors[item.key()], spec, world.rank());
      EXPECT_TRUE(item.value().allclose(expected, 1e-9, 1e-10)) << item.key();
      if (!spec.is_divided()) {
        // What every rank has whole is the same on all of them, to the bit.
        const at::Tensor self_tensor = item.value().detach();
        const at::Tensor first = self_tensor.clone();
        group->broadcast(first, 0, "a test's broadcast").wait();
        EXPECT_TRUE(first.equal(self_tensor)) << item.key();
      }
    }
  });
}

} // namespace

TEST_P(ParallelTraining, IsThatOfOneRank) {
  expect_that_of_one_rank(GetParam(), 0);
}

// A mask that differs in one element changes the loss by 1e-4 and more.
TEST_P(ParallelTraining, IsThatOfOneRankWithDropout) {
  expect_that_of_one_rank(GetParam(), 0.2);
}

INSTANTIATE_TEST_SUITE_P(
    Matrix,
    ParallelTraining,
    ::testing::Values(
        Setting{1, true, false, true},
        Setting{2, false, false, false},
        Setting{2, true, true, true},
        Setting{3, false, true, true},
        Setting{3, true, false, false},
        Setting{4, false, false, true},
        Setting{4, true, true, false}),
    name_of);

// With masks of each rank's own the numbers depend on the ranks, but not on
// whether blocks are computed again; and whole parameters stay equal.
TEST(ParallelDropout, IsTheSameWhenBlocksAreComputedAgain) {
  for (const bool sequence : {false, true}) {
    tests::run_ranks(2, [sequence](World& world) {
      auto group = world.new_communicator("tensor");
      TensorParallel tp{group.get(), sequence};
      tp.masks = DropoutMasks::kOfRank;
      const Trained once = train(tp, {.dropout = 0.2});
      const Trained again = train(tp, {.dropout = 0.2, .checkpointed = true});
      // Of sequence parts a recomputed block's gradients may have other
      // strides, for which matrix products add up in another order.
      const double tolerance = sequence ? 1e-13 : 0;
      for (size_t step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(once.losses[step], again.losses[step], tolerance);
        EXPECT_NEAR(once.norms[step], again.norms[step], tolerance);
      }
      const TensorSpecs specs = specs_in(*once.model);
      for (const auto& parameter : once.model->parameters()) {
        if (!specs.at(parameter.unsafeGetTensorImpl()).is_divided()) {
          const at::Tensor first = parameter.detach().clone();
          group->broadcast(first, 0, "a test's broadcast").wait();
          EXPECT_TRUE(first.equal(parameter));
        }
      }
    });
  }
}

} // namespace tessera::sharding::parallel_training_test
