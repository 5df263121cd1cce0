// SPDX-License-Identifier: Apache-2.0
// What tensor-parallel ranks divide is whole wherever the engine gives values
// of parameters to code, and is taken whole there.
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>

namespace tessera::engine::full_values_test {

namespace {

using enum TensorDivision;

using Values = std::map<std::string, at::Tensor>;

/// Parts differ in length: 7 tokens and 5 inner features.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : embed(register_module("embed", torch::nn::Embedding(7, 4))),
        up(register_module("up", torch::nn::Linear(4, 5))),
        down(register_module("down", torch::nn::Linear(5, 4))) {}

  torch::Tensor forward(const torch::Tensor& tokens) {
    return down->forward(torch::gelu(up->forward(embed->forward(tokens))));
  }

  torch::nn::Embedding embed;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Net);

Net net_of() {
  torch::manual_seed(3);
  Net net;
  net->to(torch::kDouble);
  return net;
}

at::Tensor batch_of(int index) {
  torch::manual_seed(static_cast<uint64_t>(20 + index));
  return torch::randint(7, {2, 6}, at::kLong);
}

at::Tensor loss_of(Net& net, int index) {
  return net->forward(batch_of(index)).square().mean();
}

/// The mean over the batches that the ranks have, in plain LibTorch.
struct Plain {
  explicit Plain(int batches) : net(net_of()) {
    for (int i = 0; i < batches; ++i) {
      (loss_of(net, i) / batches).backward();
    }
    for (const auto& item : net->named_parameters()) {
      values[item.key()] = item.value().detach().clone();
      gradients[item.key()] = item.value().grad().clone();
    }
  }

  Net net;
  Values values;
  Values gradients;
};

/// The net, divided over `tensor` ranks and sharded over the others.
struct Divided {
  Divided(World& world, int tensor, int zero_stage, bool frozen)
      : mesh(
            {.shard = world.size() / tensor, .tensor = tensor},
            world.size(),
            world.size()),
        groups(world, mesh, at::kCPU),
        net(net_of()),
        index(mesh.index(ParallelGroup::kBatches, world.rank())) {
    apply_tensor_plan(
        *net,
        {{"embed", kVocab}, {"up", kColumn}, {"down", kRow}},
        {&groups[ParallelGroup::kTensor]});
    if (frozen) {
      for (const char* name : {"embed.weight", "up.weight", "up.bias"}) {
        net->named_parameters()[name].requires_grad_(false);
      }
    }
    EngineOptions options;
    options.sharding.groups.min_group_numel = 0;
    options.sharding.zero_stage = zero_stage;
    options.optimizer.rule = SgdOptions{};
    options.optimizer.lr = 0.5;
    options.optimizer.weight_decay = 0;
    options.log_memory = false;
    options.parallel = &mesh;
    engine = std::make_unique<Engine>(world, net.ptr(), options);
  }

  Values values() {
    Values found;
    engine->for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          found[name] = value.clone();
        });
    return found;
  }

  ParallelMesh mesh;
  ParallelGroups groups;
  Net net;
  int index;
  std::unique_ptr<Engine> engine;
};

void expect_equal(const Values& found, const Values& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : expected) {
    EXPECT_EQ(found.at(name).sizes(), value.sizes()) << name;
    EXPECT_TRUE(
        found.at(name).sizes() == value.sizes() &&
        found.at(name).allclose(value, 0, 1e-12))
        << name;
  }
}

struct Layout {
  int world = 2;
  int tensor = 2;
  int zero_stage = 3;
};

constexpr Layout kLayouts[] = {{2, 2, 3}, {3, 3, 1}, {4, 2, 3}};

void on_layouts(
    const std::function<void(World&, Divided&, Plain&)>& body,
    bool frozen = false) {
  for (const Layout& layout : kLayouts) {
    tests::run_ranks(layout.world, [&](World& world) {
      Divided divided(world, layout.tensor, layout.zero_stage, frozen);
      Plain plain(layout.world / layout.tensor);
      body(world, divided, plain);
    });
  }
}

} // namespace

TEST(FullValues, AreVisitedAndWritten) {
  on_layouts([](World& world, Divided& divided, Plain& plain) {
    expect_equal(divided.values(), plain.values);
    Values expected;
    for (const auto& [name, value] : plain.values) {
      expected[name] = value / value.norm();
    }
    divided.engine->for_each_parameter(
        [](const std::string&, const at::Tensor& value) {
          value.div_(value.norm());
        },
        /*writable=*/true);
    expect_equal(divided.values(), expected);
    // Ranks that divide a parameter write one value, too.
    const bool is_last = divided.groups[ParallelGroup::kTensor].rank() > 0;
    expect_error(
        [&] {
          divided.engine->for_each_parameter(
              [&](const std::string& name, const at::Tensor& value) {
                value.fill_(is_last && name == "up.weight" ? 2.0 : 1.0);
              },
              /*writable=*/true);
        },
        {"for_each_parameter()", "have written other values to 'up.weight'"});
    expect_error(
        [&] {
          divided.engine->check_same_values(
              "restore", {{"a", torch::full({2}, is_last ? 1.0 : 2.0)}});
        },
        {"restore", "other values", "'a'", "nothing has changed"});
    EXPECT_GT(world.size(), 1);
  });
}

TEST(FullValues, AreGradientsAndReduced) {
  on_layouts([](World&, Divided& divided, Plain& plain) {
    divided.engine->backward(loss_of(divided.net, divided.index));
    const auto parameters = divided.net->named_parameters();
    Values found;
    for (const auto& item : parameters) {
      found[item.key()] = divided.engine->grad(item.value());
    }
    expect_equal(found, plain.gradients);
    divided.engine->zero_grad();
    EXPECT_FALSE(divided.engine->grad(divided.net->up->weight).defined());
    Values expected;
    for (const auto& item : parameters) {
      divided.engine->reduce(item.value(), 2 * found.at(item.key()));
      expected[item.key()] =
          plain.values.at(item.key()) - plain.gradients.at(item.key());
    }
    expect_error(
        [&] {
          divided.engine->reduce(divided.net->up->weight, torch::zeros({2, 2}));
        },
        {"'up.weight' has shape [2, 2]", "of [5, 4]"});
    divided.engine->step(); // 0.5 * 2 * gradient
    expect_equal(divided.values(), expected);
  });
}

TEST(FullValues, AreReadAndWrittenInScopes) {
  on_layouts([](World&, Divided& divided, Plain& plain) {
    const torch::NoGradGuard no_grad;
    Engine& engine = *divided.engine;
    const auto parameters = divided.net->named_parameters();
    {
      const GatherScope scope = engine.gather();
      // Forwards still multiply with parts.
      EXPECT_NEAR(
          loss_of(divided.net, 9).item<double>(),
          loss_of(plain.net, 9).item<double>(),
          1e-12);
    }
    {
      GatherScope scope = engine.gather();
      Values found;
      for (const auto& item : parameters) {
        found[item.key()] = scope.full(item.value()).detach().clone();
      }
      expect_equal(found, plain.values);
      expect_error(
          [&] { scope.full(torch::zeros({2})); },
          {"GatherScope::full", "not one of the scope"});
    }
    Values expected = plain.values;
    {
      GatherScope scope = engine.gather(
          {divided.net->up->weight, divided.net->embed->weight},
          {.writable = true});
      const at::Tensor up = scope.full(divided.net->up->weight);
      up.div_(up.norm());
      EXPECT_TRUE(scope.full(divided.net->up->weight).is_same(up));
      divided.net->embed->weight.mul_(0.5); // parts, element by element
      scope.commit();
      expected["up.weight"] /= expected["up.weight"].norm().item<double>();
      expected["embed.weight"] = expected["embed.weight"] * 0.5;
    }
    expect_equal(divided.values(), expected);
    {
      GatherScope scope = engine.gather(*divided.net->down, {.writable = true});
      scope.full(divided.net->down->weight).fill_(0.25);
    } // the destructor takes them, too
    expected["down.weight"].fill_(0.25);
    expect_equal(divided.values(), expected);
    GatherScope scope = engine.gather();
    scope.full(divided.net->up->weight).zero_();
    expect_error(
        [&] { scope.commit(); }, {"'up.weight'", "not writable", "is lost"});
    expect_equal(divided.values(), expected);
  });
}

// A part that is taken for the whole: other numbers on every rank, and no word.
void expect_refused(const at::Tensor& weight, const std::string& name) {
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { weight.norm(); },
           [&] { weight.sum(); },
           [&] { weight.mean(); },
           [&] { weight.max(); },
           [&] { weight.abs().max(); },
           [&] { weight.clone(); },
           [&] { weight.isfinite().all(); },
           [&] { weight.view(-1).norm(); },
           [&] { weight.flatten().max(); },
           [&] { weight.unsqueeze(0).sum(); },
           [&] { weight.transpose(0, -1).mean(); },
           [&] { weight[0].abs(); },
           [&] { weight.slice(0, 0, 1).view(-1)[0].item(); },
           [&] { weight.unsqueeze(0).chunk(1)[0].clone(); },
           [&] { weight.to(torch::kFloat).norm(); },
           [&] { weight.view(-1).to(torch::kFloat); }}) {
    expect_error(
        read,
        {"which is divided by a tensor plan",
         "GatherScope::full()",
         "for_each_parameter()",
         name.c_str()});
  }
  // The part is meant.
  EXPECT_GT(weight.detach().norm().item<double>(), 0);
  EXPECT_GT(weight.detach().view(-1).norm().item<double>(), 0);
  EXPECT_GT(weight.data().flatten().norm().item<double>(), 0);
  EXPECT_TRUE(weight.view(-1).equal(weight.detach().view(-1)));
}

TEST(FullValues, PartsAreNotTakenForThem) {
  for (const bool frozen : {false, true}) {
    on_layouts(
        [](World&, Divided& divided, Plain& plain) {
          const auto parameters = divided.net->named_parameters();
          const auto expect_all_refused = [&] {
            for (const char* name :
                 {"up.weight", "up.bias", "down.weight", "embed.weight"}) {
              SCOPED_TRACE(name);
              expect_refused(parameters[name], name);
            }
          };
          const torch::NoGradGuard no_grad;
          expect_all_refused();
          {
            const c10::InferenceMode inference;
            const at::Tensor weight = divided.net->up->weight;
            expect_error([&] { weight.norm(); }, {"'up.weight'"});
            expect_error([&] { weight.view(-1).norm(); }, {"'up.weight'"});
          }
          const GatherScope scope = divided.engine->gather();
          expect_all_refused();
          EXPECT_NEAR(
              divided.net->down->bias.norm().item<double>(),
              plain.values.at("down.bias").norm().item<double>(),
              1e-12);
        },
        frozen);
  }
}

} // namespace tessera::engine::full_values_test
