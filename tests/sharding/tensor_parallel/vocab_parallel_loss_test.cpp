// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/vocab_parallel_loss.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

namespace tessera::sharding::vocab_parallel_loss_test {

namespace {

constexpr int64_t kVocab = 11; // divides by nothing
constexpr int64_t kBatch = 3;
constexpr int64_t kLength = 5;

struct Case {
  at::Tensor logits; ///< whole
  at::Tensor target;
};

Case make_case(at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(3);
  Case made;
  made.logits = (3 * torch::randn({kBatch, kLength, kVocab})).to(dtype);
  made.target = torch::randint(kVocab, {kBatch, kLength}, at::kLong);
  made.target[0][1] = -100;
  made.target[2][4] = -100;
  made.target[1][0] = 0;
  made.target[1][1] = kVocab - 1;
  return made;
}

/// With LibTorch's operators, on whole logits.
at::Tensor reference(
    const at::Tensor& logits,
    const at::Tensor& target,
    const VocabParallelLossOptions& options) {
  const at::Tensor flat = logits.view({-1, kVocab});
  at::Tensor loss = at::cross_entropy_loss(
      flat,
      target.view({-1}),
      {},
      at::Reduction::None,
      options.ignore_index,
      options.label_smoothing);
  const at::Tensor counts = target.view({-1}).ne(options.ignore_index);
  loss = loss + options.z_loss * at::logsumexp(flat, 1).square() * counts;
  switch (options.reduction) {
    case LossReduction::kNone:
      return loss.view(target.sizes());
    case LossReduction::kSum:
      return loss.sum();
    default:
      return loss.sum() / counts.sum();
  }
}

} // namespace

TEST(VocabParallelCrossEntropy, IsTheLossOfWholeLogits) {
  for (const int ranks : {1, 2, 3, 4}) {
    tests::run_ranks(ranks, [ranks](World& world) {
      auto group = world.new_communicator("tensor");
      const DimSplit vocab(kVocab, ranks);
      const int64_t begin = vocab.begin(world.rank());
      const int64_t length = vocab.length(world.rank());
      for (const double smoothing : {0.0, 0.1}) {
        for (const double z_loss : {0.0, 0.02}) {
          for (const auto reduction :
               {LossReduction::kNone,
                LossReduction::kSum,
                LossReduction::kMean}) {
            const Case test = make_case();
            const VocabParallelLossOptions options{
                smoothing, -100, z_loss, reduction};
            const at::Tensor full = test.logits.clone().requires_grad_();
            const at::Tensor expected = reference(full, test.target, options);
            const at::Tensor part =
                test.logits.narrow(-1, begin, length).clone().requires_grad_();
            const at::Tensor loss = vocab_parallel_cross_entropy(
                part, test.target, vocab, *group, options);
            // Float64, sums of eleven and of fifteen numbers.
            EXPECT_TRUE(loss.allclose(expected, 1e-12, 1e-12));
            const at::Tensor gradient =
                torch::linspace(1, 2, loss.numel(), at::kDouble)
                    .view(loss.sizes());
            loss.backward(gradient);
            expected.backward(gradient);
            EXPECT_TRUE(part.grad().allclose(
                full.grad().narrow(-1, begin, length), 1e-12, 1e-12))
                << "smoothing " << smoothing << ", z " << z_loss
                << ", reduction " << static_cast<int>(reduction);
            if (ranks > 1) { // as a layer returns them
              const at::Tensor leaf = test.logits.clone().requires_grad_();
              const at::Tensor same = vocab_parallel_cross_entropy(
                  shard_tensor(leaf, -1, {group.get()}), test.target, options);
              EXPECT_TRUE(same.equal(loss));
              same.backward(gradient);
              EXPECT_TRUE(leaf.grad().allclose(full.grad(), 1e-12, 1e-12));
            }
          }
        }
      }
    });
  }
}

// The loss is computed in float32 and rounded nowhere on the way; the gradient
// is rounded to bfloat16 once, 2^-9 of its value.
TEST(VocabParallelCrossEntropy, TakesLowPrecision) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const DimSplit vocab(kVocab, 2);
    const Case test = make_case(at::kBFloat16);
    const at::Tensor full = test.logits.to(at::kFloat).requires_grad_();
    const at::Tensor expected = reference(full, test.target, {});
    const at::Tensor part =
        test.logits
            .narrow(-1, vocab.begin(world.rank()), vocab.length(world.rank()))
            .clone()
            .requires_grad_();
    const at::Tensor loss =
        vocab_parallel_cross_entropy(part, test.target, vocab, *group);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_NEAR(loss.item<float>(), expected.item<float>(), 1e-5);
    loss.backward();
    expected.backward();
    EXPECT_EQ(part.grad().scalar_type(), at::kBFloat16);
    EXPECT_TRUE(
        part.grad()
            .to(at::kFloat)
            .allclose(
                full.grad().narrow(
                    -1, vocab.begin(world.rank()), vocab.length(world.rank())),
                1.0 / 256,
                1e-7));
  });
}

// Ranks whose logits are huge, and ranks that have nothing to say.
TEST(VocabParallelCrossEntropy, IsStable) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const DimSplit vocab(4, 2);
    const double infinity = std::numeric_limits<double>::infinity();
    const at::Tensor full =
        torch::tensor({{1000.0, 1001.0, -infinity, -infinity}}, at::kDouble);
    const at::Tensor part =
        full.narrow(1, 2 * world.rank(), 2).clone().requires_grad_();
    const at::Tensor loss = vocab_parallel_cross_entropy(
        part, torch::zeros({1}, at::kLong), vocab, *group);
    EXPECT_NEAR(loss.item<double>(), std::log1p(std::exp(1.0)), 1e-12);
    loss.backward();
    EXPECT_TRUE(part.grad().isfinite().all().item<bool>());
  });
}

// More rows than a block of work.
TEST(VocabParallelCrossEntropy, WorksInBlocks) {
  const int64_t tokens = 37;
  const int64_t vocab_size = int64_t{1} << 17;
  Communicator alone("alone");
  torch::manual_seed(1);
  const at::Tensor full = torch::randn({tokens, vocab_size}).requires_grad_();
  const at::Tensor part = full.detach().clone().requires_grad_();
  const at::Tensor target = torch::randint(vocab_size, {tokens}, at::kLong);
  const at::Tensor loss = vocab_parallel_cross_entropy(
      part, target, DimSplit(vocab_size, 1), alone);
  const at::Tensor expected = at::cross_entropy_loss(full, target);
  // Float32 sums of 131072 numbers, in another order.
  EXPECT_NEAR(loss.item<float>(), expected.item<float>(), 1e-4);
  loss.backward();
  expected.backward();
  EXPECT_TRUE(part.grad().allclose(full.grad(), 1e-4, 1e-9));
}

TEST(VocabParallelCrossEntropy, NoTokenAtAllIsNotANumber) {
  Communicator alone("alone");
  const at::Tensor loss = vocab_parallel_cross_entropy(
      torch::zeros({2, 3}),
      torch::full({2}, -100, at::kLong),
      DimSplit(3, 1),
      alone);
  EXPECT_TRUE(std::isnan(loss.item<float>())); // as cross_entropy_loss()
}

TEST(VocabParallelCrossEntropy, WrongArgumentsAreNamed) {
  Communicator alone("alone");
  const DimSplit vocab(3, 1);
  const at::Tensor logits = torch::zeros({2, 3});
  expect_error(
      [&] {
        vocab_parallel_cross_entropy(
            logits, torch::zeros({3}, at::kLong), vocab, alone);
      },
      {"[2, 3]", "[3]"});
  expect_error(
      [&] {
        vocab_parallel_cross_entropy(
            logits, torch::full({2}, 3, at::kLong), vocab, alone);
      },
      {"token 3", "0 to 2"});
  expect_error(
      [&] {
        vocab_parallel_cross_entropy(
            logits, torch::zeros({2}, at::kLong), DimSplit(4, 1), alone);
      },
      {"3 logits", "vocabulary of 4", "should have 4"});
  expect_error(
      [&] {
        vocab_parallel_cross_entropy(
            logits,
            torch::zeros({2}, at::kLong),
            vocab,
            alone,
            {.label_smoothing = 2});
      },
      {"label_smoothing is 2"});
}

TEST(VocabParallelCrossEntropy, TakesWholeLogitsAsOfOneRank) {
  const at::Tensor logits =
      torch::randn({2, 5, 7}, at::kDouble).requires_grad_();
  const at::Tensor target = torch::randint(7, {2, 5}, at::kLong);
  const at::Tensor loss = vocab_parallel_cross_entropy(logits, target);
  loss.backward();
  const at::Tensor gradient = logits.grad().clone();
  logits.mutable_grad().zero_();
  const at::Tensor expected =
      at::cross_entropy_loss(logits.view({10, 7}), target.view({10}));
  expected.backward();
  EXPECT_TRUE(loss.allclose(expected, 0, 1e-12));
  EXPECT_TRUE(gradient.allclose(logits.grad(), 0, 1e-12));
}

} // namespace tessera::sharding::vocab_parallel_loss_test
