// SPDX-License-Identifier: Apache-2.0
// The chunked head and the tied embedding against their plain forms. All is
// float64, where the order of sums shows in the 16th digit: 1e-12 tells right
// from wrong.
#include "runtime/kernels/softmax_loss_cases.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/helpers/linear_cross_entropy.h"
#include "tessera/engine/helpers/tied_embedding.h"
#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_softmax.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <string>
#include <vector>

namespace tessera::engine::language_model_helpers_test {

namespace {

using Reduction = LinearCrossEntropyOptions::Reduction;
using sharding::DimSplit;

constexpr double kTolerance = 1e-12;
constexpr int64_t kClasses = 11;
constexpr int64_t kWidth = 5;

bool near(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && at::allclose(a, b, 0, kTolerance);
}

struct TinyLmImpl : torch::nn::Module {
  explicit TinyLmImpl(bool with_helpers) : helpers(with_helpers) {
    torch::manual_seed(3);
    wte = register_module("wte", torch::nn::Embedding(kClasses, kWidth));
    mix = register_module("mix", torch::nn::Linear(kWidth, kWidth));
    to(torch::kDouble);
  }

  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor targets = ids.roll(-1, 1);
    if (helpers) {
      const auto [x, head_weight] = tied_embedding(wte->weight, ids);
      return linear_cross_entropy(
          torch::tanh(mix(x)), head_weight, targets, {.chunk_rows = 3});
    }
    const auto logits = torch::linear(torch::tanh(mix(wte(ids))), wte->weight);
    return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  }

  bool helpers;
  torch::nn::Embedding wte{nullptr};
  torch::nn::Linear mix{nullptr};
};
TORCH_MODULE(TinyLm);

at::Tensor ids_of(int seed) {
  torch::manual_seed(seed);
  return torch::randint(kClasses, {2, 7}, torch::kLong);
}

constexpr int64_t kHeadClasses = 37; // divides by nothing
constexpr int64_t kBatch = 2;
constexpr int64_t kLength = 6;

/// Where the classes' biases are.
enum class Bias { kNone, kDivided, kWhole };

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(Bias kind) {
    torch::manual_seed(5);
    linear = register_module(
        "linear",
        torch::nn::Linear(torch::nn::LinearOptions(kWidth, kHeadClasses)
                              .bias(kind == Bias::kDivided)));
    if (kind == Bias::kWhole) {
      bias = register_parameter("bias", torch::randn({kHeadClasses}));
    }
  }
  at::Tensor bias_of_classes() const {
    return linear->bias.defined() ? linear->bias : bias;
  }

  torch::nn::Linear linear{nullptr};
  at::Tensor bias;
};
TORCH_MODULE(Head);

struct HeadCase {
  Bias bias = Bias::kNone;
  LinearCrossEntropyOptions options = {};
  bool has_class_weights = false;
  bool sequence = false; ///< hidden states are divided along the sequence
  std::string text = {};
};

std::vector<HeadCase> head_cases() {
  return {
      {.text = "plain"},
      {.bias = Bias::kDivided,
       .options = {.ignore_index = 7, .chunk_rows = 5},
       .text = "bias, ignored index, chunks"},
      {.bias = Bias::kWhole,
       .options = {.label_smoothing = 0.1, .z_loss = 0.02},
       .text = "whole bias, smoothing, z loss"},
      {.options = {.reduction = Reduction::kSum, .label_smoothing = 0.2},
       .has_class_weights = true,
       .text = "sum, smoothing, class weights"},
      {.bias = Bias::kDivided,
       .options = {.z_loss = 0.02},
       .has_class_weights = true,
       .text = "bias, z loss, class weights"},
      {.bias = Bias::kWhole,
       .options = {.label_smoothing = 0.1, .z_loss = 0.01, .chunk_rows = 4},
       .has_class_weights = true,
       .sequence = true,
       .text = "all, sequences divided"}};
}

struct HeadFound {
  at::Tensor loss;
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor bias;
};

HeadFound run_head(
    Head head,
    const HeadCase& which,
    const TensorParallel* tp,
    at::ScalarType dtype) {
  torch::manual_seed(6);
  const at::Tensor hidden =
      torch::randn({kBatch, kLength, kWidth}).to(dtype).requires_grad_();
  const at::Tensor targets = torch::randint(kHeadClasses, {kBatch, kLength});
  LinearCrossEntropyOptions options = which.options;
  targets[0][0] = 0;
  targets[0][1] = kHeadClasses - 1;
  targets[1][2] = options.ignore_index;
  targets[1][5] = options.ignore_index;
  if (which.has_class_weights) {
    options.class_weights = torch::rand({kHeadClasses}) + 0.5;
  }
  head->to(dtype);
  const at::Tensor x =
      tp != nullptr && which.sequence ? shard_tensor(hidden, 1, *tp) : hidden;
  const at::Tensor loss = linear_cross_entropy(
      x, head->linear->weight, head->bias_of_classes(), targets, options);
  (loss * 3).backward();
  const at::Tensor bias = head->bias_of_classes();
  return {
      loss.detach(),
      hidden.grad(),
      head->linear->weight.grad(),
      bias.defined() ? bias.grad() : bias};
}

void expect_near(
    const at::Tensor& found,
    const at::Tensor& expected,
    double tolerance,
    const char* what) {
  ASSERT_TRUE(found.defined()) << what;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const at::Tensor wide = expected.to(at::kDouble);
  EXPECT_LE(
      (found.to(at::kDouble) - wide).abs().max().item<double>(),
      tolerance * wide.abs().max().item<double>())
      << what;
}

void check_heads(
    World& world,
    Communicator& group,
    bool fused,
    at::ScalarType dtype) {
  runtime::use_fused_operators(fused);
  const double tolerance = dtype == at::kDouble     ? 1e-12
                           : dtype == at::kBFloat16 ? 0x1p-7
                                                    : 3e-6;
  for (const HeadCase& which : head_cases()) {
    SCOPED_TRACE(
        which.text + " " + at::toString(dtype) + (fused ? "" : ", off"));
    const HeadFound whole = run_head(Head(which.bias), which, nullptr, dtype);
    const TensorParallel tp{&group, which.sequence, /*sequence_dim=*/1};
    Head head(which.bias);
    apply_tensor_plan(*head, {{"linear", TensorDivision::kColumn}}, tp);
    const HeadFound found = run_head(head, which, &tp, dtype);
    const DimSplit split(kHeadClasses, group.size());
    const auto local = [&](const at::Tensor& all) {
      return all.narrow(
          0, split.begin(world.rank()), split.length(world.rank()));
    };
    expect_near(found.loss, whole.loss, tolerance, "loss");
    expect_near(found.hidden, whole.hidden, tolerance, "hidden");
    expect_near(found.weight, local(whole.weight), tolerance, "weight");
    if (which.bias == Bias::kDivided) {
      expect_near(found.bias, local(whole.bias), tolerance, "bias");
    } else if (which.bias == Bias::kWhole) {
      expect_near(found.bias, whole.bias, tolerance, "bias");
    }
  }
}

} // namespace

TEST(LinearCrossEntropy, EqualsThePlainForm) {
  for (const auto reduction : {Reduction::kMean, Reduction::kSum}) {
    for (const int64_t chunk_rows : {1, 4, 12, 100}) {
      torch::manual_seed(chunk_rows);
      const auto options = torch::dtype(torch::kDouble).requires_grad(true);
      const auto hidden = torch::randn({3, 4, kWidth}, options);
      const auto weight = torch::randn({kClasses, kWidth}, options);
      const auto targets = torch::randint(kClasses, {3, 4}, torch::kLong);
      targets[0][1] = -100;
      targets[2][3] = -100;
      const auto loss = linear_cross_entropy(
          hidden,
          weight,
          targets,
          {.reduction = reduction, .chunk_rows = chunk_rows});
      const auto plain = torch::cross_entropy_loss(
          torch::linear(hidden, weight).flatten(0, 1),
          targets.flatten(),
          {},
          reduction == Reduction::kMean ? at::Reduction::Mean
                                        : at::Reduction::Sum);
      EXPECT_TRUE(near(loss, plain));
      // Not one, so that the scaling in backward is seen.
      const auto actual = torch::autograd::grad({loss * 3}, {hidden, weight});
      const auto wanted = torch::autograd::grad({plain * 3}, {hidden, weight});
      EXPECT_TRUE(near(actual[0], wanted[0]));
      EXPECT_TRUE(near(actual[1], wanted[1]));
    }
  }
}

TEST(LinearCrossEntropy, EqualsThePlainFormWithBiasAndSmoothing) {
  for (const double smoothing : {0.0, 0.1}) {
    torch::manual_seed(8);
    const auto options = torch::dtype(torch::kDouble).requires_grad(true);
    const std::vector<at::Tensor> inputs{
        torch::randn({3, 4, kWidth}, options),
        torch::randn({kClasses, kWidth}, options),
        torch::randn({kClasses}, options)};
    const auto targets = torch::randint(kClasses, {3, 4}, torch::kLong);
    targets[1][2] = -100;
    const auto loss = linear_cross_entropy(
        inputs[0],
        inputs[1],
        inputs[2],
        targets,
        {.label_smoothing = smoothing, .chunk_rows = 5});
    const auto plain = torch::cross_entropy_loss(
        torch::linear(inputs[0], inputs[1], inputs[2]).flatten(0, 1),
        targets.flatten(),
        {},
        at::Reduction::Mean,
        -100,
        smoothing);
    EXPECT_TRUE(near(loss, plain));
    const auto expected = torch::autograd::grad({plain}, inputs);
    const auto found = torch::autograd::grad({loss}, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(near(found[i], expected[i])) << i << ", " << smoothing;
    }
  }
}

// Float32 and 16 bits by the kernel and by LibTorch's operators, with a bias,
// class weights, smoothing and z-loss, in one chunk and in several; float64 by
// the operators. The exact values are those of float64 on the same inputs.
TEST(LinearCrossEntropy, OfAllDtypesIsAsInFloat64) {
  constexpr int64_t kManyClasses = 101;
  constexpr int64_t kManyWidth = 24;
  for (const bool fused : {true, false}) {
    runtime::use_fused_operators(fused);
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const int64_t chunk_rows : {6, 100}) {
        torch::manual_seed(8);
        const std::vector<at::Tensor> inputs{
            torch::randn({5, 3, kManyWidth}).to(dtype).requires_grad_(),
            torch::randn({kManyClasses, kManyWidth}).to(dtype).requires_grad_(),
            torch::randn({kManyClasses}).to(dtype).requires_grad_()};
        std::vector<at::Tensor> wide;
        for (const at::Tensor& input : inputs) {
          wide.push_back(input.detach().to(at::kDouble).requires_grad_());
        }
        const auto targets = torch::randint(kManyClasses, {5, 3});
        targets[1][2] = -100;
        const auto weights = torch::rand({kManyClasses}) + 0.5;
        const auto loss = linear_cross_entropy(
            inputs[0],
            inputs[1],
            inputs[2],
            targets,
            {.label_smoothing = 0.1,
             .z_loss = 0.02,
             .class_weights = weights,
             .chunk_rows = chunk_rows});
        const auto logits =
            torch::linear(wide[0], wide[1], wide[2]).flatten(0, 1);
        const auto rows = targets.flatten();
        const auto counted = rows.ne(-100);
        const auto row_weights = weights.to(at::kDouble)
                                     .index_select(0, rows.mul(counted))
                                     .mul(counted);
        const auto plain =
            torch::cross_entropy_loss(
                logits,
                rows,
                weights.to(at::kDouble),
                at::Reduction::Mean,
                -100,
                0.1) +
            (torch::logsumexp(logits, 1).square() * row_weights).sum() * 0.02 /
                row_weights.sum();
        const double unit = dtype == at::kDouble  ? 1e-12
                            : dtype == at::kFloat ? 1e-5
                                                  : 0x1p-6;
        EXPECT_TRUE(at::allclose(loss.to(at::kDouble), plain, unit, 0))
            << loss << plain;
        const auto found = torch::autograd::grad({loss}, inputs);
        const auto expected = torch::autograd::grad({plain}, wide);
        for (size_t i = 0; i < inputs.size(); ++i) {
          EXPECT_EQ(found[i].scalar_type(), dtype);
          EXPECT_TRUE(((found[i].to(at::kDouble) - expected[i]).abs().max() <=
                       unit * expected[i].abs().max())
                          .item<bool>())
              << fused << dtype << chunk_rows << i;
        }
      }
    }
  }
  runtime::use_fused_operators(true);
}

// Recorded runs: with `fused` off, the loss and the gradients have the bits of
// the operators one after the other.
TEST(LinearCrossEntropy, OffHasTheBitsOfLibTorchsOperators) {
  runtime::use_fused_operators(false);
  torch::manual_seed(8);
  const auto hidden = torch::randn({40, 24}).requires_grad_();
  const auto weight = torch::randn({1001, 24}).requires_grad_();
  const auto targets = torch::randint(1001, {40});
  const auto loss = linear_cross_entropy(hidden, weight, targets);
  loss.backward();
  runtime::use_fused_operators(true);
  const torch::NoGradGuard no_grad;
  const auto share = torch::full({}, 40.F).reciprocal_();
  auto logits = torch::mm(hidden, weight.t());
  const auto log_sum = logits.logsumexp(1, true);
  const auto losses = log_sum - logits.gather(1, targets.unsqueeze(1));
  EXPECT_TRUE(at::equal(loss, losses.sum() * share));
  logits.sub_(log_sum).exp_();
  logits.scatter_add_(1, targets.unsqueeze(1), torch::full({40, 1}, -1.F));
  logits.mul_(share);
  EXPECT_TRUE(at::equal(hidden.grad(), torch::mm(logits, weight)));
  EXPECT_TRUE(at::equal(
      weight.grad(), torch::zeros_like(weight).addmm_(logits.t(), hidden)));
}

TEST(LinearCrossEntropy, IgnoresAnotherIndexAndNonFiniteRowsBehindIt) {
  const auto hidden = torch::randn({4, kWidth}, torch::kDouble);
  hidden[2].fill_(std::numeric_limits<double>::infinity());
  hidden.requires_grad_(true);
  const auto weight = torch::randn({kClasses, kWidth}, torch::kDouble);
  const auto targets = torch::tensor({1, 2, 7, 3}, torch::kLong);
  const auto loss =
      linear_cross_entropy(hidden, weight, targets, {.ignore_index = 7});
  EXPECT_TRUE(loss.isfinite().item<bool>());
  loss.backward();
  EXPECT_TRUE(
      at::equal(hidden.grad()[2], torch::zeros({kWidth}, torch::kDouble)));
}

TEST(LinearCrossEntropy, NeedsNoGradientOfAFrozenWeightOrWithoutGrad) {
  const auto hidden = torch::randn(
      {4, kWidth}, torch::dtype(torch::kDouble).requires_grad(true));
  const auto weight = torch::randn({kClasses, kWidth}, torch::kDouble);
  const auto targets = torch::tensor({1, 2, 0, 3}, torch::kLong);
  linear_cross_entropy(hidden, weight, targets).backward();
  EXPECT_TRUE(hidden.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(linear_cross_entropy(hidden, weight, targets).requires_grad());
}

TEST(LinearCrossEntropy, SaysWhichShapesDoNotFit) {
  const auto targets = torch::zeros({4}, torch::kLong);
  expect_error(
      [&] {
        linear_cross_entropy(
            torch::randn({4, 5}), torch::randn({9, 6}), targets);
      },
      {"linear_cross_entropy", "[4, 5]", "[9, 6]"});
  expect_error(
      [&] {
        linear_cross_entropy(
            torch::randn({4, 5}), torch::randn({9, 5}), targets.to(at::kInt));
      },
      {"int64"});
  const auto wide = torch::zeros({4, 5});
  expect_error(
      [&] {
        linear_cross_entropy(
            wide,
            torch::zeros({9, 5}),
            torch::zeros({8}),
            torch::zeros({4}, torch::kLong));
      },
      {"bias has shape [8]", "[9, 5]"});
  expect_error(
      [&] {
        linear_cross_entropy(
            wide,
            torch::zeros({9, 5}),
            torch::zeros({4}, torch::kLong),
            {.label_smoothing = 1});
      },
      {"label_smoothing is 1"});
  for (const int64_t target : {9, -1}) {
    expect_error(
        [&] {
          linear_cross_entropy(
              wide,
              torch::zeros({9, 5}),
              torch::tensor({int64_t{-100}, int64_t{8}, target, int64_t{0}}));
        },
        {"linear_cross_entropy",
         target == 9 ? "targets has the class 9 in row 2"
                     : "targets has the class -1 in row 2",
         "0 to 8"});
  }
}

// In bfloat16, 256 + 1 = 256: sums of more than that need float32.
TEST(LinearCrossEntropy, SumsOfManyChunksAreNotLost) {
  constexpr int64_t kRows = 2048;
  const auto options = torch::dtype(torch::kBFloat16).requires_grad(true);
  const auto weight = torch::zeros({2, 1}, options);
  const auto bias = torch::zeros({2}, options);
  linear_cross_entropy(
      torch::ones({kRows, 1}, torch::kBFloat16),
      weight,
      bias,
      torch::zeros({kRows}, torch::kLong),
      {.reduction = Reduction::kSum, .chunk_rows = 1})
      .backward();
  // Of two classes with equal logits: a half each.
  const auto expected =
      torch::tensor({-kRows / 2.0, kRows / 2.0}, torch::kDouble);
  EXPECT_TRUE(weight.grad().flatten().to(torch::kDouble).equal(expected))
      << weight.grad();
  EXPECT_TRUE(bias.grad().to(torch::kDouble).equal(expected)) << bias.grad();
}

TEST(DividedHead, HasTheLossOfTheWholeHead) {
  for (const int ranks : {2, 3}) {
    tests::run_ranks(ranks, [](World& world) {
      auto group = world.new_communicator("tensor");
      check_heads(world, *group, true, at::kFloat);
      check_heads(world, *group, true, at::kDouble);
      check_heads(world, *group, true, at::kBFloat16);
      check_heads(world, *group, false, at::kFloat);
      check_heads(world, *group, false, at::kDouble);
    });
  }
}

TEST(DividedHead, IsTheWholeLossOfAllDtypesOnOneRank) {
  Communicator alone("alone");
  for (const bool fused : {true, false}) {
    for (const auto& which : runtime::softmax_loss_cases::all_cases()) {
      runtime::softmax_loss_cases::check_case(
          which,
          [&](const at::Tensor& logits,
              const at::Tensor& losses,
              const at::Tensor& targets,
              const at::Tensor& scale,
              int64_t classes,
              const runtime::SoftmaxLossOptions& options,
              bool gradients) {
            sharding::vocab_parallel_softmax_loss_(
                logits,
                losses,
                targets,
                scale,
                DimSplit(classes, 1),
                alone,
                options,
                gradients,
                fused);
          });
    }
  }
}

// Ranks whose logits are huge, or all -infinity; rows that are ignored.
TEST(DividedHead, IsStable) {
  for (const bool fused : {true, false}) {
    tests::run_ranks(2, [fused](World& world) {
      auto group = world.new_communicator("tensor");
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      const at::Tensor full = torch::tensor(
          {{1e4F, 1e4F + 1, -kInfinity, -kInfinity},
           {-kInfinity, 3.0F, -1e4F, 1e4F},
           {NAN, 0.0F, kInfinity, 1.0F}});
      const at::Tensor wide =
          full.narrow(0, 0, 2).to(at::kDouble).requires_grad_();
      const at::Tensor targets = torch::tensor({0, 3, -100});
      const at::Tensor exact = at::cross_entropy_loss(
          wide, targets.narrow(0, 0, 2), {}, at::Reduction::None);
      exact.sum().backward();
      const at::Tensor logits = full.narrow(1, 2 * world.rank(), 2).clone();
      const at::Tensor losses = torch::empty({3});
      sharding::vocab_parallel_softmax_loss_(
          logits,
          losses,
          targets,
          torch::ones({}),
          DimSplit(4, 2),
          *group,
          {},
          true,
          fused);
      EXPECT_TRUE(losses.narrow(0, 0, 2)
                      .to(at::kDouble)
                      .allclose(exact.detach(), 1e-5, 1e-6))
          << losses;
      EXPECT_EQ(losses[2].item<float>(), 0);
      EXPECT_TRUE(
          logits.narrow(0, 0, 2)
              .to(at::kDouble)
              .allclose(wide.grad().narrow(1, 2 * world.rank(), 2), 1e-5, 1e-6))
          << logits;
      EXPECT_EQ(logits[2].count_nonzero().item<int64_t>(), 0);
    });
  }
}

TEST(DividedHead, NamesAClassThatIsNone) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    Head head(Bias::kNone);
    apply_tensor_plan(
        *head, {{"linear", TensorDivision::kColumn}}, {group.get()});
    expect_error(
        [&] {
          linear_cross_entropy(
              torch::zeros({2, kWidth}),
              head->linear->weight,
              torch::tensor({int64_t{1}, kHeadClasses}));
        },
        {"linear_cross_entropy", "the class 37 in row 1", "0 to 36"});
  });
}

TEST(TiedEmbedding, EqualsThePlainForm) {
  TinyLm actual(true);
  TinyLm plain(false);
  for (int step = 0; step < 3; ++step) {
    const auto ids = ids_of(step);
    const auto loss = actual->forward(ids);
    const auto expected = plain->forward(ids);
    EXPECT_TRUE(near(loss, expected));
    loss.backward(); // accumulates over the steps
    expected.backward();
    EXPECT_TRUE(near(actual->wte->weight.grad(), plain->wte->weight.grad()));
    EXPECT_TRUE(near(actual->mix->weight.grad(), plain->mix->weight.grad()));
  }
}

TEST(TiedEmbedding, TheGradientOfAFrequentIdIsNotLost) {
  const auto options = torch::dtype(torch::kBFloat16).requires_grad(true);
  const auto weight = torch::zeros({kClasses, 2}, options);
  auto ids = torch::full({2048}, 3, torch::kLong);
  ids[1000] = 0;
  ids[2000] = kClasses - 1;
  const auto [x, head_weight] = tied_embedding(weight, ids);
  (x.sum() + head_weight.sum()).backward();
  auto expected = torch::ones({kClasses, 2}, torch::kDouble);
  expected[0] += 1;
  expected[3] += 2046;
  expected[kClasses - 1] += 1;
  // A sum of 2047 is rounded to eight bits.
  EXPECT_TRUE(at::allclose(weight.grad().to(at::kDouble), expected, 1e-2, 0))
      << weight.grad();
}

TEST(TiedEmbedding, LeavesAGradientAloneThatSomebodyElseHolds) {
  const auto options = torch::dtype(torch::kDouble).requires_grad(true);
  const auto weight = torch::randn({kClasses, kWidth}, options);
  const auto ids = ids_of(0);
  const auto [x, head_weight] = tied_embedding(weight, ids);
  head_weight.retain_grad();
  (x.sum() + head_weight.pow(2).sum()).backward();
  EXPECT_TRUE(near(head_weight.grad(), 2 * weight.detach()));
  const auto counts = torch::bincount(ids.flatten(), {}, kClasses);
  EXPECT_TRUE(near(
      weight.grad(),
      2 * weight.detach() + counts.unsqueeze(1).to(torch::kDouble)));
}

TEST(TiedEmbedding, WorksWithOneOfTheTwoUsesAndWithPadding) {
  const auto options = torch::dtype(torch::kDouble).requires_grad(true);
  const auto ids = torch::tensor({1, 4, 1}, torch::kLong);
  for (const int64_t padding_idx : {-1, 4}) {
    const auto weight = torch::randn({kClasses, kWidth}, options);
    tied_embedding(weight, ids, padding_idx).output.sum().backward();
    EXPECT_EQ(weight.grad()[1][0].item<double>(), 2);
    EXPECT_EQ(weight.grad()[4][0].item<double>(), padding_idx == 4 ? 0 : 1);
  }
  const auto weight = torch::randn({kClasses, kWidth}, options);
  tied_embedding(weight, ids).head_weight.sum().backward();
  EXPECT_TRUE(near(weight.grad(), torch::ones_like(weight)));
}

// Sharded over two ranks, with the gradient clipped, against the plain model
// that sees both batches.
TEST(LanguageModelHelpers, WorkOnShardedWeights) {
  tests::run_ranks(2, [](World& world) {
    TinyLm actual(true);
    TinyLm plain(false);
    EngineOptions options;
    options.log_memory = false;
    Engine engine = wrap(actual, options);
    torch::optim::AdamW optimizer(
        plain->parameters(),
        torch::optim::AdamWOptions(options.optimizer.lr).weight_decay(0.01));
    for (int step = 0; step < 4; ++step) {
      engine.backward(actual->forward(ids_of(10 * step + world.rank())));
      engine.clip_grad_norm(0.1);
      engine.step();
      plain->zero_grad();
      for (int r = 0; r < world.size(); ++r) {
        (plain->forward(ids_of(10 * step + r)) / world.size()).backward();
      }
      torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1);
      optimizer.step();
    }
    const auto expected = plain->named_parameters();
    engine.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          // AdamW divides a gradient by its own size: 1e-9, see twin.h.
          EXPECT_TRUE(at::allclose(value, expected[name], 0, 1e-9)) << name;
        });
  });
}

} // namespace tessera::engine::language_model_helpers_test
