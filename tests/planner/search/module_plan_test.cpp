// SPDX-License-Identifier: Apache-2.0
// plan() of a module and a machine: what it picks fits when it is run with
// numbers under the limit, and says what would fit where nothing does.
#include "tessera/planner/search/module_plan.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/planner/search/plan_search.h"
#include "tessera/planner/simulated_rank.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/sharding/checkpointing/transformer_block_list.h"
#include "tessera/sharding/lazy/lazy.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera::module_plan_test {

namespace {

constexpr int64_t kWidth = 128;

struct WideLayerImpl : torch::nn::Module {
  WideLayerImpl()
      : up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x + down(torch::gelu(up(x)));
  }
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(WideLayer);

struct WideNet : torch::nn::Module {
  explicit WideNet(int64_t recomputed_layers = 0, int count = 6)
      : blocks(register_module(
            "blocks",
            TransformerBlockList<WideLayer>(
                layers(count),
                CheckpointOptions{.use_checkpoint = false}))) {
    recompute(recomputed_layers);
  }
  static std::vector<WideLayer> layers(int count) {
    std::vector<WideLayer> all;
    for (int i = 0; i < count; ++i) {
      all.emplace_back();
    }
    return all;
  }
  std::vector<CheckpointedModule*> checkpointed() const {
    std::vector<CheckpointedModule*> all;
    for (const auto& each : modules(/*include_self=*/false)) {
      if (auto* block = dynamic_cast<CheckpointedModule*>(each.get())) {
        all.push_back(block);
      }
    }
    return all;
  }
  void recompute(int64_t count) const {
    for (CheckpointedModule* block : checkpointed()) {
      block->use_checkpoint = count-- > 0;
    }
  }
  at::Tensor loss(int64_t rows) {
    return blocks->forward(torch::ones({rows * 16, kWidth})).square().mean();
  }
  TransformerBlockList<WideLayer> blocks;
};

EngineOptions quiet() {
  EngineOptions options;
  options.log_memory = false;
  return options;
}

ModulePlan planned(
    WideNet& net,
    const PlanMachine& machine,
    int64_t batch_size = 32,
    const EngineOptions& options = quiet()) {
  return plan(
      net,
      options,
      {.loss = [&](int64_t rows) { return net.loss(rows); },
       .batch_size = batch_size},
      machine);
}

/// The machine's CPUs, of which `bytes` are for the plan.
PlanMachine cpus(int64_t bytes, int devices = 1) {
  return {
      .devices = devices,
      .device = "cpu",
      .device_bytes = bytes,
      .margin_bytes = 0};
}

/// Peak of two steps with numbers, under the limit and a thousandth: headers of
/// blocks. What the process holds besides counts too.
int64_t peak_under(const ModulePick& pick, int64_t limit, int devices) {
  std::shared_ptr<WideNet> net;
  runtime::install_cpu_memory_counter();
  const int64_t cap = runtime::cpu_bytes_live() + limit + limit / 1000;
  InitOptions on_cpus;
  on_cpus.use_cuda = false;
  const SimulatedRun run = simulate_rank(
      {.make =
           [&](World& /*world*/, ParallelRun& /*parallel*/) {
             net = std::make_shared<WideNet>(pick.recomputed_layers);
             return net;
           },
       .loss =
           [&](torch::nn::Module& /*module*/) {
             return net->loss(pick.batch_size);
           },
       .stage = {}},
      pick.options,
      {.world_size = devices, .accumulate = static_cast<int>(pick.accumulate)},
      {.memory_cap = cap, .init = on_cpus});
  return run.peak_bytes;
}

} // namespace

TEST(ModulePlan, PicksFitUnderTheLimit) {
  WideNet net;
  const ModulePlan roomy = planned(net, cpus(int64_t{1} << 40));
  ASSERT_TRUE(roomy.best);
  EXPECT_EQ(roomy.best_pick()->recomputed_layers, 0);
  for (const int devices : {1, 4}) {
    const int64_t most = planned(net, cpus(int64_t{1} << 40, devices))
                             .picks.front()
                             .device_bytes;
    std::vector<int64_t> found;
    // The largest leaves the options as they are, the least needs more.
    for (const double part : {1.02, 0.85, 0.6}) {
      SCOPED_TRACE(formatted("{} devices, {} of the memory", devices, part));
      const auto limit = static_cast<int64_t>(part * static_cast<double>(most));
      const ModulePlan answer = planned(net, cpus(limit, devices));
      EXPECT_EQ(answer.limit_bytes, limit);
      ASSERT_TRUE(answer.best);
      const ModulePick& best = *answer.best_pick();
      EXPECT_TRUE(best.fits());
      EXPECT_LE(best.device_bytes, limit);
      // A step keeps its rows.
      EXPECT_EQ(best.batch_size * best.accumulate, 32);
      for (const ModulePick& pick : answer.picks) {
        EXPECT_TRUE(
            !pick.fits() || best.step_seconds <= (1 + planner::kTimeAccuracy) *
                                                     pick.step_seconds);
      }
      const int64_t peak = peak_under(best, limit, devices);
      EXPECT_NEAR(
          static_cast<double>(peak),
          static_cast<double>(best.device_bytes),
          0.001 * static_cast<double>(peak));
      found.push_back(best.device_bytes);
    }
    EXPECT_LT(found.back(), found.front());
  }
  // The module stays as it is.
  for (const CheckpointedModule* block : net.checkpointed()) {
    EXPECT_FALSE(block->use_checkpoint);
  }
  EXPECT_FALSE(net.parameters().front().grad().defined());
}

/// Python's tessera.plan() of the same net, operator by operator, is held to
/// the same file: tests/python/plan_test.py.
TEST(ModulePlan, IsThatOfPython) {
  struct Net : torch::nn::Module {
    Net() {
      for (int i = 0; i < 6; ++i) {
        blocks->push_back(WideLayer());
      }
      register_module("blocks", blocks);
    }
    torch::nn::Sequential blocks;
  } net;
  const auto expected = nlohmann::json::parse(std::ifstream(
      tests::source_dir() + "/tests/planner/search/net_plans.json"));
  ASSERT_EQ(expected.size(), 4U);
  for (const nlohmann::json& each : expected) {
    const ModulePlan found = plan(
        net,
        quiet(),
        {.loss =
             [&](int64_t rows) {
               return net.blocks->forward(torch::ones({rows * 16, kWidth}))
                   .square()
                   .mean();
             },
         .batch_size = 32},
        {.device = "a100",
         .device_bytes = each.at("device_mib").get<int64_t>() << 20,
         .reserved_bytes = 0,
         .margin_bytes = 0,
         .host_bytes = int64_t{64} << 20});
    const ModulePick* best = found.best_pick();
    ASSERT_NE(best, nullptr);
    EXPECT_EQ(
        (nlohmann::json{
            {"device_mib", each.at("device_mib")},
            {"batch_size", best->batch_size},
            {"accumulate", best->accumulate},
            {"changed", best->changed},
            {"device_bytes", best->device_bytes},
            {"host_bytes", best->host_bytes},
            {"step_us", std::round(best->step_seconds * 1e9) / 1e3}}),
        each);
  }
}

TEST(ModulePlan, RecomputesBlocksWhereRowsAreFixed) {
  WideNet net;
  const PlannedModule fixed{
      .loss = [&](int64_t rows) { return net.loss(rows); },
      .batch_size = 32,
      .accumulate = 2,
      .changes_rows = false};
  const auto with = [&](int64_t bytes) {
    return plan(net, quiet(), fixed, cpus(bytes));
  };
  const int64_t most = with(int64_t{1} << 40).picks.front().device_bytes;
  const ModulePlan answer = with(most - most / 4);
  ASSERT_TRUE(answer.best);
  const ModulePick& best = *answer.best_pick();
  EXPECT_TRUE(best.recomputed_layers > 0 || best.options.recompute_operators);
  for (const ModulePick& pick : answer.picks) {
    EXPECT_EQ(pick.batch_size, 32);
    EXPECT_EQ(pick.accumulate, 2);
  }
  EXPECT_LE(best.device_bytes, answer.limit_bytes);
  EXPECT_LT(peak_under(best, answer.limit_bytes, 1), most);
}

TEST(ModulePlan, UsesHostMemoryAndNamesItWhereItWouldFit) {
  WideNet net;
  PlanMachine machine{
      .devices = 2,
      .device_bytes = int64_t{1} << 40,
      .reserved_bytes = 0,
      .margin_bytes = 0};
  const ModulePlan roomy = planned(net, machine);
  ASSERT_TRUE(roomy.best);
  EXPECT_EQ(roomy.best_pick()->host_bytes, 0);
  // Weights, their gradients and two moments of a rank are 16 bytes of an
  // element; less than its state has no room.
  int64_t numel = 0;
  for (const at::Tensor& parameter : net.parameters()) {
    numel += parameter.numel();
  }
  machine.device_bytes = 16 * numel / machine.devices;
  const ModulePlan none = planned(net, machine);
  EXPECT_FALSE(none.best);
  ASSERT_TRUE(none.nearest);
  EXPECT_GT(none.picks[*none.nearest].device_bytes, none.limit_bytes);
  const auto change = std::find_if(
      none.changes.begin(), none.changes.end(), [](const ModuleChange& each) {
        return each.change.starts_with("host_memory=") &&
               each.change.ends_with("MiB"); // less than a GiB
      });
  ASSERT_NE(change, none.changes.end());
  EXPECT_GT(change->pick.host_bytes, 0);

  machine.host_bytes = int64_t{1} << 30;
  const ModulePlan answer = planned(net, machine);
  ASSERT_TRUE(answer.best);
  const ModulePick& best = *answer.best_pick();
  EXPECT_GT(best.host_bytes, 0);
  EXPECT_LE(best.device_bytes, answer.limit_bytes);
  EXPECT_FALSE(best.changed.empty());
  // The options are those that were planned.
  const StepMemoryPlan again = plan(
      net,
      best.options,
      [&] {
        net.recompute(best.recomputed_layers);
        return net.loss(best.batch_size);
      },
      {.world_size = machine.devices,
       .device = c10::kCUDA,
       .accumulate = static_cast<int>(std::min<int64_t>(2, best.accumulate))});
  EXPECT_EQ(again.peak_bytes, best.device_bytes);
}

// A MiB or a device less does not fit.
TEST(ModulePlan, OffersTheLeastThatFits) {
  WideNet net;
  const auto offered = [](const ModulePlan& answer, const std::string& name) {
    for (const ModuleChange& each : answer.changes) {
      if (each.change.starts_with(name + "=")) {
        EXPECT_TRUE(each.pick.fits());
        return std::stoi(each.change.substr(name.size() + 1));
      }
    }
    return 0;
  };
  const auto with_host = [&](int64_t mib) {
    return planned(
        net,
        {.device_bytes = int64_t{7} << 20,
         .reserved_bytes = 0,
         .margin_bytes = 0,
         .host_bytes = mib << 20});
  };
  const int mib = offered(with_host(1), "host_memory");
  ASSERT_GT(mib, 1);
  EXPECT_TRUE(with_host(mib).best);
  EXPECT_FALSE(with_host(mib - 1).best);
  // Neither of whole nodes nor twice as many.
  const auto with_devices = [&](int devices) {
    return planned(net, cpus(int64_t{5} << 20, devices));
  };
  const int devices = offered(with_devices(1), "devices");
  ASSERT_GT(devices, 1);
  EXPECT_NE(devices & (devices - 1), 0) << devices;
  EXPECT_TRUE(with_devices(devices).best);
  EXPECT_FALSE(with_devices(devices - 1).best);
}

// What rows of a micro-batch add to each other's work makes one row at a time
// the fastest: by little, or by much.
TEST(ModulePlan, DividesMicroBatchesForMoreThanTheAccuracyOfTimes) {
  torch::nn::Linear net(8, 8);
  const auto with = [&](int64_t batch_size, int64_t accumulate, int64_t more) {
    const PlannedModule training{
        .loss =
            [&net, more](int64_t rows) {
              return net->forward(torch::ones({rows << 12, 8}))
                         .square()
                         .mean() +
                     torch::ones({more * rows * rows}).sum() * 0;
            },
        .batch_size = batch_size,
        .accumulate = accumulate};
    return plan(*net, quiet(), training, cpus(int64_t{1} << 40));
  };
  const auto fastest_of = [](const ModulePlan& answer) {
    return *std::min_element(
        answer.picks.begin(),
        answer.picks.end(),
        [](const auto& a, const auto& b) {
          return a.step_seconds < b.step_seconds;
        });
  };
  for (const int64_t rows : {32, 8}) { // as given, and more than that
    const ModulePlan little = with(rows, 32 / rows, 300);
    EXPECT_EQ(fastest_of(little).batch_size, 1);
    EXPECT_EQ(little.best_pick()->batch_size, 32);
    EXPECT_EQ(little.best_pick()->accumulate, 1);
  }
  const ModulePlan much = with(32, 1, 5000);
  EXPECT_LE(
      much.best_pick()->step_seconds, 1.15 * fastest_of(much).step_seconds);
  EXPECT_LT(much.best_pick()->batch_size, 32);
}

TEST(ModulePlan, KeepsRowsOfBatchStatistics) {
  struct NormedNet : torch::nn::Module {
    at::Tensor loss(int64_t rows) {
      return norm->forward(torch::ones({rows, kWidth})).square().mean();
    }
    torch::nn::BatchNorm1d norm{
        register_module("norm", torch::nn::BatchNorm1d(kWidth))};
  };
  NormedNet net;
  const auto all_keep_rows = [&] {
    const ModulePlan answer = plan(
        net,
        quiet(),
        {.loss = [&](int64_t rows) { return net.loss(rows); }, .batch_size = 8},
        cpus(int64_t{1} << 40));
    return std::all_of(
        answer.picks.begin(), answer.picks.end(), [](const ModulePick& pick) {
          return pick.batch_size == 8;
        });
  };
  EXPECT_TRUE(all_keep_rows());
  net.eval(); // statistics are constants
  EXPECT_FALSE(all_keep_rows());
}

// Half a terabyte of state, which no disk of this machine gets.
TEST(ModulePlan, PlansDisksWithoutWriting) {
  auto net = lazy([] {
    return torch::nn::Linear(
        torch::nn::LinearOptions(1 << 18, 1 << 18).bias(false));
  });
  const TemporaryFolder folder;
  EngineOptions options = quiet();
  options.precision.parameters = at::kBFloat16;
  options.placement.optimizer = MemoryTier::kNvme;
  options.memory.nvme_path = folder.path();
  const StepMemoryPlan planned = plan(
      *net,
      options,
      [&] {
        return net->forward(torch::zeros({1, 1 << 18})).mean();
      },
      {.device = c10::kCUDA});
  EXPECT_EQ(
      planned.planned[static_cast<size_t>(MemoryTier::kNvme)]
                     [static_cast<size_t>(MemoryPurpose::kOptimizerState)],
      int64_t{12} << 36);
}

TEST(ModulePlan, UsesDisksWhereTheHostIsFull) {
  WideNet net(0, 48);
  int64_t numel = 0;
  for (const at::Tensor& parameter : net.parameters()) {
    numel += parameter.numel();
  }
  PlanMachine machine{
      .device_bytes = 14 * numel,
      .reserved_bytes = 0,
      .margin_bytes = 0,
      .host_bytes = int64_t{12} << 20}; // of what disks and pages pass through
  EXPECT_FALSE(planned(net, machine).best);
  machine.nvme_bytes = int64_t{1} << 30;
  const TemporaryFolder folder;
  machine.nvme_path = folder.path().string();
  const ModulePlan answer = planned(net, machine);
  ASSERT_TRUE(answer.best);
  const ModulePick& best = *answer.best_pick();
  EXPECT_GT(best.nvme_bytes, 0);
  EXPECT_LE(best.device_bytes, answer.limit_bytes);
  EXPECT_LE(best.host_bytes, *machine.host_bytes);
  EXPECT_EQ(best.options.memory.nvme_path, folder.path());
  EXPECT_EQ(best.options.memory.nvme_bytes, machine.nvme_bytes);
}

TEST(ModulePlan, SaysWhatIsWrong) {
  WideNet net;
  const auto message = [&](const PlanMachine& machine) -> std::string {
    try {
      planned(net, machine);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({}).find("memory of a device is 0"), std::string::npos)
      << message({});
  EXPECT_NE(
      message({.device = "h1000", .device_bytes = 1 << 30}).find("h1000"),
      std::string::npos);
  EXPECT_NE(
      message({.device_bytes = int64_t{4} << 30, .nvme_bytes = 1 << 30})
          .find("(host_memory)"),
      std::string::npos);
  EXPECT_NE(
      message({.device_bytes = int64_t{4} << 30,
               .host_bytes = int64_t{1} << 30,
               .nvme_bytes = int64_t{1} << 30,
               .nvme_path = "nowhere"})
          .find("nvme_path is 'nowhere', which is not a folder"),
      std::string::npos);
  const PlanMachine machine = cpus(int64_t{1} << 40);
  expect_error([&] { planned(net, machine, 0); }, {"batch_size is 0"});
  expect_error(
      [&] {
        plan(
            net,
            quiet(),
            {.loss = [&](int64_t rows) { return net.loss(rows); },
             .accumulate = 0},
            machine);
      },
      {"accumulate 0"});
}

TEST(ModulePlan, LeavesOutWhatTheLossRefuses) {
  WideNet net;
  const auto with = [&](int64_t batch_size) {
    const PlannedModule training{
        .loss =
            [&](int64_t rows) {
              if (rows != 32) {
                throw std::invalid_argument("no such rows");
              }
              return net.loss(rows);
            },
        .batch_size = batch_size};
    return plan(net, quiet(), training, cpus(int64_t{1} << 40));
  };
  const ModulePlan answer = with(32);
  ASSERT_TRUE(answer.best);
  EXPECT_EQ(answer.best_pick()->batch_size, 32);
  EXPECT_TRUE(std::any_of(
      answer.picks.begin(), answer.picks.end(), [](const ModulePick& pick) {
        return pick.problem == "refused: no such rows";
      }));
  EXPECT_THROW(with(16), std::invalid_argument);
}

} // namespace tessera::module_plan_test
