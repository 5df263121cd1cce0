// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/tensor_plan.h"
#include "sharding/tensor_parallel/plain_model.h"
#include "sharding/tensor_parallel/tensor_gradient_norm.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/tensor_parts.h"
#include "tessera/sharding/checkpointing/checkpoint.h"
#include "tessera/sharding/lazy/lazy.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace tessera::sharding::tensor_plan_test {

namespace {

using enum TensorDivision;

// Float64 in another order: some hundreds of roundings of numbers of size 1.
constexpr double kTolerance = 1e-12;

TensorPlan plan_of(const PlainModelOptions& options) {
  const int64_t head = options.features / options.heads;
  return {
      {"embed", kVocab},
      {"layers.*.attention.output", kRow, head},
      {"layers.*.attention.*", kColumn, head},
      {"layers.*.mlp.0", kColumn},
      {"layers.*.mlp.2", kRow},
      {"head", kColumnGathered}};
}

PlainModel model_of(const PlainModelOptions& options) {
  torch::manual_seed(6);
  PlainModel model(options);
  model->to(torch::kDouble);
  if (options.tied) {
    model->head->weight = model->embed->weight;
  }
  return model;
}

/// This rank's part of what stands in `full`, or all of it.
at::Tensor expected_part(
    const at::Tensor& full,
    const at::Tensor& parameter,
    const TensorSpecs& specs,
    int rank) {
  return tests::local_part(
      full, specs.at(parameter.unsafeGetTensorImpl()), rank);
}

/// How many parameters are divided.
size_t count_divided(const torch::nn::Module& module) {
  const TensorSpecs specs = specs_in(module);
  return static_cast<size_t>(
      std::count_if(specs.begin(), specs.end(), [](const auto& item) {
        return item.second.divided_dim(kTensorAxis).has_value();
      }));
}

void expect_same_gradients(
    const torch::nn::Module& divided,
    const torch::nn::Module& full,
    int rank) {
  const TensorSpecs specs = specs_in(divided);
  const auto full_tensors = full.named_parameters();
  for (const auto& item : divided.named_parameters()) {
    const at::Tensor& gradient = full_tensors[item.key()].grad();
    ASSERT_EQ(item.value().grad().defined(), gradient.defined()) << item.key();
    if (gradient.defined()) {
      EXPECT_TRUE(item.value().grad().allclose(
          expected_part(gradient, item.value(), specs, rank), 0, kTolerance))
          << item.key();
    }
  }
}

struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

Batch batch_of(const PlainModelOptions& options) {
  torch::manual_seed(1);
  const at::Tensor tokens = torch::randint(options.vocab, {3, 9}, at::kLong);
  return {tokens.narrow(1, 0, 8), tokens.narrow(1, 1, 8).contiguous()};
}

void check_model(World& world, const PlainModelOptions& options) {
  auto group = world.new_communicator("tensor");
  const TensorParallel tp{group.get()};
  PlainModel full = model_of(options);
  PlainModel divided = model_of(options);
  const size_t names = divided->named_parameters().size();
  apply_tensor_plan(*divided, plan_of(options), tp);
  EXPECT_EQ(divided->named_parameters().size(), names);
  // An embedding, in two layers four linear ones of attention, of which three
  // have divided biases, and two of the MLP, one; and an own head.
  EXPECT_EQ(
      count_divided(*divided),
      world.size() == 1 ? 0U : 1U + 2 * (7 + 3) + (options.tied ? 0 : 1));

  const Batch batch = batch_of(options);
  for (int step = 0; step < 2; ++step) {
    divided->zero_grad();
    full->zero_grad();
    const at::Tensor loss = divided->forward(batch.tokens, batch.targets);
    const at::Tensor expected = full->forward(batch.tokens, batch.targets);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), kTolerance);
    loss.backward();
    expected.backward();
    expect_same_gradients(*divided, *full, world.rank());
    Communicator alone("alone");
    EXPECT_NEAR(
        clip_tensor_gradients(*divided, *group, 0.5),
        clip_tensor_gradients(*full, alone, 0.5),
        kTolerance);
    torch::optim::SGD(divided->parameters(), 0.5).step();
    torch::optim::SGD(full->parameters(), 0.5).step();
  }
}

} // namespace

TEST(TensorPlan, TrainsAModelAsOneRankDoes) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool tied : {false, true}) {
      tests::run_ranks(ranks, [=](World& world) {
        check_model(world, {.tied = tied, .head_bias = !tied});
      });
    }
  }
}

TEST(TensorPlan, WorksInLayersOfLibTorch) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const auto make = [] {
      torch::manual_seed(2);
      torch::nn::TransformerEncoderLayer layer(
          torch::nn::TransformerEncoderLayerOptions(12, 3)
              .dim_feedforward(21)
              .dropout(0));
      layer->to(torch::kDouble);
      return layer;
    };
    auto full = make();
    auto divided = make();
    // Multi-head attention has one weight for query, key and value, which is
    // not a Linear's; its output projection takes all features here.
    apply_tensor_plan(
        *divided,
        {{"linear1", kColumn}, {"linear2", kRow}, {"self_attn.out_proj", kRow}},
        {group.get()});
    EXPECT_EQ(divided->linear1->weight.size(0), world.rank() == 0 ? 11 : 10);
    const at::Tensor x = torch::randn({4, 2, 12}, at::kDouble);
    const at::Tensor self_tensor = x.clone().requires_grad_();
    const at::Tensor full_input = x.clone().requires_grad_();
    divided->forward(self_tensor).square().sum().backward();
    full->forward(full_input).square().sum().backward();
    EXPECT_TRUE(self_tensor.grad().allclose(full_input.grad(), 0, 1e-11));
    expect_same_gradients(*divided, *full, world.rank());
  });
}

TEST(TensorPlan, SeesEveryWayToMultiply) {
  using Use = std::function<at::Tensor(torch::nn::Linear&, const at::Tensor&)>;
  const std::vector<Use> uses{
      [](auto& linear, const at::Tensor& x) { return linear->forward(x); },
      [](auto& linear, const at::Tensor& x) {
        return torch::linear(x, linear->weight, linear->bias);
      },
      [](auto& linear, const at::Tensor& x) {
        return torch::matmul(x, linear->weight.t()) + linear->bias;
      },
      [](auto& linear, const at::Tensor& x) {
        return torch::mm(x, linear->weight.transpose(-1, 0)) + linear->bias;
      },
      [](auto& linear, const at::Tensor& x) {
        return x.matmul(linear->weight.detach().mT()) + linear->bias;
      },
      [](auto& linear, const at::Tensor& x) {
        return torch::addmm(linear->bias, x, linear->weight.t(), 0.5, 2);
      }};
  tests::run_ranks(2, [&](World& world) {
    auto group = world.new_communicator("tensor");
    for (const TensorDivision division : {kColumnGathered, kRow}) {
      for (size_t i = 0; i < uses.size(); ++i) {
        SCOPED_TRACE(i);
        torch::manual_seed(3);
        torch::nn::Linear full(5, 7);
        full->to(torch::kDouble);
        const at::Tensor x = torch::randn({4, 5}, at::kDouble);
        torch::manual_seed(3);
        torch::nn::Linear divided(5, 7);
        // Cast when it is divided already, as Module::to() may.
        apply_tensor_plan(*divided, {{"", division}}, {group.get()});
        divided->to(torch::kDouble);
        const at::Tensor self_tensor = x.clone().requires_grad_();
        const at::Tensor full_input = x.clone().requires_grad_();
        const at::Tensor y = uses[i](divided, self_tensor);
        const at::Tensor expected = uses[i](full, full_input);
        EXPECT_TRUE(y.allclose(expected, 0, kTolerance));
        y.square().sum().backward();
        expected.square().sum().backward();
        EXPECT_TRUE(
            self_tensor.grad().allclose(full_input.grad(), 0, kTolerance));
        expect_same_gradients(*divided, *full, world.rank());
      }
    }
  });
}

TEST(TensorPlan, IsComputedAgainInCheckpoints) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const auto gradients = [&](bool checkpointed) {
      torch::manual_seed(3);
      torch::nn::Sequential mlp(
          torch::nn::Linear(6, 11),
          torch::nn::GELU(),
          torch::nn::Linear(11, 6));
      apply_tensor_plan(*mlp, {{"0", kColumn}, {"2", kRow}}, {group.get()});
      const at::Tensor x = torch::randn({3, 6}).requires_grad_();
      const auto run = [&](const at::Tensor& in) { return mlp->forward(in); };
      const at::Tensor y =
          checkpointed ? checkpoint({.trains = true}, run, x) : run(x);
      y.square().sum().backward();
      std::vector<at::Tensor> found{y.detach(), x.grad()};
      for (const at::Tensor& parameter : mlp->parameters()) {
        found.push_back(parameter.grad());
      }
      return found;
    };
    const auto once = gradients(false);
    const auto again = gradients(true);
    for (size_t i = 0; i < once.size(); ++i) {
      EXPECT_TRUE(once[i].equal(again[i])) << i;
    }
  });
}

TEST(TensorPlan, DividesWhatHasNoMemoryYet) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const auto make = [] {
      return lazy([] { return torch::nn::Linear(100, 70); }, {.seed = 4});
    };
    auto full = make();
    materialize(*full);
    for (const TensorDivision division : {kColumn, kRow}) {
      auto divided = make();
      apply_tensor_plan(*divided, {{"", division}}, {group.get()});
      EXPECT_TRUE(is_deferred(divided->weight));
      materialize(*divided);
      const TensorSpecs specs = specs_in(*divided);
      EXPECT_TRUE(divided->weight.equal(
          expected_part(full->weight, divided->weight, specs, world.rank())));
    }
  });
}

// One text, or one position on each rank: what leaves the layer is in memory
// as it was communicated, and the layer adds its bias to it in place.
TEST(TensorPlan, DividesSequencesOfOneText) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    torch::manual_seed(4);
    torch::nn::Linear full(6, 4);
    full->to(at::kDouble);
    torch::nn::Linear row(6, 4);
    row->to(at::kDouble);
    {
      const torch::NoGradGuard no_grad;
      row->weight.copy_(full->weight);
      row->bias.copy_(full->bias);
    }
    apply_tensor_plan(*row, {{"", kRow}}, {group.get(), /*sequence=*/true});
    for (const auto& sizes :
         {std::vector<int64_t>{1, 4, 6}, std::vector<int64_t>{3, 2, 6}}) {
      const at::Tensor x = torch::randn(sizes, at::kDouble).requires_grad_();
      const at::Tensor y = full->forward(x);
      const at::Tensor found = row->forward(x);
      EXPECT_TRUE(full_tensor(found).allclose(y));
      const at::Tensor expected =
          torch::autograd::grad({y.square().sum()}, {x})[0];
      EXPECT_TRUE(
          torch::autograd::grad({found.square().sum()}, {x})[0].allclose(
              expected));
    }
  });
}

/// As a mixture of experts has them: what it costs does not grow with the
/// square of their number.
TEST(TensorPlan, ThousandsOfNamesTakeLittleMemory) {
  tests::run_ranks(1, [](World& world) {
    auto group = world.new_communicator("tensor");
    constexpr int kExperts = 3000;
    torch::nn::ModuleList experts;
    TensorPlan plan;
    for (int i = 0; i < kExperts; ++i) {
      experts->push_back(torch::nn::Linear(2, 2));
      plan.push_back({std::to_string(i), kColumn});
    }
    const auto peak_kib = [] {
      rusage usage{};
      EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
      return usage.ru_maxrss;
    };
    const auto before = peak_kib();
    apply_tensor_plan(*experts, plan, {group.get()});
    // Each name beside each other one would be 9 million strings of 32 bytes.
    EXPECT_LT(peak_kib() - before, 64 << 10);
  });
}

TEST(TensorPlan, SaysWhatCannotBeDivided) {
  tests::run_ranks(2, [](World& world) {
    auto group = world.new_communicator("tensor");
    const TensorParallel tp{group.get()};
    PlainModel model = model_of({});
    const auto expect = [&](const TensorPlan& plan,
                            std::initializer_list<const char*> parts) {
      expect_error([&] { apply_tensor_plan(*model, plan, tp); }, parts);
      EXPECT_EQ(count_divided(*model), 0U);
    };
    expect(
        {{"layers.*.mlp.0", kColumn}, {"layers.*.atention.query", kColumn}},
        {"'layers.*.atention.query'",
         "matches nothing",
         "attention.query",
         "text without dots"});
    expect({{"layers.*", kColumn}}, {"'layers.0'", "PlainLayer", "Linear"});
    expect(
        {{"layers.0.mlp.0", kColumn}, {"layers.0.mpl.2", kRow}},
        {"'layers.0.mpl.2'", "matches nothing", "layers.0.mlp.2"});
    expect({{"head", kVocab}}, {"'head'", "Linear", "kVocab", "Embedding"});
    expect({{"embed", kRow}}, {"'embed'", "kRow", "Linear"});
    expect(
        {{"head", kColumn, 5}},
        {"dimension 0", "'head.weight'", "[37, 24]", "2 ranks", "units of 5"});
    expect({{"head", kColumn, 37}}, {"units of 37", "smaller group"});
    expect_error([&] { apply_tensor_plan(*model, {}, {}); }, {"no group"});
    PlainModel tied = model_of({.tied = true});
    expect_error(
        [&] {
          apply_tensor_plan(*tied, {{"embed", kVocab}, {"head", kRow}}, tp);
        },
        {"'head.weight'", "'embed.weight'", "kRow", "kColumn"});

    apply_tensor_plan(*model, {{"head", kColumnGathered}}, tp);
    expect_error(
        [&] {
          apply_tensor_plan(*model, {{"head", kColumn}}, tp);
        },
        {"'head.weight'", "already divided"});
    const at::Tensor x = torch::randn({4, 24}, at::kDouble);
    const at::Tensor weight = model->head->weight;
    expect_error(
        [&] { torch::matmul(weight, x.t()); }, {"'head.weight'", "x W^T"});
    expect_error(
        [&] { torch::linear(x, weight.narrow(0, 0, 2)); }, {"a weight"});
    expect_error([&] { torch::einsum("bi,oi->bo", {x, weight}); }, {"einsum"});
    // What would be computed on this rank's part in place of the whole.
    torch::nn::Linear column(6, 4);
    apply_tensor_plan(*column, {{"", kColumn}}, tp);
    const std::vector<std::pair<const char*, std::function<void()>>> others{
        {"norm", [&] { weight.norm(); }},
        {"sum", [&] { weight.sum(); }},
        {"mean", [&] { column->bias.mean(); }},
        {"pow", [&] { column->bias.square(); }},
        {"abs", [&] { weight.abs(); }},
        {"max", [&] { weight.max(); }},
        {"mul", [&] { weight * 2; }},
        {"softmax", [&] { weight.softmax(0); }},
        {"leaky_relu", [&] { torch::leaky_relu(weight); }},
        {"elu", [&] { torch::elu(weight); }},
        {"stack",
         [&] {
           torch::stack({weight, weight});
         }},
        {"a view", [&] { weight.view(-1).sum(); }},
        {"a view", [&] { weight.t().slice(0, 0, 3).mean(0); }},
        {"normalize", [&] { torch::nn::functional::normalize(weight); }}};
    for (const auto& [label, compute] : others) {
      SCOPED_TRACE(label);
      expect_error(compute, {"divided by a tensor plan"});
      const torch::NoGradGuard no_grad; // looking at the part is no error
      compute();
    }
    expect_error([&] { weight.norm(); }, {"'head.weight'"});
    expect_error([&] { weight[0].norm(); }, {"'head.weight'"});
    EXPECT_TRUE(weight.equal(weight.detach().clone()));
    EXPECT_TRUE(weight.equal(weight));
    EXPECT_EQ(weight.detach().sum().dim(), 0);
    expect_error(
        [&] {
          weight.set_data(torch::zeros({37, 24}, at::kDouble));
        },
        {"set_data", "'head.weight'", "[37, 24]"});
    torch::nn::Linear row(6, 4);
    apply_tensor_plan(*row, {{"", kRow}}, tp);
    expect_error(
        [&] {
          row->forward(torch::zeros({2, 5}));
        },
        {"kRow", "6 features", "[2, 5]"});
  });
}

} // namespace tessera::sharding::tensor_plan_test
