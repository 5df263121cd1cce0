// SPDX-License-Identifier: Apache-2.0
// Quantized communication: what operators see and what gradients become is what
// the formats say, in float64; training stays near its exact twin; fewer bytes
// are sent.
#include "engine/twin.h"
#include "support/ranks.h"
#include "tessera/planner/step_plan.h"
#include "tessera/sharding/paging/pager.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::communication_test {

namespace {

using tests::run_ranks;

constexpr int64_t kBlock = 64;
constexpr int64_t kInputs = 24;

/// Three layers of different sizes and a norm, float32.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(kInputs, 160))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({160})))),
        second(register_module("second", torch::nn::Linear(160, 72))),
        last(register_module("last", torch::nn::Linear(72, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    return last(torch::tanh(second(norm(torch::tanh(first(x))))));
  }
  torch::nn::Linear first;
  torch::nn::LayerNorm norm;
  torch::nn::Linear second;
  torch::nn::Linear last;
};
TORCH_MODULE(Net);

Net make_net() {
  torch::manual_seed(5);
  return Net();
}

struct Batch {
  at::Tensor x;
  at::Tensor y;
};

/// A fixed function of the inputs, so that there is something to learn.
Batch batch_of(int step, int rank) {
  torch::manual_seed(7);
  const at::Tensor truth = torch::randn({kInputs, 2});
  torch::manual_seed(1000 * (step + 1) + rank);
  const at::Tensor x = torch::randn({16, kInputs});
  return {x, torch::tanh(x.matmul(truth) / 5)};
}

at::Tensor loss_of(Net& net, const Batch& batch) {
  return (net->forward(batch.x) - batch.y).square().mean();
}

EngineOptions options_of(Compression gather, Compression reduce) {
  EngineOptions options;
  options.sharding.groups.min_group_numel = 0;
  options.sharding.communication = {
      .gather = gather, .reduce = reduce, .block_elements = kBlock};
  options.optimizer.lr = 3e-3;
  options.log_memory = false;
  return options;
}

Engine wrapped(Net& net, const EngineOptions& options) {
  return wrap(std::shared_ptr<torch::nn::Module>(net.ptr()), options);
}

/// Values as they arrive, in float64; a block is rounded to multiples of the
/// 127th part of its largest magnitude.
void round_to_int8(const at::Tensor& part) {
  for (int64_t first = 0; first < part.numel(); first += kBlock) {
    const at::Tensor block =
        part.narrow(0, first, std::min(kBlock, part.numel() - first));
    const double largest = block.abs().max().item<double>();
    if (largest > 0) {
      const double scale = largest / 127;
      block.copy_((block / scale).round() * scale);
    }
  }
}

using Tensors = std::map<std::string, at::Tensor>;

/// The flat buffer of a page with the tensors of its parameters: [padded_numel]
/// float64.
at::Tensor flat(const sharding::PageMemory& page, const Tensors& tensors) {
  const at::Tensor full =
      torch::zeros({page.layout().padded_numel()}, at::kDouble);
  for (const auto& parameter : page.parameters()) {
    const at::Tensor& value = tensors.at(parameter.record.name());
    full.narrow(0, parameter.span.begin, value.numel())
        .copy_(value.reshape({-1}));
  }
  return full;
}

at::Tensor shard_of(
    const sharding::PageMemory& page,
    const at::Tensor& full,
    int rank) {
  const auto span = page.layout().shard(rank);
  return full.narrow(0, span.begin, span.numel);
}

Tensors masters(Engine& engine) {
  Tensors values;
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        values[name] = value.clone();
      });
  return values;
}

/// The fraction of elements that differ by more than rounding in float32. An
/// element between two codes may fall to either side, hardly ever.
double share_of_different(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor off = (a.to(at::kDouble) - b.to(at::kDouble)).abs();
  return off.gt(b.to(at::kDouble).abs() * 1e-5 + 1e-9)
      .to(at::kDouble)
      .mean()
      .item<double>();
}

void expect_same_bits_on_all_ranks(World& world, const at::Tensor& values) {
  auto communicator = world.new_communicator("bits");
  const at::Tensor all = torch::empty({world.size() * values.numel()});
  communicator->all_gather(all, values.reshape({-1}).clone(), "bits").wait();
  for (int r = 0; r < world.size(); ++r) {
    EXPECT_TRUE(torch::equal(
        all.narrow(0, r * values.numel(), values.numel()),
        values.reshape({-1})));
  }
}

void expect_rounded_weights(World& world, int shard_ranks) {
  Net net = make_net();
  EngineOptions options = options_of(Compression::kInt8, Compression::kNone);
  options.sharding.shard_ranks = shard_ranks;
  Engine engine = wrapped(net, options);
  engine.backward(loss_of(net, batch_of(0, world.rank())));
  engine.step();
  const Tensors exact = masters(engine);
  const torch::NoGradGuard no_grad;
  const auto local = net->named_parameters();
  for (const auto& page : engine.pager().pages()) {
    const at::Tensor full = flat(*page, exact);
    for (int r = 0; r < page->spec().mesh.size(kShardAxis); ++r) {
      round_to_int8(shard_of(*page, full, r));
    }
    for (const auto& parameter : page->parameters()) {
      const std::string& name = parameter.record.name();
      const at::Tensor seen = local[name].clone().reshape({-1});
      EXPECT_LT(
          share_of_different(
              seen, full.narrow(0, parameter.span.begin, seen.numel())),
          0.002)
          << name;
      expect_same_bits_on_all_ranks(world, seen);
    }
  }
  EXPECT_FALSE(
      torch::equal(local["second.weight"].clone(), exact.at("second.weight")));
}

TEST(Communication, OperatorsSeeRoundedWeightsAlikeOnAllRanks) {
  run_ranks(2, [](World& world) { expect_rounded_weights(world, 0); });
  run_ranks(4, [](World& world) {
    expect_rounded_weights(world, 0);
    expect_rounded_weights(world, 2);
  });
}

TEST(Communication, ScopesHaveTheExactWeights) {
  run_ranks(2, [](World& world) {
    Net net = make_net();
    Engine engine =
        wrapped(net, options_of(Compression::kInt8, Compression::kInt8));
    engine.backward(loss_of(net, batch_of(0, world.rank())));
    engine.step();
    const Tensors before = masters(engine);
    const torch::NoGradGuard no_grad;
    const auto local = net->named_parameters();
    // Pages that operators have unsharded, with rounded weights.
    net->forward(batch_of(1, 0).x);
    {
      const GatherScope scope = engine.gather();
      for (const auto& [name, value] : before) {
        EXPECT_TRUE(torch::equal(local[name].clone(), value)) << name;
      }
    }
    net->forward(batch_of(1, 0).x);
    {
      const GatherScope scope = engine.gather({.writable = true});
      local["last.bias"].fill_(3);
    }
    for (const auto& [name, value] : masters(engine)) {
      EXPECT_TRUE(
          name == "last.bias" ? value.eq(3).all().item<bool>()
                              : torch::equal(value, before.at(name)))
          << name;
    }
  });
}

/// The gradient of every parameter as the papers' reduction gives it: each
/// rank's part is rounded, added up, and with replicas rounded twice more.
Tensors reduced_gradients(
    const Engine& engine,
    const std::vector<Tensors>& of_ranks,
    int shards) {
  Tensors result;
  const int ranks = static_cast<int>(of_ranks.size());
  const int replicas = ranks / shards;
  for (const auto& page : engine.pager().pages()) {
    const at::Tensor full =
        torch::zeros({page->layout().padded_numel()}, at::kDouble);
    for (int s = 0; s < shards; ++s) {
      std::vector<at::Tensor> sums;
      for (int replica = 0; replica < replicas; ++replica) {
        at::Tensor sum;
        for (int r = 0; r < shards; ++r) {
          const at::Tensor part = shard_of(
              *page,
              flat(*page, of_ranks[static_cast<size_t>(replica * shards + r)]),
              s);
          round_to_int8(part);
          sum = sum.defined() ? sum + part : part.clone();
        }
        sums.push_back(sum);
      }
      const int64_t numel = page->layout().shard_numel();
      const int64_t chunk =
          ((numel + replicas - 1) / replicas + kBlock - 1) / kBlock * kBlock;
      const bool fits = replicas * chunk <= page->layout().padded_numel();
      at::Tensor total = torch::zeros({numel}, at::kDouble);
      for (int64_t first = 0; first < numel; first += chunk) {
        const int64_t count = std::min(chunk, numel - first);
        const at::Tensor local = total.narrow(0, first, count);
        for (const at::Tensor& sum : sums) {
          const at::Tensor part = sum.narrow(0, first, count).clone();
          if (replicas > 1 && fits) {
            round_to_int8(part);
          }
          local.add_(part);
        }
        if (replicas > 1 && fits) {
          round_to_int8(local);
        }
      }
      shard_of(*page, full, s).copy_(total / ranks);
    }
    for (const auto& parameter : page->parameters()) {
      const at::Tensor& like = parameter.record.tensor;
      result[parameter.record.name()] =
          full.narrow(0, parameter.span.begin, like.numel())
              .reshape(like.sizes())
              .clone();
    }
  }
  return result;
}

void expect_reduced_gradients(World& world, int shard_ranks) {
  std::vector<Tensors> of_ranks;
  for (int r = 0; r < world.size(); ++r) {
    Net plain = make_net();
    loss_of(plain, batch_of(0, r)).backward();
    Tensors& local = of_ranks.emplace_back();
    for (const auto& item : plain->named_parameters()) {
      local[item.key()] = item.value().grad().clone();
    }
  }
  Net net = make_net();
  EngineOptions options = options_of(Compression::kNone, Compression::kInt8);
  options.sharding.shard_ranks = shard_ranks;
  Engine engine = wrapped(net, options);
  engine.backward(loss_of(net, batch_of(0, world.rank())));
  const Tensors expected = reduced_gradients(
      engine, of_ranks, shard_ranks == 0 ? world.size() : shard_ranks);
  for (const auto& item : net->named_parameters()) {
    const at::Tensor got = engine.grad(item.value());
    EXPECT_LT(share_of_different(got, expected.at(item.key())), 0.02)
        << item.key() << " on " << world.size() << " ranks, shard_ranks "
        << shard_ranks;
  }
}

TEST(Communication, GradientsAreSumsOfRoundedOnes) {
  run_ranks(2, [](World& world) { expect_reduced_gradients(world, 0); });
  run_ranks(4, [](World& world) {
    expect_reduced_gradients(world, 0);
    expect_reduced_gradients(world, 2); // a second hop, over the replicas
  });
}

struct Trained {
  double loss = 0;
  Tensors weights;
};

Trained train(
    World& world,
    const EngineOptions& options,
    int steps,
    int every = 1) {
  Net net = make_net();
  Engine engine = wrapped(net, options);
  for (int step = 0; step < steps; ++step) {
    for (int micro = 0; micro < every; ++micro) {
      engine.backward(
          loss_of(net, batch_of(step, world.rank() + 10 * micro)) / every);
    }
    engine.step();
  }
  Trained run;
  const torch::NoGradGuard no_grad;
  const GatherScope scope = engine.gather();
  for (int k = 0; k < 8; ++k) {
    run.loss += loss_of(net, batch_of(5000, k)).item<double>() / 8;
  }
  for (const auto& item : net->named_parameters()) {
    run.weights[item.key()] = item.value().clone();
  }
  return run;
}

void expect_same(const Trained& a, const Trained& b, const std::string& label) {
  for (const auto& [name, value] : a.weights) {
    EXPECT_TRUE(torch::equal(value, b.weights.at(name)))
        << label << ": " << name;
  }
}

// The loss falls from 0.6 to about 0.1; a wrong scale or a part that goes to
// another rank costs more than a tenth of that.
TEST(Communication, TrainsAsWellAsItsExactTwin) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [](World& world) {
      const auto with = [&](Compression gather, Compression reduce) {
        return train(world, options_of(gather, reduce), 60);
      };
      const double first =
          train(world, options_of(Compression::kNone, Compression::kNone), 0)
              .loss;
      const Trained exact = with(Compression::kNone, Compression::kNone);
      EXPECT_LT(exact.loss, first / 2);
      const double near = first / 50;
      EXPECT_NEAR(
          with(Compression::kInt8, Compression::kInt8).loss, exact.loss, near);
      EXPECT_NEAR(
          with(Compression::kFp8, Compression::kFp8).loss,
          exact.loss,
          2 * near);
      EXPECT_NEAR(
          with(Compression::kNone, Compression::kInt4).loss,
          exact.loss,
          2 * near);
    });
  }
}

// Where gradients rest, add up and are applied does not change what is sent.
TEST(Communication, BitsDoNotDependOnPlaces) {
  run_ranks(2, [](World& world) {
    EngineOptions options = options_of(Compression::kInt8, Compression::kInt8);
    for (const bool is_bfloat16 : {false, true}) {
      if (is_bfloat16) {
        options.precision.parameters = at::kBFloat16;
        options.precision.gradients = at::kBFloat16;
        options.precision.accumulate = at::kFloat;
      }
      const Trained base = train(world, options, 4, 2);
      EngineOptions other = options;
      other.placement.gradients = MemoryTier::kHost;
      other.placement.optimizer = MemoryTier::kHost;
      expect_same(train(world, other, 4, 2), base, "gradients on the host");
      other = options;
      other.placement.parameters = MemoryTier::kHost;
      expect_same(train(world, other, 4, 2), base, "parameters on the host");
      other = options;
      other.sharding.zero_stage = 2;
      expect_same(train(world, other, 4, 2), base, "ZeRO stage 2");
      const Trained single = train(world, options, 4);
      other = options;
      other.update_in_backward = true;
      expect_same(train(world, other, 4), single, "update_in_backward");
    }
  });
}

TEST(Communication, SlotsAreAsPlanned) {
  run_ranks(2, [](World& world) {
    for (const int zero_stage : {1, 2, 3}) {
      Net net = make_net();
      EngineOptions options = options_of(Compression::kFp8, Compression::kInt8);
      options.sharding.zero_stage = zero_stage;
      Engine engine = wrapped(net, options);
      for (int step = 0; step < 3; ++step) {
        engine.backward(loss_of(net, batch_of(step, world.rank())));
        engine.step();
      }
      const MemoryBytes planned = engine.planned_memory();
      const MemoryBytes measured = engine.measured_memory();
      for (const MemoryPurpose purpose :
           {MemoryPurpose::kGatherSlots, MemoryPurpose::kReduceSlots}) {
        EXPECT_EQ(
            measured[static_cast<size_t>(purpose)],
            planned[static_cast<size_t>(purpose)])
            << zero_stage;
      }
    }
  });
}

TEST(Communication, ModulesMayBeLeftOut) {
  run_ranks(2, [](World& world) {
    Net net = make_net();
    EngineOptions options = options_of(Compression::kInt8, Compression::kInt8);
    options.sharding.modules = {
        {.path = "norm", .options = {.full_precision = true}}};
    Engine engine = wrapped(net, options);
    engine.backward(loss_of(net, batch_of(0, world.rank())));
    engine.step();
    const Tensors exact = masters(engine);
    const torch::NoGradGuard no_grad;
    const auto local = net->named_parameters();
    EXPECT_TRUE(
        torch::equal(local["norm.weight"].clone(), exact.at("norm.weight")));
    EXPECT_FALSE(
        torch::equal(local["first.weight"].clone(), exact.at("first.weight")));
  });
}

/// Bytes of the collectives of one kind in a step of 4 ranks.
double planned_bytes(const EngineOptions& options, const std::string& kind) {
  const StepMemoryPlan planned = plan(
      {.make =
           [](World&, ParallelRun&) {
             return std::shared_ptr<torch::nn::Module>(
                 std::make_shared<NetImpl>());
           },
       .loss =
           [](torch::nn::Module& module) {
             return dynamic_cast<NetImpl&>(module)
                 .forward(torch::zeros({4, kInputs}))
                 .square()
                 .mean();
           }},
      options,
      {.world_size = 4});
  double bytes = 0;
  for (const CollectiveWork& work : planned.collectives) {
    if (work.kind == kind && work.communicator.starts_with("engine ") &&
        work.bytes > 500) {
      bytes += work.bytes;
    }
  }
  return bytes;
}

TEST(Communication, ThePlanKnowsTheBytes) {
  EngineOptions exact = options_of(Compression::kNone, Compression::kNone);
  const double gathered = planned_bytes(exact, "all_gather");
  const double reduced = planned_bytes(exact, "reduce_scatter");
  EngineOptions options = options_of(Compression::kInt8, Compression::kInt4);
  options.sharding.communication.block_elements = 256;
  // A code per element, a scale of 4 bytes per block, which parts round up.
  EXPECT_NEAR(planned_bytes(options, "all_gather") / gathered, 0.25, 0.01);
  EXPECT_NEAR(planned_bytes(options, "all_to_all") / reduced, 0.125, 0.01);
  EXPECT_EQ(planned_bytes(options, "reduce_scatter"), 0);
  exact.precision.parameters = at::kBFloat16;
  options.precision.parameters = at::kBFloat16;
  EXPECT_NEAR(
      planned_bytes(options, "all_gather") / planned_bytes(exact, "all_gather"),
      0.5,
      0.02);
}

TEST(Communication, RefusesABlockThatIsNoPowerOfTwo) {
  run_ranks(1, [](World&) {
    Net net = make_net();
    EngineOptions options = options_of(Compression::kInt8, Compression::kNone);
    options.sharding.communication.block_elements = 100;
    tests::expect_throws(
        [&] { wrapped(net, options); },
        {"sharding.communication.block_elements is 100", "power of two"});
  });
}

} // namespace

} // namespace tessera::communication_test
