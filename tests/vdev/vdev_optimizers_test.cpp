// SPDX-License-Identifier: Apache-2.0
// Every optimizer, checkpoints and a memory budget on the virtual device: the
// weights that training on the CPU gives.
#include "engine/checkpoint/checkpoint_support.h"
#include "engine/optim/every_rule.h"
#include "support/motion.h"
#include "support/temporary_folder.h"
#include "support/vdev/vdev.h"
#include "tessera/engine/memory/library_memory.h"
#include "tessera/sharding/lazy/move_module.h"

namespace tessera::tests::vdev::vdev_optimizers_test {

namespace {

using Order = Policy::Order;
using Values = std::map<std::string, at::Tensor>;

constexpr int64_t kWidth = 16;

/// One engine over all ranks, which train on batches of their own.
class Training {
 public:
  Training(World& world, at::Device device, EngineOptions options)
      : world_(world), device_(device) {
    torch::manual_seed(1);
    net_ = torch::nn::Sequential(
        torch::nn::Linear(7, kWidth),
        torch::nn::Tanh(),
        torch::nn::Linear(kWidth, kWidth),
        torch::nn::Tanh(),
        torch::nn::Linear(kWidth, 3));
    move_module(*net_, device);
    options.log_memory = false;
    options.sharding.groups.min_group_numel = 0;
    options.optimizer.lr = 1e-2;
    engine_.emplace(wrap(net_, options));
  }

  void steps(int first, int count) {
    for (int step = first; step < first + count; ++step) {
      torch::manual_seed(100 * world_.rank() + step);
      const auto x = torch::randn({5, 7}).to(device_);
      engine_->backward(net_->forward(x).square().mean());
      engine_->step();
    }
  }

  Engine& engine() {
    return *engine_;
  }

  Values values() {
    Values values = values_of(*engine_, *net_);
    for (auto& [name, value] : values) {
      value = value.cpu();
    }
    return values;
  }

 private:
  World& world_;
  at::Device device_;
  torch::nn::Sequential net_;
  std::optional<Engine> engine_;
};

/// On the device.
int64_t local_bytes(const Engine& engine) {
  const MemoryBytes bytes = engine.measured_memory();
  return total_bytes(bytes) -
         bytes[static_cast<size_t>(MemoryPurpose::kLibraries)];
}

struct Rule {
  std::string name;
  UpdateRule rule;
  /// Of the motion, where sums over a parameter are in another order on a
  /// device; 0: equal bits.
  double fraction = 0;
};

std::vector<Rule> rules() {
  std::vector<Rule> all;
  for (const UpdateRule& rule : every_rule()) {
    all.push_back(
        {name_of(rule), rule, updates_elements_alone(rule) ? 0 : 1e-5});
    if (all.back().name == "Muon") { // the device's own type is bfloat16
      all.back().rule = MuonOptions{.compute_dtype = at::kFloat};
    }
  }
  return all;
}

void expect_close(
    const Values& got,
    const Values& wanted,
    const Values& start,
    double fraction) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, value] : wanted) {
    EXPECT_GT(distance_of(value, start.at(name)), 0) << name;
    expect_close_by_motion(start.at(name), value, got.at(name), fraction, name);
  }
}

class Optimizers : public ::testing::TestWithParam<std::tuple<Policy, int>> {
 protected:
  void run(const std::function<void(World&)>& body) {
    const auto& [policy, ranks] = GetParam();
    run_ranks_on_vdev(ranks, policy, body);
  }
};

} // namespace

TEST_P(Optimizers, EveryRuleTrainsAsOnTheCpu) {
  run([](World& world) {
    for (const Rule& rule : rules()) {
      SCOPED_TRACE(rule.name);
      EngineOptions options;
      options.optimizer.rule = rule.rule;
      Training on_cpu(world, at::kCPU, options);
      Training here(world, world.device(), options);
      const Values start = on_cpu.values();
      on_cpu.steps(0, 4);
      here.steps(0, 4);
      expect_close(here.values(), on_cpu.values(), start, rule.fraction);
    }
  });
}

// Encoding, decoding and sums run on lanes, and have the bits of the CPU.
TEST_P(Optimizers, QuantizedCommunicationHasTheBitsOfTheCpu) {
  run([](World& world) {
    for (const Compression format : {Compression::kInt8, Compression::kFp8}) {
      EngineOptions options;
      options.sharding.communication = {
          .gather = format, .reduce = format, .block_elements = 16};
      Training on_cpu(world, at::kCPU, options);
      Training here(world, world.device(), options);
      on_cpu.steps(0, 4);
      here.steps(0, 4);
      expect_equal(here.values(), on_cpu.values(), "in blocks");
    }
  });
}

TEST_P(Optimizers, MomentumInOneBitTrainsAsOnTheCpu) {
  run([](World& world) {
    for (const UpdateRule& rule :
         {UpdateRule(OneBitAdamOptions{.freeze_step = 2}),
          UpdateRule(ZeroOneAdamOptions{.var_update_scaler = 1}),
          UpdateRule(OneBitLambOptions{.freeze_step = 2})}) {
      EngineOptions options;
      options.optimizer.rule = rule;
      options.sharding.shard_ranks = 1;
      Training on_cpu(world, at::kCPU, options);
      Training here(world, world.device(), options);
      const Values start = on_cpu.values();
      on_cpu.steps(0, 5);
      here.steps(0, 5);
      expect_close(here.values(), on_cpu.values(), start, 1e-5);
    }
  });
}

TEST_P(Optimizers, CheckpointsGoToTheCpuAndBack) {
  const TemporaryFolder folder;
  run([&](World& world) {
    for (const auto placement : {MemoryTier::kDevice, MemoryTier::kHost}) {
      EngineOptions options;
      options.placement.optimizer = placement;
      options.offload.ratio = 0;
      const auto path = [&](const char* name) {
        return folder.path() / std::to_string(static_cast<int>(placement)) /
               name;
      };
      Training full(world, at::kCPU, {});
      full.steps(0, 6);
      Training first(world, world.device(), options);
      first.steps(0, 2);
      first.engine().save(path("device"));
      first.steps(8, 1);
      Training second(world, at::kCPU, {});
      second.engine().load(path("device"));
      second.steps(2, 2);
      second.engine().save(path("cpu"));
      first.engine().load(path("cpu"));
      first.steps(4, 2);
      expect_equal(first.values(), full.values(), "there and back");
    }
  });
}

TEST_P(Optimizers, AMemoryBudgetChangesNoBits) {
  run([](World& world) {
    Training unlimited(world, world.device(), {});
    unlimited.steps(0, 4);
    const Values expected = unlimited.values();
    const int64_t needed = local_bytes(unlimited.engine());
    const int64_t state =
        unlimited.engine().measured_memory()[static_cast<size_t>(
            MemoryPurpose::kOptimizerState)];
    for (const double share : {0.4, 0.8}) {
      EngineOptions options;
      options.offload.ratio = 1;
      options.memory.host_bytes = 64 << 20;
      const int64_t limit =
          needed - static_cast<int64_t>(static_cast<double>(state) * share);
      options.memory.device_bytes =
          limit + engine::library_bytes(world, world.device());
      Training limited(world, world.device(), options);
      limited.steps(0, 4);
      expect_equal(limited.values(), expected, std::to_string(share));
      EXPECT_LE(local_bytes(limited.engine()), limit);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Optimizers,
    ::testing::Combine(
        ::testing::ValuesIn(policies({{Order::kLazy}, {Order::kRandom, 1}})),
        ::testing::Values(1, 2)),
    [](const auto& which) {
      return std::get<Policy>(which.param).name() + "_" +
             std::to_string(std::get<int>(which.param)) + "_ranks";
    });

} // namespace tessera::tests::vdev::vdev_optimizers_test
