// SPDX-License-Identifier: Apache-2.0
// What ranks write to parameters outside of steps is the same on all of them,
// or an error on all of them.
#include "engine/twin.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/parallel_mesh.h"
#include "tessera/sharding/expert_parallel/divided_experts.h"

#include <functional>
#include <utility>
#include <vector>

namespace tessera::tests::written_values_test {

namespace {

using sharding::DividedExperts;

EngineOptions options_of_stage(int stage) {
  EngineOptions options;
  options.log_memory = false;
  options.sharding.zero_stage = stage;
  return options;
}

void step(Engine& engine, StackImpl& net, int seed) {
  torch::manual_seed(seed);
  engine.backward(net.forward(torch::randn({2, kWidth})).square().mean());
  engine.step();
}

constexpr std::initializer_list<const char*> kTold = {
    "for_each_parameter(): rank 0 and rank 1 have written other values to 'block1.down.weight' and 1 more;",
    "load_weights()"};

} // namespace

TEST(WrittenValues, OtherOnesAreTheErrorOfCommit) {
  for (const int stage : {1, 3}) {
    run_ranks(2, [&](World& world) {
      torch::manual_seed(1);
      Stack net;
      Engine engine = wrap(net, options_of_stage(stage));
      step(engine, *net, 1);
      const torch::NoGradGuard no_grad;
      {
        auto scope = engine.gather({.writable = true});
        net->first->weight.fill_(0.25);
        scope.commit();
        scope.commit(); // has ended
      }
      {
        const auto scope = engine.gather();
        EXPECT_TRUE(net->first->weight.eq(0.25).all().item<bool>());
      }
      auto scope = engine.gather(*net->blocks[1], {.writable = true});
      if (world.rank() == 0) { // as with modifier_rank of DeepSpeed
        net->blocks[1]->up->bias.add_(1);
        net->blocks[1]->down->weight[0][0].add_(1);
      }
      expect_error([&] { scope.commit(); }, kTold);
    });
  }
}

TEST(WrittenValues, OtherOnesAreTheErrorOfTheNextCallAfterAScope) {
  const std::vector<std::function<void(Engine&, StackImpl&)>> next{
      [](Engine& engine, StackImpl& net) { step(engine, net, 3); },
      [](Engine& engine, StackImpl&) { engine.save("not_written"); },
      [](Engine& engine, StackImpl&) {
        const auto scope = engine.gather();
        engine.sum_over_ranks(torch::zeros({1}));
      }};
  for (const auto& call : next) {
    run_ranks(2, [&](World& world) {
      torch::manual_seed(1);
      Stack net;
      Engine engine = wrap(net, options_of_stage(3));
      step(engine, *net, 1);
      step(engine, *net, 2);
      {
        const torch::NoGradGuard no_grad;
        const auto scope = engine.gather({.writable = true});
        net->blocks[1]->up->bias.add_(world.rank());
        net->blocks[1]->down->weight.add_(world.rank());
      }
      expect_error([&] { call(engine, *net); }, kTold);
      step(engine, *net, 4); // told once
    });
  }
}

TEST(WrittenValues, OtherOnesOfVisitorsAreAnError) {
  run_ranks(2, [&](World& world) {
    Stack net;
    Engine engine = wrap(net, options_of_stage(3));
    const auto write = [&](double rank) {
      engine.for_each_parameter(
          [&](const std::string& name, const at::Tensor& value) {
            if (name == "block1.down.weight" || name == "last.weight") {
              value.add_(rank);
            }
          },
          /*writable=*/true);
    };
    write(0.5);
    expect_error([&] { write(world.rank()); }, kTold);
  });
}

// Ranks with other experts write other values, those with the same the same.
TEST(WrittenValues, OfExpertsAreThoseOfTheRanksThatHaveThem) {
  run_ranks(4, [&](World& world) {
    const ParallelMesh mesh({.expert = 2}, world.size(), world.size());
    const int part = mesh.index(ParallelGroup::kExpert, world.rank());
    auto net = std::make_shared<torch::nn::Module>();
    net->register_module("layer", torch::nn::Linear(3, 4));
    const auto experts =
        net->register_module("experts", std::make_shared<DividedExperts>());
    const auto expert = experts->register_module(
        "expert" + std::to_string(part), torch::nn::Linear(4, 5));
    EngineOptions options = options_of_stage(3);
    options.parallel = &mesh;
    Engine engine = wrap(net, options);
    const auto write = [&](double value) {
      auto scope = engine.gather({.writable = true});
      const torch::NoGradGuard no_grad;
      expert->weight.fill_(value);
      scope.commit();
    };
    write(part);
    expect_error(
        [&] { write(world.rank() == 3 ? 1.5 : part); },
        {"rank 1 and rank 3 have written other values to 'experts.expert1.weight';"});
    expect_error(
        [&] {
          engine.for_each_parameter(
              [&](const std::string& name, const at::Tensor& value) {
                if (name == "experts.expert0.bias") {
                  value.fill_(world.rank());
                }
              },
              /*writable=*/true);
        },
        {"rank 0 and rank 2 have written other values to 'experts.expert0.bias';"});
    write(part + 2);
    const auto scope = engine.gather();
    EXPECT_TRUE(expert->weight.eq(part + 2).all().item<bool>());
  });
}

TEST(WrittenValues, ScopesMayEndInAnyOrder) {
  run_ranks(2, [&](World& world) {
    torch::manual_seed(1);
    Stack net;
    Engine engine = wrap(net, options_of_stage(3));
    auto first = engine.gather(*net->first, {.writable = true});
    auto last = engine.gather(*net->last, {.writable = true});
    {
      const torch::NoGradGuard no_grad;
      net->first->bias.fill_(0.25);
      net->last->bias.fill_(0.5);
    }
    std::vector<GatherScope> scopes;
    scopes.push_back(std::move(world.rank() == 0 ? first : last));
    { const GatherScope other(std::move(world.rank() == 0 ? last : first)); }
    scopes.clear();
    step(engine, *net, 1);
  });
}

TEST(WrittenValues, ValuesAreComparedBeforeTheyAreWritten) {
  run_ranks(2, [&](World& world) {
    torch::manual_seed(1);
    Stack net;
    Engine engine = wrap(net, options_of_stage(3));
    const auto check = [&](const at::Tensor& value) {
      engine.check_same_values(
          "restore", {{"a", torch::ones({3})}, {"b", value}});
    };
    const at::Tensor value = torch::arange(6).view({2, 3}).t();
    check(value);
    check(torch::empty({0}));
    const at::Tensor other = value.clone();
    other[2][1] += world.rank();
    for (const at::Tensor& wrong :
         {other, value.to(world.rank() == 0 ? torch::kInt : torch::kFloat)}) {
      expect_error(
          [&] { check(wrong); },
          {"restore: rank 0 and rank 1 pass other values of 'b'; nothing has changed",
           "load_weights()"});
    }
    step(engine, *net, 1);
  });
}

} // namespace tessera::tests::written_values_test
