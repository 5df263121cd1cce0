// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor_parallel/parallel_attention.h"
#include "sharding/tensor_parallel/tensor_gradient_norm.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/tensor_parts.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "tessera/sharding/tensor_parallel/parallel_linear.h"
#include "tessera/sharding/tensor_parallel/slice_init.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_embedding.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>

namespace tessera::sharding::parallel_layers_test {

namespace {

// Float64 sums of some tens of numbers of size 1, in another order.
constexpr double kTolerance = 1e-12;

const DistributedParameterOptions kDouble{at::kDouble};

ParallelLinearOptions linear_options(int64_t in, int64_t out) {
  ParallelLinearOptions options;
  options.in = in;
  options.out = out;
  options.parameters = kDouble;
  return options;
}

template <typename Holder>
Holder ready(Holder module) {
  init_parameters(*module, 11);
  materialize(*module);
  return module;
}

/// The same on all ranks.
at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed = 1) {
  torch::manual_seed(seed);
  return torch::randn(sizes, at::kDouble);
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.allclose(b, kTolerance, kTolerance);
}

/// x as it is between layers.
at::Tensor between(const at::Tensor& x, const TensorParallel& tp) {
  return tp.sequence ? shard_tensor(x, tp.sequence_dim, tp) : x;
}

/// This rank holds all of `x` between layers, or its part of the sequences, and
/// that is what stands there in `full`.
void expect_between(
    const at::Tensor& x,
    const at::Tensor& full,
    const TensorParallel& tp) {
  const DimSplit split(full.size(1), tp.sequence ? tp.group->size() : 1);
  const int part = tp.sequence ? tp.group->rank() : 0;
  const at::Tensor local = local_tensor(x);
  EXPECT_FALSE(is_dtensor(local));
  ASSERT_EQ(local.size(1), split.length(part));
  EXPECT_TRUE(close(local, full.narrow(1, split.begin(part), local.size(1))));
  EXPECT_TRUE(close(full_tensor(x), full));
}

/// A layer on one rank, and divided: results of the same input and gradient.
struct Both {
  at::Tensor input_gradient, output; ///< of one rank
  at::Tensor divided_input_gradient, divided_output;
};

template <typename Module>
Both run_both(
    Module& alone,
    Module& divided,
    const TensorParallel& tp,
    const at::Tensor& x) {
  Both both;
  const at::Tensor full = x.clone().requires_grad_();
  both.output = alone->forward(full);
  const at::Tensor gradient = numbers(both.output.sizes(), 2);
  both.output.backward(gradient);
  both.input_gradient = full.grad();

  const at::Tensor leaf = x.clone().requires_grad_();
  both.divided_output = divided->forward(between(leaf, tp));
  (both.divided_output * gradient).sum().backward();
  both.divided_input_gradient = leaf.grad();
  return both;
}

/// Every parameter, and its gradient where it has one, is the part of the whole
/// that it should be.
void expect_parts(
    const torch::nn::Module& full,
    const torch::nn::Module& divided,
    const World& world) {
  const TensorSpecs specs = specs_in(divided);
  const auto full_tensors = full.named_parameters();
  for (const auto& item : divided.named_parameters()) {
    const auto part_of = [&](const at::Tensor& tensor) {
      return tests::local_part(
          tensor, specs.at(item.value().unsafeGetTensorImpl()), world.rank());
    };
    const at::Tensor& reference = full_tensors[item.key()];
    EXPECT_TRUE(item.value().equal(part_of(reference))) << item.key();
    if (reference.grad().defined()) {
      EXPECT_TRUE(close(item.value().grad(), part_of(reference.grad())))
          << item.key();
    }
  }
}

/// LibTorch's layer with the values of one that is on one rank.
at::Tensor plain_linear(const ParallelLinearImpl& linear, const at::Tensor& x) {
  return torch::nn::functional::linear(
      x, linear.weight.clone(), linear.bias.clone());
}

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(const TensorParallel& tp)
      : up(tp, linear_options(6, 7)), down(tp, linear_options(7, 6)) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) {
    return down->forward(up->forward(x).tanh());
  }
  ColumnParallelLinear up;
  RowParallelLinear down;
};
TORCH_MODULE(Mlp);

} // namespace

TEST(SliceInit, GivesTheNumbersOfTheWhole) {
  const std::vector<int64_t> sizes{3, 10, 4};
  const RandomStream random{1, 2};
  const InitMethod init = xavier_normal_init();
  const at::Tensor full = torch::empty(sizes);
  init(full.view({-1}), {sizes, 0, random});
  const std::vector<std::vector<DimRange>> slices{
      {{0, 1, 2}}, {{1, 1, 9}}, {{2, 1, 3}}, {{0, 1, 3}, {2, 0, 3}}};
  for (const std::vector<DimRange>& ranges : slices) {
    const InitMethod part = slice_init(init, sizes, ranges);
    at::Tensor expected = full;
    for (const DimRange& range : ranges) {
      expected =
          expected.narrow(range.dim, range.begin, range.end - range.begin);
    }
    const std::vector<int64_t> local_sizes = expected.sizes().vec();
    const at::Tensor made = torch::empty(local_sizes);
    // In pieces that begin and end anywhere.
    const at::Tensor flat = made.view({-1});
    for (int64_t first = 0; first < flat.numel(); first += 7) {
      const int64_t count = std::min<int64_t>(7, flat.numel() - first);
      part(flat.narrow(0, first, count), {local_sizes, first, random});
    }
    EXPECT_TRUE(made.equal(expected)) << expected.sizes();
  }
}

// The columns of a row-divided weight have as many runs as rows.
TEST(SliceInit, DoesNothingInDryRuns) {
  const runtime::DryRun run;
  const at::Tensor made = torch::empty({int64_t{1} << 20});
  int runs = 0;
  slice_init(
      [&runs](const at::Tensor&, const InitPosition&) { ++runs; },
      {1 << 20, 2},
      {{1, 0, 1}})(made, {{1 << 20, 1}, 0, {}});
  EXPECT_EQ(runs, 0);
}

TEST(ParallelLinear, AloneIsLibTorchs) {
  Communicator alone("alone");
  for (const auto division :
       {LinearDivision::kData, LinearDivision::kColumn, LinearDivision::kRow}) {
    auto linear =
        ready(Linear1D(division, TensorParallel{&alone}, linear_options(5, 4)));
    const at::Tensor x = numbers({2, 3, 5});
    EXPECT_TRUE(
        full_tensor(linear->forward(x)).equal(plain_linear(*linear, x)));
    EXPECT_LE(linear->weight.abs().max().item<double>(), 1 / std::sqrt(5.0));
    EXPECT_GT(linear->weight.std().item<double>(), 0.1);
  }
}

TEST(ParallelLinear, ColumnThenRowIsTheWholeMlp) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool sequence : {false, true}) {
      tests::run_ranks(ranks, [sequence](World& world) {
        auto group = world.new_communicator("tensor");
        const TensorParallel tp{group.get(), sequence};
        Communicator alone_group("alone");
        auto alone = ready(Mlp(TensorParallel{&alone_group}));
        auto divided = ready(Mlp(tp));
        const Both both = run_both(alone, divided, tp, numbers({2, 12, 6}));
        expect_between(both.divided_output, both.output, tp);
        EXPECT_TRUE(close(both.divided_input_gradient, both.input_gradient));
        expect_parts(*alone, *divided, world);
      });
    }
  }
}

// A row layer takes what is between layers, too.
TEST(ParallelLinear, GathersItsOutputAndDividesItsInput) {
  for (const bool sequence : {false, true}) {
    tests::run_ranks(3, [sequence](World& world) {
      auto group = world.new_communicator("tensor");
      Communicator alone_group("alone");
      const TensorParallel tp{group.get(), sequence};
      for (const auto division :
           {LinearDivision::kColumn, LinearDivision::kRow}) {
        ParallelLinearOptions options = linear_options(5, 8);
        options.gather_output = division == LinearDivision::kColumn;
        auto alone =
            ready(Linear1D(division, TensorParallel{&alone_group}, options));
        auto divided = ready(Linear1D(division, tp, options));
        const Both both = run_both(alone, divided, tp, numbers({2, 6, 5}));
        if (options.gather_output) {
          EXPECT_FALSE(is_dtensor(both.divided_output));
          EXPECT_TRUE(close(both.divided_output, both.output));
        } else {
          expect_between(both.divided_output, both.output, tp);
        }
        EXPECT_TRUE(close(both.divided_input_gradient, both.input_gradient));
        expect_parts(*alone, *divided, world);
      }
    });
  }
}

TEST(ParallelLinear, DataIsWholeOnSequenceParts) {
  for (const bool sequence : {false, true}) {
    tests::run_ranks(2, [sequence](World& world) {
      auto group = world.new_communicator("tensor");
      Communicator alone_group("alone");
      const TensorParallel tp{group.get(), sequence};
      const auto options = linear_options(5, 3);
      auto alone = ready(Linear1D(
          LinearDivision::kData, TensorParallel{&alone_group}, options));
      auto divided = ready(Linear1D(LinearDivision::kData, tp, options));
      const Both both = run_both(alone, divided, tp, numbers({2, 4, 5}));
      expect_between(both.divided_output, both.output, tp);
      EXPECT_TRUE(close(both.divided_input_gradient, both.input_gradient));
      expect_parts(*alone, *divided, world);
    });
  }
}

// A row layer's bias is added once, not once per rank, and its replicas stay
// the same to the last bit while they are trained: with sequence parts as well,
// where each rank's own tokens would pull it elsewhere.
TEST(ParallelLinear, BiasReplicasDoNotDrift) {
  for (const bool sequence : {false, true}) {
    tests::run_ranks(3, [sequence](World& world) {
      auto group = world.new_communicator("tensor");
      const TensorParallel tp{group.get(), sequence};
      auto mlp = ready(Mlp(tp));
      const at::Tensor x = between(numbers({2, 6, 6}), tp);
      for (int step = 0; step < 5; ++step) {
        mlp->zero_grad();
        (mlp->forward(x) - x.sin()).square().sum().backward();
        const torch::NoGradGuard no_grad;
        for (auto& parameter : mlp->parameters()) {
          parameter.sub_(0.01 * parameter.grad());
        }
      }
      const at::Tensor all = torch::empty({3, 6}, at::kDouble);
      const at::Tensor bias = mlp->down->bias.detach();
      group->all_gather(all, bias, "a test's gather").wait();
      EXPECT_TRUE(all[0].equal(bias));
      // And it has moved.
      EXPECT_FALSE(bias.equal(ready(Mlp(tp))->down->bias));
    });
  }
}

TEST(VocabParallelEmbedding, IsTheWholeTable) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool sequence : {false, true}) {
      tests::run_ranks(ranks, [sequence](World& world) {
        auto group = world.new_communicator("tensor");
        const TensorParallel tp{group.get(), sequence};
        Communicator alone_group("alone");
        VocabParallelEmbeddingOptions options{
            .vocab = 11, .features = 5, .padding_id = 4, .parameters = kDouble};
        auto alone = ready(
            VocabParallelEmbedding(TensorParallel{&alone_group}, options));
        auto divided = ready(VocabParallelEmbedding(tp, options));
        torch::manual_seed(9);
        const at::Tensor tokens = torch::randint(11, {3, 12}, at::kLong);
        const at::Tensor plain =
            at::embedding(alone->weight.clone(), tokens, 4);
        const at::Tensor full = alone->forward(tokens);
        EXPECT_TRUE(full.equal(plain));
        const at::Tensor gradient = numbers(full.sizes(), 2);
        full.backward(gradient);
        const at::Tensor self_tensor = divided->forward(tokens);
        EXPECT_TRUE(full_tensor(self_tensor).equal(full));
        expect_between(self_tensor, full, tp);
        // Under sequence parallelism every rank has the gradients of its own
        // tokens only; the table's must still be that of all tokens.
        (self_tensor * gradient).sum().backward();
        expect_parts(*alone, *divided, world);
        EXPECT_EQ(
            alone->weight.grad()[4].abs().max().item<double>(), 0); // padding
      });
    }
  }
}

TEST(VocabParallelEmbedding, NamesTokensThatAreNone) {
  Communicator alone("alone");
  auto table = ready(VocabParallelEmbedding(
      TensorParallel{&alone},
      VocabParallelEmbeddingOptions{.vocab = 11, .features = 5}));
  expect_error(
      [&] { table->forward(torch::full({2}, 11, at::kLong)); },
      {"token 11", "0 to 10"});
  expect_error([&] { table->forward(torch::zeros({2})); }, {"int64"});
  expect_error(
      [&] {
        VocabParallelEmbedding(
            TensorParallel{&alone},
            VocabParallelEmbeddingOptions{
                .vocab = 11, .features = 5, .padding_id = 11});
      },
      {"padding_id is 11"});
}

TEST(ParallelAttention, IsTheWholeAttention) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool sequence : {false, true}) {
      tests::run_ranks(ranks, [sequence](World& world) {
        auto group = world.new_communicator("tensor");
        const TensorParallel tp{group.get(), sequence};
        Communicator alone_group("alone");
        // Three kv heads over two ranks: uneven.
        ParallelAttentionOptions options;
        options.features = 24;
        options.heads = 6;
        options.kv_heads = 3;
        options.causal = true;
        options.parameters = kDouble;
        auto alone =
            ready(ParallelAttention(TensorParallel{&alone_group}, options));
        auto divided = ready(ParallelAttention(tp, options));
        const Both both = run_both(alone, divided, tp, numbers({2, 6, 24}));
        expect_between(both.divided_output, both.output, tp);
        EXPECT_TRUE(close(both.divided_input_gradient, both.input_gradient));
        expect_parts(*alone, *divided, world);
      });
    }
  }
}

// Written out with plain operators.
TEST(ParallelAttention, IsThePublishedFormula) {
  for (const int ranks : {1, 2}) {
    tests::run_ranks(ranks, [](World& world) {
      auto group = world.new_communicator("tensor");
      Communicator alone_group("alone");
      ParallelAttentionOptions options;
      options.features = 8;
      options.heads = 4;
      options.kv_heads = 2;
      options.parameters = kDouble;
      auto divided =
          ready(ParallelAttention(TensorParallel{group.get()}, options));
      auto full =
          ready(ParallelAttention(TensorParallel{&alone_group}, options));
      const at::Tensor x = numbers({2, 5, 8});
      const at::Tensor mask = numbers({5, 5}, 4);
      const auto project = [&](ColumnParallelLinear& linear, int64_t repeat) {
        return plain_linear(*linear, x)
            .view({2, 5, -1, 2})
            .transpose(1, 2)
            .repeat_interleave(repeat, 1);
      };
      const at::Tensor scores =
          project(full->q_proj, 1)
                  .matmul(project(full->k_proj, 2).transpose(2, 3)) /
              std::sqrt(2.0) +
          mask;
      const at::Tensor heads =
          scores.softmax(-1).matmul(project(full->v_proj, 2));
      EXPECT_TRUE(close(
          divided->forward(x, mask),
          plain_linear(
              *full->o_proj, heads.transpose(1, 2).reshape({2, 5, 8}))));
    });
  }
}

// Each rank drops other weights of its heads; the result, and what is dropped
// outside, is one on all ranks.
TEST(ParallelAttention, DropsDifferentlyInsideAndAlikeOutside) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    ParallelAttentionOptions options;
    options.features = 8;
    options.heads = 2;
    options.kv_heads = 2;
    options.dropout = 0.5;
    options.bias = false;
    options.parameters = kDouble;
    auto attention =
        ready(ParallelAttention(TensorParallel{group.get()}, options));
    {
      // Both heads have the same weights, and each half of the output is one
      // head: only dropout can part them.
      const torch::NoGradGuard no_grad;
      for (auto* linear :
           {&attention->q_proj, &attention->k_proj, &attention->v_proj}) {
        (*linear)->weight.copy_(numbers({4, 8}));
      }
      attention->o_proj->weight.copy_(
          torch::eye(8, at::kDouble).narrow(1, 4 * world.rank(), 4));
    }
    const at::Tensor x = numbers({1, 6, 8});
    const auto halves_differ = [](const at::Tensor& y) {
      return !y.narrow(-1, 0, 4).equal(y.narrow(-1, 4, 4));
    };
    torch::manual_seed(3);
    const at::Tensor dropped = attention->forward(x);
    EXPECT_TRUE(halves_differ(dropped));
    const at::Tensor outside = torch::dropout(dropped, 0.5, true).detach();
    const at::Tensor first = outside.clone();
    group->broadcast(first, 0, "a test's broadcast").wait();
    EXPECT_TRUE(first.equal(outside));
    attention->eval();
    EXPECT_FALSE(halves_differ(attention->forward(x)));
  });
}

TEST(ParallelLayers, NameWhatDoesNotDivide) {
  tests::run_ranks(4, [](World& world) {
    auto group = world.new_communicator("tensor");
    const TensorParallel tp{group.get()};
    expect_error(
        [&] { ColumnParallelLinear(tp, linear_options(8, 3)); },
        {"ColumnParallelLinear.weight", "[3, 8]", "4 ranks", "smaller group"});
    expect_error(
        [&] { RowParallelLinear(tp, linear_options(3, 8)); },
        {"RowParallelLinear.weight", "[8, 3]", "4 ranks"});
    expect_error(
        [&] { ColumnParallelLinear(tp, linear_options(8, 0)); },
        {"8 input and 0 output"});
    ParallelLinearOptions linear = linear_options(8, 8);
    linear.unit = 3;
    expect_error([&] { ColumnParallelLinear(tp, linear); }, {"units of 3"});
    linear.unit = 4; // two heads for four ranks
    expect_error([&] { ColumnParallelLinear(tp, linear); }, {"units of 4"});
    linear = linear_options(8, 8);
    linear.gather_output = true;
    expect_error([&] { RowParallelLinear(tp, linear); }, {"gather_output"});
    expect_error(
        [&] {
          Linear1D(
              LinearDivision::kData, TensorParallel{}, linear_options(8, 8));
        },
        {"no group"});
    VocabParallelEmbeddingOptions table{.vocab = 3, .features = 5};
    expect_error(
        [&] { VocabParallelEmbedding(tp, table); },
        {"VocabParallelEmbedding.weight", "[3, 5]", "4 ranks"});
    expect_error(
        [&] { VocabParallelEmbedding(TensorParallel{}, table); }, {"no group"});
  });
}

TEST(TensorGradientNorm, CountsReplicasOnce) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const int ranks : {1, 2, 3}) {
    tests::run_ranks(ranks, [infinity](World& world) {
      auto group = world.new_communicator("tensor");
      Communicator alone_group("alone");
      auto alone = ready(Mlp(TensorParallel{&alone_group}));
      auto divided = ready(Mlp(TensorParallel{group.get()}));
      const at::Tensor x = numbers({2, 3, 6});
      alone->forward(x).square().sum().backward();
      divided->forward(x).square().sum().backward();
      for (const double p : {1.0, 2.0, infinity}) {
        double expected = 0;
        for (const auto& parameter : alone->parameters()) {
          const double norm = parameter.grad().norm(p).item<double>();
          expected = std::isinf(p) ? std::max(expected, norm)
                                   : expected + std::pow(norm, p);
        }
        expected = std::isinf(p) ? expected : std::pow(expected, 1 / p);
        EXPECT_NEAR(tensor_gradient_norm(*divided, *group, p), expected, 1e-10);
        EXPECT_NEAR(
            tensor_gradient_norm(*alone, alone_group, p), expected, 1e-10);
      }
      const double before = clip_tensor_gradients(*divided, *group, 0.5);
      EXPECT_GT(before, 0.5);
      EXPECT_NEAR(tensor_gradient_norm(*divided, *group), 0.5, 1e-12);
      EXPECT_NEAR(clip_tensor_gradients(*divided, *group, 2), 0.5, 1e-12);
      EXPECT_NEAR(tensor_gradient_norm(*divided, *group), 0.5, 1e-12);

      // One rank's NaN is everybody's.
      if (world.rank() == 0) {
        divided->up->weight.grad()[0][0] = std::nan("");
      }
      EXPECT_TRUE(std::isnan(tensor_gradient_norm(*divided, *group)));
      EXPECT_TRUE(std::isnan(tensor_gradient_norm(*divided, *group, infinity)));
    });
  }
  Communicator alone("alone");
  expect_error(
      [&] { tensor_gradient_norm(torch::nn::Module("empty"), alone, 0); },
      {"order 0"});
}

} // namespace tessera::sharding::parallel_layers_test
