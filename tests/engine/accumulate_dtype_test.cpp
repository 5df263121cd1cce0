// SPDX-License-Identifier: Apache-2.0
// precision.accumulate: gradients that are reduced in bfloat16 and added up
// over micro-batches in float32.
#include "engine/offload/placement.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/engine_config.h"
#include "tessera/engine/memory/memory_plan.h"
#include "tessera/engine/memory/tier_needs.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::tests::accumulate_dtype_test {

namespace {

constexpr int kMicroBatches = 32;
constexpr double kRate = 0.1;

using Tensors = std::map<std::string, at::Tensor>;

EngineOptions accumulating_options(std::optional<at::ScalarType> accumulate) {
  EngineOptions options = group_per_layer();
  options.precision.parameters = at::kBFloat16;
  options.precision.gradients = at::kBFloat16;
  options.precision.accumulate = accumulate;
  options.optimizer.rule = SgdOptions{};
  options.optimizer.lr = kRate;
  return options;
}

std::shared_ptr<StackImpl> make_stack() {
  torch::manual_seed(5);
  return std::make_shared<StackImpl>();
}

at::Tensor loss_of(StackImpl& net, int batch, int rank) {
  return net.forward(batch_of(batch, rank).to(at::kBFloat16))
      .to(at::kFloat)
      .square()
      .mean();
}

/// LibTorch's gradients of one step, for weights `net` has in bfloat16: of each
/// micro-batch those of all ranks are averaged, and the averages of all
/// micro-batches added up.
/// @param reduce, accumulate the types that sums over ranks and over
///     micro-batches are rounded to.
Tensors plain_gradients(
    StackImpl& net,
    int step,
    int ranks,
    at::ScalarType reduce,
    at::ScalarType accumulate) {
  Tensors sums;
  for (int micro = 0; micro < kMicroBatches; ++micro) {
    Tensors averages;
    for (int rank = 0; rank < ranks; ++rank) {
      net.zero_grad();
      loss_of(net, step * kMicroBatches + micro, rank).backward();
      for (const auto& item : net.named_parameters()) {
        const at::Tensor gradient = item.value().grad().to(reduce);
        at::Tensor& sum = averages[item.key()];
        sum = sum.defined() ? sum + gradient : gradient.clone();
      }
    }
    for (const auto& [name, sum] : averages) {
      const at::Tensor average = (sum / ranks).to(accumulate);
      sums[name] = sums.contains(name) ? sums[name] + average : average;
    }
  }
  return sums;
}

double distance(const Tensors& some, const Tensors& others) {
  double sum = 0;
  for (const auto& [name, value] : some) {
    const at::Tensor difference =
        value.to(at::kDouble) - others.at(name).to(at::kDouble);
    sum += difference.square().sum().item<double>();
  }
  return std::sqrt(sum);
}

double length(const Tensors& tensors) {
  Tensors zeros;
  for (const auto& [name, value] : tensors) {
    zeros[name] = at::zeros_like(value);
  }
  return distance(tensors, zeros);
}

/// Two steps of SGD; every rank has batches of its own.
/// @return the weights after each.
std::vector<Tensors> train_accumulating(
    World& world,
    const EngineOptions& options) {
  auto net = make_stack();
  auto engine = wrap(std::shared_ptr<torch::nn::Module>(net), options);
  std::vector<Tensors> weights;
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      engine.backward(
          loss_of(*net, step * kMicroBatches + micro, world.rank()));
    }
    engine.step();
    weights.push_back(parameters_of(engine));
  }
  expect_planned(engine, "accumulating");
  // Slots of the size that was planned were enough.
  const auto slots = static_cast<size_t>(MemoryPurpose::kReduceSlots);
  EXPECT_EQ(engine.measured_memory()[slots], engine.planned_memory()[slots]);
  return weights;
}

} // namespace

class AccumulateParity : public ::testing::TestWithParam<int> {};

class Accumulate : public ::testing::TestWithParam<int> {};

// Sums over 32 micro-batches, which lose some 1 % in bfloat16. The reference
// has the same rounding everywhere else, so it is met to what float32 loses.
TEST_P(AccumulateParity, InFloat32IsThatOfLibTorch) {
  run_ranks(GetParam(), [](World& world) {
    for (const int zero_stage : {1, 2, 3}) {
      SCOPED_TRACE(zero_stage);
      EngineOptions options = accumulating_options(at::kFloat);
      options.sharding.zero_stage = zero_stage;
      const auto found = train_accumulating(world, options);
      // Stage 1 adds up before it reduces, both in float32.
      const at::ScalarType reduce =
          zero_stage == 1 ? at::kFloat : at::kBFloat16;

      auto master = make_stack();
      auto net = make_stack();
      net->to(at::kBFloat16);
      for (size_t step = 0; step < found.size(); ++step) {
        const auto gradients = [&](at::ScalarType accumulate) {
          return plain_gradients(
              *net, static_cast<int>(step), world.size(), reduce, accumulate);
        };
        const Tensors exact = gradients(at::kFloat);
        const Tensors rounded = gradients(at::kBFloat16);
        const double tolerance = 1e-4 * length(exact);
        EXPECT_GT(distance(rounded, exact), 10 * tolerance);
        const c10::NoGradGuard no_grad;
        Tensors expected;
        for (const auto& item : master->named_parameters()) {
          item.value().sub_(exact.at(item.key()), kRate);
          expected[item.key()] = item.value().clone();
          net->named_parameters()[item.key()].copy_(item.value());
        }
        EXPECT_LT(distance(found[step], expected), kRate * tolerance)
            << "step " << step;
      }
    }
  });
}

// Where gradients rest changes no bit.
TEST_P(Accumulate, InFloat32OnEveryTier) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    for (const int zero_stage : {1, 2, 3}) {
      SCOPED_TRACE(zero_stage);
      EngineOptions options = accumulating_options(at::kFloat);
      options.sharding.zero_stage = zero_stage;
      const auto expected = train_accumulating(world, options);
      for (const MemoryTier tier : {MemoryTier::kHost, MemoryTier::kNvme}) {
        const std::string label = name_of(tier);
        options.placement.gradients = tier;
        options.memory.nvme_path = folder.path();
        const auto found = train_accumulating(world, options);
        for (size_t step = 0; step < expected.size(); ++step) {
          expect_same_bits(found[step], expected[step], label);
        }
      }
    }
  });
}

// What a budget is planned with before anything is allocated is what is there.
TEST_P(Accumulate, CountsInThePlanOfMemory) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    for (const int zero_stage : {1, 2, 3}) {
      for (const MemoryTier tier : {MemoryTier::kDevice, MemoryTier::kNvme}) {
        EngineOptions options = accumulating_options(at::kFloat);
        options.sharding.zero_stage = zero_stage;
        options.placement.gradients = tier;
        options.memory.nvme_path = folder.path();
        auto net = make_stack();
        const DeviceMesh mesh =
            sharding::shard_mesh(world.rank(), world.size(), 0);
        const auto needs_of = [&](const EngineOptions& some) {
          const auto pages =
              sharding::plan_pages(*net, engine::pager_options(some), mesh);
          return engine::device_needs(
              pages,
              engine::pager_options(some),
              std::vector<runtime::ShardTiers>(
                  pages.size(), {.gradients = tier}));
        };
        const auto bytes_of = [](const Engine& engine, MemoryPurpose purpose) {
          return engine.planned_memory()[static_cast<size_t>(purpose)];
        };
        EngineOptions narrow = options;
        narrow.precision.accumulate.reset();
        const Engine engine = wrap(make_stack(), options);
        const Engine narrow_engine = wrap(make_stack(), narrow);
        const int64_t gradients = bytes_of(engine, MemoryPurpose::kGradients);
        const int64_t narrow_gradients =
            bytes_of(narrow_engine, MemoryPurpose::kGradients);
        EXPECT_EQ(gradients, 2 * narrow_gradients);
        EXPECT_EQ(gradients > 0, tier == MemoryTier::kDevice);
        EXPECT_EQ(
            needs_of(options) - needs_of(narrow),
            gradients - narrow_gradients +
                bytes_of(engine, MemoryPurpose::kReduceSlots) -
                bytes_of(narrow_engine, MemoryPurpose::kReduceSlots))
            << "zero_stage " << zero_stage << ", " << name_of(tier);
      }
    }
  });
}

// The order of a sum over three ranks is its own matter.
INSTANTIATE_TEST_SUITE_P(Worlds, AccumulateParity, ::testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(Worlds, Accumulate, ::testing::Values(1, 2, 3));

TEST(AccumulateOptions, AreCheckedAndRead) {
  PrecisionPolicy policy;
  policy.accumulate = at::kBFloat16;
  expect_error(
      [&] { check(policy); },
      {"precision.accumulate is BFloat16", "precision.gradients"});
  policy.gradients = at::kBFloat16;
  check(policy);
  policy.accumulate = at::kHalf;
  expect_error([&] { check(policy); }, {"precision.accumulate is Half"});

  const runtime::ConfigReader reader(
      nlohmann::json{
          {"precision",
           {{"parameters", "bfloat16"},
            {"gradients", "bfloat16"},
            {"accumulate", "float32"}}}},
      "a test");
  EXPECT_EQ(read_engine_options(reader).precision.accumulate, at::kFloat);
}

} // namespace tessera::tests::accumulate_dtype_test
