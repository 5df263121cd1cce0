// SPDX-License-Identifier: Apache-2.0
// `tessera plan`: estimated times are sums that can be checked by hand, layouts
// keep what a step trains on, and what is written fits as it was said to.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/planner/search/module_plan.h"
#include "tessera/planner/search/plan_search.h"
#include "tessera/planner/search/step_time.h"
#include "tessera/runtime/comm/simulated_job.h"
#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/tasks/plan_training.h"
#include "tessera/tasks/planned_batch.h"
#include "tessera/tasks/training_config.h"
#include "tessera/tasks/training_search.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/registry.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::tools::plan_test {

namespace {

using Names = std::vector<std::string>;
using planner::best_of;
using planner::estimate_step;
using planner::EstimatedRun;
using planner::Machine;
using planner::PlanAnswer;
using planner::PlannedChange;
using planner::PlannedRun;
using planner::PlanSearch;
using planner::StepTime;
using tests::run_tessera;

/// Two nodes of four devices, with rates of round numbers.
Machine machine() {
  Machine machine;
  machine.devices = 8;
  machine.devices_per_node = 4;
  machine.device_bytes = int64_t{1} << 40;
  machine.rates = {
      .flops_16bit = 100,
      .flops_32bit = 50,
      .attention_16bit = 25,
      .device_memory = 10,
      .in_node = 4,
      .between_nodes = 1,
      .device_to_host = 2,
      .host_to_device = 1,
      .host_update = 7};
  return machine;
}

class Plan : public ::testing::Test {
 protected:
  Plan() {
    write_model(4);
    std::ofstream(folder_ / "train.json") << nlohmann::json{
        {"task", "language_model"},
        {"model",
         {{"config", (folder_ / "gpt.json").string()}, {"max_length", 64}}},
        {"data", {{"train", "nowhere.bin"}}},
        {"optimizer", {{"lr", 1e-3}}},
        {"training",
         {{"clip_grad_norm", 0}, {"batch_size", 4}, {"accumulate", 2}}},
        {"output", {{"folder", "nowhere"}}}};
  }

  void write_model(int layers, int features = 64) const {
    std::ofstream(folder_ / "gpt.json") << nlohmann::json{
        {"model_type", "gpt2"},
        {"vocab_size", 500},
        {"n_embd", features},
        {"n_layer", layers},
        {"n_head", 4},
        {"n_positions", 64}};
  }

  PlanSearch search(int64_t device_bytes) const {
    PlanSearch search;
    search.read = tasks::read_training_run(folder_ / "train.json");
    search.machine = machine();
    search.machine.devices = 2;
    search.machine.device = c10::kCPU;
    search.machine.device_bytes = device_bytes;
    return search;
  }

  PlannedRun planned_with(const Names& overrides) const;

  const TemporaryFolder folder_;
};

} // namespace

TEST(StepTimeEstimate, AddsOperatorsAndCollectives) {
  StepMemoryPlan plan;
  plan.operators = {
      {.module = "a", .name = "aten::mm", .flops = 400, .bytes = 10},
      {.module = "a", .name = "aten::add", .flops = 0, .bytes = 30}};
  plan.collectives = {// 7/8 of the bytes leave a rank, between nodes, of which
                      // each has four links
                      {"engine shards", "all_gather", 8, 3, 64},
                      // within a node, both ways
                      {"mesh tensor", "all_reduce", 4, 1, 8},
                      {"mesh alone", "all_reduce", 1, 1, 1000}};
  const StepTime time = estimate_step(
      {plan}, {.accumulate = 6, .planned_accumulate = 2}, machine());
  EXPECT_DOUBLE_EQ(time.compute, 3 * (4 + 3));
  EXPECT_DOUBLE_EQ(time.shards, 3 * 14);
  EXPECT_DOUBLE_EQ(time.layers, 3 * 3);
  EXPECT_DOUBLE_EQ(time.idle, 0);
  EXPECT_DOUBLE_EQ(time.update, 0);
  EXPECT_DOUBLE_EQ(time.total(), 42 + 9); // shards overlap
  const StepTime slow = estimate_step(
      {plan},
      {.accumulate = 6, .planned_accumulate = 2, .in_16bit = false},
      machine());
  EXPECT_DOUBLE_EQ(slow.compute, 3 * (8 + 3));
  // An update on the device is that of a step, what packs gradients not.
  plan.kernels = {
      {.name = "adamw_", .bytes = 70},
      {.name = "pack_", .in_backward = true, .bytes = 20}};
  EXPECT_DOUBLE_EQ(
      estimate_step(
          {plan}, {.accumulate = 6, .planned_accumulate = 2}, machine())
          .compute,
      3 * (4 + 3 + 2) + 7);
}

TEST(StepTimeEstimate, IsThatOfTheSlowestStageAndCountsIdleOnes) {
  StepMemoryPlan fast;
  fast.operators = {{.module = "a", .name = "aten::mm", .flops = 100}};
  StepMemoryPlan slow = fast;
  slow.operators.front().flops = 200;
  const StepTime time = estimate_step(
      {fast, slow},
      {.stages = 2, .accumulate = 4, .planned_accumulate = 4},
      machine());
  EXPECT_DOUBLE_EQ(time.compute, 2);
  // The slow stage waits for the first micro-batch of the fast one.
  EXPECT_DOUBLE_EQ(time.idle, 0.25);
}

// State is read and written once, weights in both directions.
TEST(StepTimeEstimate, CountsDisks) {
  StepMemoryPlan plan;
  auto& files = plan.planned[static_cast<size_t>(MemoryTier::kNvme)];
  files[static_cast<size_t>(MemoryPurpose::kOptimizerState)] = 30;
  Machine disks = machine();
  disks.rates.nvme = 2;
  const EstimatedRun run{
      .accumulate = 2, .planned_accumulate = 2, .overlap = UpdateOverlap::kOff};
  const StepTime time = estimate_step({plan}, run, disks);
  EXPECT_DOUBLE_EQ(time.update, 2 * 30 * 4 / 2.0); // four ranks of a node
  EXPECT_DOUBLE_EQ(time.copies, 0);
  files[static_cast<size_t>(MemoryPurpose::kParameters)] = 10;
  files[static_cast<size_t>(MemoryPurpose::kGradients)] = 5;
  EXPECT_DOUBLE_EQ(
      estimate_step({plan}, run, disks).copies,
      (10 * (2 * 2 + 1) + 5 * 2 * 2) * 4 / 2.0);
}

// Bubbles of two equal stages, whose forward takes 1 and backward 2.
TEST(StepTimeEstimate, WaitsAsTheScheduleSays) {
  StepMemoryPlan stage;
  stage.operators = {
      {.module = "a", .name = "aten::mm", .flops = 800},
      {.module = "a", .name = "aten::mm", .in_backward = true, .flops = 1600}};
  const auto idle = [&](EstimatedRun run) {
    run.stages = 2;
    run.accumulate = 8;
    run.planned_accumulate = 8;
    return estimate_step({stage, stage}, run, machine()).idle;
  };
  EXPECT_NEAR(idle({}), 3, 1e-9); // (p - 1) (F + B)
  EXPECT_NEAR(
      idle({.schedule = PipelineScheduleKind::kInterleaved, .chunks = 2}),
      1.5,
      1e-9);
  EXPECT_NEAR(idle({.schedule = PipelineScheduleKind::kZeroBubble}), 1, 1e-9);
}

TEST(StepTimeEstimate, CountsUpdatesInHostMemory) {
  StepMemoryPlan plan;
  plan.operators = {
      {.module = "a", .name = "aten::mm", .flops = 800},
      {.module = "a", .name = "aten::mm", .in_backward = true, .flops = 1200}};
  plan.kernels = {
      {.name = "adamw_", .bytes = 140, .place = WorkPlace::kHost},
      {.name = "adamw_", .bytes = 10, .place = WorkPlace::kToDevice},
      // in each of the two planned micro-batches
      {.name = "pack_",
       .in_backward = true,
       .bytes = 20,
       .place = WorkPlace::kToHost}};
  const auto update = [&](EstimatedRun run) {
    run.accumulate = 8;
    run.planned_accumulate = 2;
    return estimate_step({plan}, run, machine()).update;
  };
  // Of each of the four ranks of a node; copies are on lanes beside it.
  EXPECT_DOUBLE_EQ(update({.overlap = UpdateOverlap::kOff}), 140 * 4 / 7.0);
  // The next forward, of one micro-batch, and the backward before it.
  EXPECT_DOUBLE_EQ(update({}), 80 - 4);
  EXPECT_DOUBLE_EQ(update({.overlap = UpdateOverlap::kWait}), 80 - 4);
  EXPECT_DOUBLE_EQ(update({.overlap = UpdateOverlap::kSpeculate}), 80 - 4 - 6);
  EXPECT_DOUBLE_EQ(update({.updates_in_backward = true}), 80 - 4 - 6);
  // Copies are what takes longest: gradients of all micro-batches.
  plan.kernels.front().bytes = 7;
  EXPECT_DOUBLE_EQ(update({.overlap = UpdateOverlap::kOff}), 4 * 20 / 2);
  plan.kernels.clear();
  EXPECT_DOUBLE_EQ(update({.overlap = UpdateOverlap::kOff}), 0);
}

TEST(StepTimeEstimate, OnACpuNothingOverlaps) {
  StepMemoryPlan plan;
  plan.operators = {
      {.name = "aten::mm", .flops = 800},
      {.name = "aten::copy_", .bytes = 6, .place = WorkPlace::kToHost},
      {.name = "aten::copy_", .bytes = 5, .place = WorkPlace::kToDevice}};
  plan.kernels = {
      {.name = "adamw_", .bytes = 14, .place = WorkPlace::kHost},
      {.name = "adamw_", .bytes = 4, .place = WorkPlace::kToDevice}};
  plan.collectives = {{"engine shards", "all_gather", 2, 1, 8}};
  Machine cpu = machine();
  cpu.device = c10::kCPU;
  cpu.devices = 2;
  const StepTime time = estimate_step({plan}, {}, cpu);
  EXPECT_DOUBLE_EQ(time.shards, 1);
  EXPECT_DOUBLE_EQ(time.copies, 3 + 5);
  EXPECT_DOUBLE_EQ(time.update, 14 * 2 / 7.0 + 4);
  EXPECT_DOUBLE_EQ(time.total(), 8 + 1 + 8 + 8);
  EXPECT_DOUBLE_EQ(time.exposed(&StepTime::shards), 1);
  // Beside each other elsewhere.
  cpu.device = c10::kCUDA;
  const StepTime beside = estimate_step({plan}, {}, cpu);
  EXPECT_DOUBLE_EQ(beside.copies, 5);
  EXPECT_DOUBLE_EQ(beside.total(), 8);
  EXPECT_DOUBLE_EQ(beside.exposed(&StepTime::shards), 0);
}

// Activations leave in forward and come back in backward, as often as there are
// micro-batches; other copies go both ways at the same time.
TEST(StepTimeEstimate, CopiesOfActivationsGoBothWays) {
  StepMemoryPlan plan;
  plan.operators = {
      {.name = "aten::copy_", .bytes = 10, .place = WorkPlace::kToHost},
      {.name = "aten::copy_", .bytes = 5, .place = WorkPlace::kToDevice}};
  plan.activation_copies = {.to_host = 8, .to_device = 4};
  const EstimatedRun run{.accumulate = 6, .planned_accumulate = 2};
  const StepTime time = estimate_step({plan}, run, machine());
  EXPECT_DOUBLE_EQ(time.activations, 3 * (8 / 2.0 + 4 / 1.0));
  EXPECT_DOUBLE_EQ(time.copies, 3 * 1);
}

// At the mean of an operator's calls; kernels of the device take time too,
// copies do not.
TEST(StepTimeEstimate, SaysWhenMemoryChanges) {
  StepMemoryPlan plan;
  plan.operators = {
      {.module = "a", .name = "aten::mm", .calls = 2, .flops = 800},
      {.module = "a",
       .name = "aten::copy_",
       .calls = 1,
       .bytes = 500,
       .place = WorkPlace::kToHost}};
  plan.kernels = {{.name = "adamw_", .calls = 1, .bytes = 30}};
  plan.calls = {
      {.row = 0}, {.row = 1}, {.row = 0}, {.row = 0, .is_kernel = true}};
  for (const size_t calls : {0, 1, 2, 3, 4}) {
    plan.timeline.push_back({.calls = calls});
  }
  EXPECT_EQ(
      planner::timeline_seconds(plan, /*in_16bit=*/true, machine().rates),
      (std::vector<double>{0, 4, 4, 8, 11}));
}

// 16 examples in each step, whatever the layout.
TEST_F(Plan, KeepsTheExamplesOfAStep) {
  const auto runs = search_plans(search(int64_t{1} << 40)).runs;
  ASSERT_GE(runs.size(), 4U);
  std::vector<std::string> layouts;
  for (const PlannedRun& run : runs) {
    SCOPED_TRACE(run.layout);
    EXPECT_TRUE(run.fits()) << run.problem;
    EXPECT_FALSE(run.recomputed.any());
    const auto& plan = run.stages.front();
    EXPECT_GT(plan.peak_bytes, 0);
    const bool is_divided = run.layout != "shard 2";
    EXPECT_EQ(run.batch_size * run.accumulate * (is_divided ? 1 : 2), 16);
    layouts.push_back(run.layout);
  }
  EXPECT_EQ(layouts[0], "shard 2");
  for (const char* layout : {"shard 1, tensor 2", "shard 1, pipeline 2"}) {
    EXPECT_NE(std::find(layouts.begin(), layouts.end(), layout), layouts.end());
  }
  const PlannedRun* best = best_of(runs);
  ASSERT_NE(best, nullptr);
  for (const PlannedRun& run : runs) {
    EXPECT_LE(best->time.total(), run.time.total());
  }
}

/// The configuration with one row, and what is recomputed.
PlannedRun Plan::planned_with(const Names& overrides) const {
  PlanSearch one = search(int64_t{1} << 40);
  one.machine.devices = 1;
  one.as_given = true;
  one.overrides = {"training.batch_size=1", "training.accumulate=8"};
  one.overrides.insert(one.overrides.end(), overrides.begin(), overrides.end());
  const auto runs = search_plans(one).runs;
  EXPECT_EQ(runs.size(), 1U);
  return runs.front();
}

// Against all kinds of parts with all numbers of layers.
TEST_F(Plan, RepeatsAsLittleWorkAsFits) {
  std::vector<PlannedRun> all;
  for (const char* parts :
       {"recompute_operators=false",
        "recompute_operators=true",
        "model.checkpoint_attention=true"}) {
    for (int layers = 0; layers <= 4; ++layers) {
      Names overrides{
          parts, "model.checkpoint_layers=" + std::to_string(layers)};
      if (parts == std::string("model.checkpoint_attention=true")) {
        overrides.emplace_back("recompute_operators=true");
      }
      all.push_back(planned_with(overrides));
    }
  }
  std::set<std::string> kinds;
  for (const PlannedRun& limit : all) {
    if (limit.device_bytes < all[4].device_bytes) {
      // Attention of the last layer alone takes a little less than that layer,
      // whose parts are all there when it is recomputed: not searched for.
      continue;
    }
    PlanSearch alone = search(limit.device_bytes);
    alone.machine.devices = 1;
    const auto runs = search_plans(alone).runs;
    ASSERT_GT(runs.size(), 1U);
    const auto found = runs.begin() + 1;
    EXPECT_TRUE(found->fits()) << found->problem;
    double least = limit.time.total();
    for (const PlannedRun& run : all) {
      if (run.device_bytes <= limit.device_bytes) {
        least = std::min(least, run.time.total());
      }
    }
    // A layer takes 6.8 %: it may be one too many, as memory is not linear.
    EXPECT_LT(found->time.total(), 1.07 * least)
        << limit.recomputed.column() << ", found "
        << found->recomputed.column();
    kinds.insert(found->recomputed.column());
  }
  EXPECT_TRUE(kinds.contains("-"));
  EXPECT_TRUE(kinds.contains("op"));
  EXPECT_GE(kinds.size(), 5U) << "all kinds, and layers besides";
  // The configuration as it is has four rows, which are too many.
  const auto runs = search_plans(search(all[0].device_bytes)).runs;
  EXPECT_FALSE(runs.front().fits());
  EXPECT_NE(runs.front().problem.find("above the"), std::string::npos)
      << runs.front().problem;
}

// What backward computes again is in its time. LibTorch's attention with
// dropout keeps its weights.
TEST_F(Plan, CountsWhatIsRecomputed) {
  runtime::use_fused_operators(false);
  const PlannedRun nothing = planned_with({});
  const PlannedRun operators = planned_with({"recompute_operators=true"});
  const PlannedRun attention =
      planned_with({"model.checkpoint_attention=true"});
  const PlannedRun layers = planned_with({"model.checkpoint_layers=4"});
  const auto forward_flops = [&](const std::string& name) {
    double flops = 0;
    for (const OperatorWork& work : nothing.stages.front().operators) {
      const bool is_meant = !work.in_backward &&
                            work.module.starts_with("layers.") &&
                            work.name.find(name) != std::string::npos;
      flops += is_meant ? work.flops : 0;
    }
    return flops;
  };
  const auto more_flops = [&](const PlannedRun& run) {
    return run.stages.front().flops() - nothing.stages.front().flops();
  };
  for (const PlannedRun* run : {&operators, &attention, &layers}) {
    EXPECT_GT(run->time.compute, nothing.time.compute);
    EXPECT_LT(run->device_bytes, nothing.device_bytes);
  }
  EXPECT_LT(operators.time.compute, attention.time.compute);
  EXPECT_LT(attention.time.compute, layers.time.compute);
  // GELU and dropout are no products; attention has two; layers have all.
  EXPECT_EQ(more_flops(operators), 0);
  EXPECT_EQ(more_flops(attention), forward_flops("bmm"));
  EXPECT_EQ(more_flops(layers), forward_flops(""));
  runtime::use_fused_operators(true);
}

/// Of a layout; the first that has it, after the configuration as it is.
const PlannedRun& run_in(
    const std::vector<PlannedRun>& runs,
    const std::string& layout) {
  const auto found =
      std::find_if(runs.begin() + 1, runs.end(), [&](const PlannedRun& run) {
        return run.layout == layout;
      });
  EXPECT_NE(found, runs.end());
  return *found;
}

// 63 tokens are not divisible by two tensor ranks, which then hold all of them,
// but may divide the inputs of recomputed layers.
TEST_F(Plan, KeepsSequencesWholeThatCannotBeDivided) {
  const auto has = [](const PlannedRun& run, const char* override) {
    return std::count(run.overrides.begin(), run.overrides.end(), override) > 0;
  };
  const char* layout = "shard 1, tensor 2";
  PlanSearch one = search(int64_t{1} << 40);
  EXPECT_TRUE(
      has(run_in(search_plans(one).runs, layout), "parallel.sequence=true"));
  one.overrides = {"model.max_length=63"};
  const PlannedRun full = run_in(search_plans(one).runs, layout);
  EXPECT_TRUE(full.fits()) << full.problem;
  EXPECT_TRUE(has(full, "parallel.sequence=false"));

  PlanSearch given = one;
  given.as_given = true;
  const Names layers{
      "parallel.shard=1",
      "parallel.tensor=2",
      "training.batch_size=1",
      "training.accumulate=16",
      "model.checkpoint_layers=4"};
  given.overrides.insert(given.overrides.end(), layers.begin(), layers.end());
  const PlannedRun kept = search_plans(given).runs.front();
  given.overrides.emplace_back("model.divide_checkpoints=true");
  const PlannedRun divided = search_plans(given).runs.front();
  EXPECT_LT(divided.device_bytes, kept.device_bytes);
  EXPECT_GT(divided.time.layers, kept.time.layers);
  one.machine.device_bytes = divided.device_bytes;
  const PlannedRun found = run_in(search_plans(one).runs, layout);
  EXPECT_TRUE(found.fits()) << found.problem;
  EXPECT_TRUE(found.recomputed.divided_inputs) << found.recomputed.text();
  EXPECT_TRUE(has(found, "model.divide_checkpoints=true"));
}

// State in host memory, and its update, with averages and without.
TEST_F(Plan, CountsAveragesInHostMemory) {
  PlanSearch one = search(int64_t{1} << 40);
  one.machine.device = c10::kCUDA;
  one.machine.host_bytes = int64_t{1} << 30;
  one.as_given = true;
  one.overrides = {
      "placement.optimizer=host",
      "memory.host_bytes=1GiB",
      "optimizer.overlap=off"};
  const PlannedRun alone = search_plans(one).runs.front();
  one.overrides.emplace_back("optimizer.ema_decay=0.9");
  const PlannedRun averaged = search_plans(one).runs.front();
  ASSERT_GT(alone.time.update, 0);
  EXPECT_NEAR(averaged.time.update / alone.time.update, 40.0 / 28, 1e-3);
}

TEST_F(Plan, WritesAConfigurationThatFitsAsItWasSaidTo) {
  const std::vector<std::string> words{
      "plan",
      (folder_ / "train.json").string(),
      "--devices=2",
      "--device=cpu",
      "--margin=0",
      "--device-memory=2.6MiB"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run_tessera(1, all);
  };
  const auto written = with(
      {"--write=" + (folder_ / "plans" / "best.json").string(),
       "--report=" + (folder_ / "plans" / "plan.html").string()});
  EXPECT_EQ(written.exit_code, 0) << written.output;
  // What to run, its memory and its time come first.
  for (const char* part :
       {"run: tessera launch --nproc 2 -- tessera train ",
        "recompute_operators=true",
        "\nmemory: ",
        "\ntime: ",
        " of a device,"}) {
    EXPECT_NE(written.output.find(part), std::string::npos) << written.output;
  }
  EXPECT_EQ(written.output.find("parallel.data"), std::string::npos)
      << "it is so already";
  const auto found = nlohmann::json::parse(with({"--json"}).output);
  const auto& best = found.at("runs").at(found.at("best").get<size_t>());
  // What is recomputed: in the table, its rows at most 80 columns wide, in the
  // reasons, in the report and in what is written.
  std::istringstream lines(written.output);
  std::string line;
  int rows = 0;
  int marked = 0;
  while (std::getline(lines, line) && line.find("estimated: ") != 0) {
    if (line.find("shard ") == 1 && line.find(" no: ") == line.npos) {
      EXPECT_LE(line.size(), 80U) << line;
      EXPECT_EQ(line[0] == '*', rows == 0) << "the fastest is the first";
      marked += line[0] == '*' ? 1 : 0;
      ++rows;
    }
  }
  EXPECT_EQ(rows, 2);
  EXPECT_EQ(marked, 1);
  EXPECT_NE(written.output.find("recomp "), std::string::npos);
  std::stringstream report;
  report << std::ifstream(folder_ / "plans" / "plan.html").rdbuf();
  EXPECT_NE(report.str().find("cheap operators"), std::string::npos);
  EXPECT_NE(
      report.str().find("ms of computation, estimated"), std::string::npos);
  EXPECT_TRUE(best.at("recomputed").at("operators").get<bool>());
  std::ifstream file(folder_ / "plans" / "best.json");
  EXPECT_TRUE(
      nlohmann::json::parse(file).at("recompute_operators").get<bool>());
  auto again = words;
  again[1] = (folder_ / "plans" / "best.json").string();
  again.emplace_back("--as-given");
  again.emplace_back("--json");
  const auto planned =
      nlohmann::json::parse(run_tessera(1, again).output).at("runs").at(0);
  EXPECT_EQ(planned.at("device_bytes"), best.at("device_bytes"));
  EXPECT_EQ(planned.at("layout"), best.at("layout"));
  EXPECT_TRUE(planned.at("fits").get<bool>());
}

TEST_F(Plan, LeavesAMarginOfADevice) {
  const auto planned = run_tessera(
      1,
      {"plan",
       (folder_ / "train.json").string(),
       "--device=cpu",
       "--device-memory=1GiB",
       "--as-given",
       "--margin=5%"});
  EXPECT_NE(planned.output.find("51.20 MiB of margin"), std::string::npos)
      << planned.output;
}

// The same path means another file in another folder.
TEST_F(Plan, WritesPathsAsTheyAreFromTheFile) {
  const std::filesystem::path written = folder_ / "plans" / "best.json";
  const std::string model =
      std::filesystem::relative(folder_ / "gpt.json").string();
  const auto run = run_tessera(
      1,
      {"plan",
       (folder_ / "train.json").string(),
       "--device=cpu",
       "--device-memory=1GiB",
       "--as-given",
       "--write=" + written.string(),
       "model.config=" + model});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  std::ifstream file(written);
  const auto config = nlohmann::json::parse(file);
  EXPECT_EQ(config.at("extends"), "../train.json");
  EXPECT_EQ(config.at("model").at("config"), "../gpt.json");
}

TEST_F(Plan, ReplacesNoConfigurationThatItReads) {
  const std::filesystem::path child = folder_ / "child.json";
  std::ofstream(child) << R"({"extends": "train.json"})";
  const std::filesystem::path link = folder_ / "link.json";
  std::filesystem::create_symlink(folder_ / "train.json", link);
  const auto output_with = [&](const std::string& option) {
    return run_tessera(
               1,
               {"plan",
                child.string(),
                "--device=cpu",
                "--device-memory=1GiB",
                option})
        .output;
  };
  for (const auto& file : {folder_ / "train.json", link}) {
    const std::string output = output_with("--write=" + file.string());
    EXPECT_NE(output.find("child.json' extends; name another"), output.npos)
        << output;
  }
  for (const char* option : {"--write=", "--report="}) {
    const std::string output = output_with(option + child.string());
    EXPECT_NE(output.find("is the configuration that is planned"), output.npos)
        << output;
  }
}

/// A device with little memory and slow links, but a large host.
TEST(StepTimeEstimate, KnowsWhichRanksShareANode) {
  const auto shards_of = [](int ranks, const std::vector<int>& members) {
    StepMemoryPlan plan;
    plan.collectives = {{"engine shards", "all_reduce", ranks, 1, 8, members}};
    return estimate_step({plan}, {}, machine()).shards;
  };
  // Twice what others have, over links of 4 in a node of four, of 1 elsewhere.
  EXPECT_DOUBLE_EQ(shards_of(2, {4, 5}), 8.0 / 4);
  EXPECT_DOUBLE_EQ(shards_of(2, {1, 5}), 8.0 / 1);
  EXPECT_DOUBLE_EQ(shards_of(4, {0, 2, 4, 6}), 12.0 / 2);
  EXPECT_DOUBLE_EQ(shards_of(8, {0, 1, 2, 3, 4, 5, 6, 7}), 2 * 8 * 7.0 / 8 / 4);
}

TEST_F(Plan, ShardsWithinNodesWhereThatIsFaster) {
  PlanSearch one = search(int64_t{1} << 40);
  one.machine.device = c10::kCUDA;
  one.machine.devices = 4;
  one.machine.devices_per_node = 2;
  one.machine.rates.in_node = 1e12;
  one.machine.rates.between_nodes = 1e-3;
  const auto answer = search_plans(one);
  const auto found = std::find_if(
      answer.runs.begin(), answer.runs.end(), [](const PlannedRun& run) {
        return run.layout == "shard 2, data 2" && run.residency == "zero 3";
      });
  ASSERT_NE(found, answer.runs.end());
  ASSERT_TRUE(found->problem.empty()) << found->problem;
  const auto sharded = std::find_if(
      answer.runs.begin(), answer.runs.end(), [](const PlannedRun& run) {
        return run.layout == "shard 4" && run.residency == "zero 3" &&
               !run.is_bound;
      });
  ASSERT_NE(sharded, answer.runs.end());
  EXPECT_LT(found->time.shards, 0.6 * sharded->time.shards);
  EXPECT_GT(found->device_bytes, sharded->device_bytes);
}

// Layouts that divide the model are tried with a budget as well.
TEST_F(Plan, TriesBudgetsInAllLayouts) {
  PlanSearch one = search(0);
  write_model(12);
  one.machine.device = c10::kCUDA;
  one.overrides = {"training.batch_size=1", "training.accumulate=4"};
  one.machine.device_bytes = int64_t{5} << 19;
  one.machine.host_bytes = int64_t{1} << 30;
  std::set<std::string> layouts;
  for (const PlannedRun& run : search_plans(one).runs) {
    if (run.residency == "budget") {
      layouts.insert(run.layout);
    }
  }
  EXPECT_EQ(
      layouts,
      (std::set<std::string>{
          "shard 2", "shard 1, tensor 2", "shard 1, pipeline 2"}));
}

TEST_F(Plan, PrintsTheLauncherOfSeveralDevices) {
  const auto output_with = [&](const Names& more) {
    Names words{
        "plan",
        (folder_ / "train.json").string(),
        "--device=cpu",
        "--device-memory=1GiB"};
    words.insert(words.end(), more.begin(), more.end());
    return run_tessera(1, words).output;
  };
  const auto begins = [](const std::string& output, const std::string& line) {
    EXPECT_NE(output.find("run: " + line), std::string::npos) << output;
  };
  begins(output_with({"--devices=1"}), "tessera train ");
  begins(
      output_with({"--devices=2"}),
      "tessera launch --nproc 2 -- tessera train ");
  begins(
      output_with({"--devices=4", "--devices-per-node=2"}),
      "tessera launch --nnodes 2 --node-rank N --master-addr HOST --nproc 2 -- tessera train ");
}

// All layouts are refused for one reason, which is long.
TEST_F(Plan, ShowsRefusedLayoutsInFull) {
  const std::string output = run_tessera(
                                 1,
                                 {"plan",
                                  (folder_ / "train.json").string(),
                                  "--devices=4",
                                  "--device=cpu",
                                  "--device-memory=1GiB",
                                  "sharding.shard_ranks=2"})
                                 .output;
  for (const char* part :
       {"\n shard 2, tensor 2            1 x 16 ",
        "no: [1]\n",
        "\n[1] refused: ",
        "set parallel.shard and parallel.data instead\n"}) {
    EXPECT_NE(output.find(part), std::string::npos) << part << "\n" << output;
  }
  EXPECT_EQ(output.find("0 x 0"), std::string::npos) << output;
  EXPECT_EQ(output.find("[2]"), std::string::npos) << output;
}

// Experts take longer to gather than to compute.
TEST_F(Plan, DividesExpertsOfANode) {
  std::ofstream(folder_ / "gpt.json") << nlohmann::json{
      {"model_type", "qwen3_moe"},
      {"architectures", {"Qwen3MoeForCausalLM"}},
      {"vocab_size", 500},
      {"hidden_size", 64},
      {"intermediate_size", 128},
      {"moe_intermediate_size", 64},
      {"num_hidden_layers", 4},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 16},
      {"num_experts", 6},
      {"num_experts_per_tok", 2},
      {"max_position_embeddings", 64}};
  PlanSearch one = search(int64_t{1} << 40);
  one.machine.device = c10::kCUDA;
  one.machine.devices = 8;
  one.machine.rates.in_node = 1e-3;
  one.machine.rates.between_nodes = 1e-3;
  std::set<std::string> divided;
  for (const PlannedRun& run : search_plans(one).runs) {
    if (run.layout.find("expert") != std::string::npos) {
      EXPECT_TRUE(run.fits()) << run.problem;
      divided.insert(run.layout);
    }
  }
  // Nodes have 4 devices, and layers 6 experts.
  EXPECT_TRUE(divided.contains("shard 8, expert 2"));
  for (const std::string& layout : divided) {
    EXPECT_TRUE(layout.ends_with("expert 2")) << layout;
  }
}

// From few layers, for each change that is tried.
TEST_F(Plan, SaysSoonerThatNothingFits) {
  write_model(12, /*features=*/128);
  PlanSearch one = search(int64_t{1} << 18);
  one.machine.device = c10::kCUDA;
  int in_full = 0;
  one.read = [read = one.read, &in_full](const Names& overrides) {
    planner::RunSettings settings = read(overrides);
    settings.plan = [plan = settings.plan, &in_full](
                        const Machine& machine,
                        const planner::SettingsRun& run) {
      in_full += run.layers ? 0 : 1;
      return plan(machine, run);
    };
    return settings;
  };
  EXPECT_EQ(search_plans(one).best_run(), nullptr);
  EXPECT_LE(in_full, 12);
}

TEST_F(Plan, TriesOtherUsesOfMemory) {
  PlanSearch one = search(int64_t{1} << 40);
  one.machine.device = c10::kCUDA;
  one.overrides = {"training.batch_size=1", "training.accumulate=8"};
  one.as_given = true;
  const auto peak_with = [&](int layers) {
    PlanSearch with = one;
    with.overrides.push_back(
        "model.checkpoint_layers=" + std::to_string(layers));
    return search_plans(with).runs.front().device_bytes;
  };
  one.as_given = false;
  // Room for a budget, which keeps some free, but not for a layer more.
  one.machine.device_bytes = peak_with(4) + peak_with(4) / 100;
  ASSERT_LT(one.machine.device_bytes, peak_with(0));
  one.machine.host_bytes = int64_t{1} << 30;
  one.machine.rates.in_node = 1e-3;
  const auto runs = search_plans(one).runs;
  const auto find = [&](const std::string& residency,
                        const std::string& offloaded) {
    return std::find_if(runs.begin(), runs.end(), [&](const PlannedRun& run) {
      return run.layout == "shard 2" && run.residency == residency &&
             run.offloaded == offloaded;
    });
  };
  const auto plain = find("zero 3", "");
  ASSERT_NE(plain, runs.end());
  for (const auto& [residency, offloaded] :
       {std::pair("zero 2", ""),
        std::pair("zero 1", ""),
        std::pair("budget", ""),
        std::pair("zero 3", "optimizer"),
        std::pair("zero 3", "activations")}) {
    SCOPED_TRACE(residency + std::string(" ") + offloaded);
    const auto found = find(residency, offloaded);
    ASSERT_NE(found, runs.end());
    EXPECT_EQ(found->problem.find("refused"), std::string::npos)
        << found->problem;
    EXPECT_FALSE(found->stages.empty());
  }
  EXPECT_GT(find("zero 3", "activations")->time.activations, 0);
  EXPECT_FALSE(find("zero 3", "activations")->recomputed.any());
  EXPECT_GT(find("zero 3", "optimizer")->host_bytes, 0);
  EXPECT_LT(find("zero 3", "optimizer")->device_bytes, plain->device_bytes);
}

/// Of the configuration as it is: what a step takes at the rates of kernels.
TEST_F(Plan, PredictsOperators) {
  const std::vector<std::string> words{
      "plan",
      (folder_ / "train.json").string(),
      "precision.parameters=bfloat16",
      "--operators",
      "--device=h200",
      "--rate=device_memory=4e12"};
  const auto table = run_tessera(1, words);
  EXPECT_EQ(table.exit_code, 0) << table.output;
  for (const char* part :
       {"predicted for h200",
        "memory at 4.00 TB/s",
        "bound by",
        "adamw_",
        "_scaled_dot_product_flash_attent",
        "% of 989 TFLOP/s"}) {
    EXPECT_NE(table.output.find(part), std::string::npos) << part << "\n"
                                                          << table.output;
  }
  auto as_json = words;
  as_json.emplace_back("--json");
  const auto found = nlohmann::json::parse(run_tessera(1, as_json).output);
  const auto& stage = found.at("stages").at(0);
  double flops = 0;
  double seconds = 0;
  for (const auto& row : stage.at("operators")) {
    flops += row.at("flops").get<double>();
    seconds += row.at("seconds").get<double>();
  }
  EXPECT_NEAR(seconds, stage.at("step_in_turn_s").get<double>(), 1e-9);
  // 6 for each weight and token, and attention: 12 x layers x width x length,
  // of which a mask hides half, and its backward repeats a sixth.
  constexpr double kTokens = 2 * 4 * 64;
  constexpr double kLayer = 12 * 64 * 64;
  const double attention = kTokens * 12 * 4 * 64 * 64;
  const double products = kTokens * 6 * (4 * kLayer + 500 * 64);
  const double model_flops = stage.at("model_flops").get<double>();
  EXPECT_NEAR(model_flops, products + attention, 0.01 * model_flops);
  EXPECT_NEAR(flops, products + attention / 2 * 7 / 6, 0.01 * model_flops);
  // Pipeline stages have a table each.
  as_json.insert(
      as_json.end(),
      {"--devices=2", "parallel.shard=1", "parallel.pipeline=2"});
  EXPECT_EQ(
      nlohmann::json::parse(run_tessera(1, as_json).output).at("stages").size(),
      2U);
}

/// What the time is made of: also of copies, which may take longer than all
/// else. What does not fit on the host is an assumption, no warning of a run.
TEST_F(Plan, SaysWhatCopiesTake) {
  const auto with = [&](const Names& more) {
    Names words{
        "plan", (folder_ / "train.json").string(), "--as-given", "--reserve=0"};
    words.insert(words.end(), more.begin(), more.end());
    return run_tessera(1, words).output;
  };
  const auto expect_has =
      [](const std::string& text, const char* part, bool has) {
        EXPECT_EQ(text.find(part) != text.npos, has) << part << "\n" << text;
      };
  const std::string given = with({"--device-memory=1GiB"});
  expect_has(given, "estimated: ", true);
  expect_has(given, "of the host", false);
  const std::string moved = with(
      {"--device-memory=1GiB",
       "--host-memory=1GiB",
       "placement.activations=host",
       "memory.activation_bytes=64KiB"});
  expect_has(moved, ", activations to the host and back ", true);
  const std::string full = with(
      {"--device-memory=1GiB",
       "--host-memory=1GiB",
       "placement.activations=host",
       "memory.activation_bytes=64KiB",
       "offload.activation_host_bytes=64KiB"});
  expect_has(full, "warning", false);
  expect_has(full, "assumed: offload: host memory has no room", true);
}

/// Products in bfloat16 are planned at their own rate, or a line says that it
/// is not known.
TEST_F(Plan, KnowsHowTheRunMultiplies) {
  const auto planned = [&](const Names& more) {
    Names words{
        "plan",
        (folder_ / "train.json").string(),
        "--device=cpu",
        "--device-memory=1GiB",
        "--as-given",
        "--rate=flops_32bit=1e9",
        "--rate=device_memory=1e15",
        "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return nlohmann::json::parse(run_tessera(1, words).output).at("runs").at(0);
  };
  const auto assumes = [](const nlohmann::json& run) {
    return run.at("assumed").dump().find("flops_rounded=NUMBER") !=
           std::string::npos;
  };
  const auto precise = planned({"--rate=flops_rounded=4e9"});
  const auto unknown = planned({"cpu_matmul=bfloat16"});
  const auto known =
      planned({"cpu_matmul=bfloat16", "--rate=flops_rounded=4e9"});
  EXPECT_FALSE(assumes(precise));
  EXPECT_TRUE(assumes(unknown));
  EXPECT_FALSE(assumes(known));
  const double seconds = precise.at("compute_s");
  EXPECT_EQ(unknown.at("compute_s"), seconds);
  // All but fused attention takes a quarter.
  const double attention = 12. * 2 * 4 * 64 * 4 * 64 * 64 * 7 / 6 / 1e9;
  EXPECT_NEAR(
      known.at("compute_s").get<double>(),
      attention + (seconds - attention) / 4,
      0.02 * seconds);
  // What `tessera bench` measured.
  std::ofstream(folder_ / "bench.json") << nlohmann::json{
      {"cpu_operators",
       {{"products_32bit", 1e9},
        {"products_16bit", 1e9},
        {"products_rounded", 4e9},
        {"attention_16bit", 1e9},
        {"elementwise", 1e15}}}};
  const auto measured = planned(
      {"cpu_matmul=bfloat16",
       "--bandwidths=" + (folder_ / "bench.json").string()});
  EXPECT_EQ(measured.at("compute_s"), known.at("compute_s"));
  EXPECT_FALSE(assumes(measured));
  const auto table = run_tessera(
      1,
      {"plan",
       (folder_ / "train.json").string(),
       "--operators",
       "--device=cpu",
       "cpu_matmul=bfloat16",
       "--rate=flops_rounded=4e12"});
  EXPECT_NE(
      table.output.find("with rounded factors at 4.00"), std::string::npos)
      << table.output;
}

/// What is simulated is the configuration as it is, and leaves no files.
TEST_F(Plan, SimulatesARank) {
  const std::vector<std::string> words{
      "plan",
      (folder_ / "train.json").string(),
      "device=cpu",
      "--simulate-world=8",
      "--simulate-rank=3",
      "--steps=1"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run_tessera(1, all);
  };
  const auto told = with({"--memory-cap=64MiB"});
  EXPECT_EQ(told.exit_code, 0) << told.output;
  for (const char* part :
       {"rank 3 of 8, the others simulated",
        "of 64.00 MiB",
        "step 1: ",
        "optimizer state"}) {
    EXPECT_NE(told.output.find(part), std::string::npos) << told.output;
  }
  const auto found = nlohmann::json::parse(with({"--json"}).output);
  const auto& peak = found.at("memory").back();
  EXPECT_EQ(peak.at("what"), "peak");
  EXPECT_NEAR(
      peak.at("planned").get<double>() / peak.at("measured").get<double>(),
      1,
      0.03);
  EXPECT_EQ(found.at("steps").size(), 1U);
  const auto full = with({"--memory-cap=100KiB"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_NE(full.output.find("runs out of memory"), std::string::npos)
      << full.output;
  EXPECT_EQ(folder_.count(), 2U);
  EXPECT_NE(with({"--simulate-rank=8"}).exit_code, 0);
  EXPECT_NE(with({"--device-memory=1GiB"}).exit_code, 0);
}

// Memory of the stages, which is the most of those that are planned together,
// and what each computes and sends.
TEST_F(Plan, RunsStagesThatAreAlikeOnce) {
  write_model(14); // 2, 2, 2, 2, 3 and 3 layers on 6 stages
  constexpr int kStages = 6;
  for (const Names& more :
       {Names{},
        Names{"model.checkpoint_layers=4"},
        Names{"parallel.schedule=zb-h1"},
        Names{"parallel.schedule=interleaved", "parallel.chunks=2"}}) {
    SCOPED_TRACE(more.empty() ? "" : more.front());
    Names overrides{
        "parallel.shard=2",
        "parallel.pipeline=6",
        "training.batch_size=1",
        "training.accumulate=12"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const tasks::TrainingConfig config =
        tasks::read_training_config(folder_ / "train.json", overrides);
    const auto each = tasks::plan_training(config, 2 * kStages);
    const auto once = tasks::plan_training(
        config, 2 * kStages, 0, c10::kCPU, {.alike_stages_once = true});
    ASSERT_EQ(each.size(), kStages);
    ASSERT_EQ(once.size(), kStages);
    int repeated = 0;
    for (size_t stage = 0; stage < once.size(); ++stage) {
      SCOPED_TRACE(stage);
      EXPECT_EQ(once[stage].rank, each[stage].rank);
      EXPECT_EQ(once[stage].flops(), each[stage].flops());
      EXPECT_GE(once[stage].peak_bytes, each[stage].peak_bytes);
      const auto& sent = each[stage].collectives;
      ASSERT_EQ(once[stage].collectives.size(), sent.size());
      for (size_t i = 0; i < sent.size(); ++i) {
        EXPECT_EQ(once[stage].collectives[i].kind, sent[i].kind);
        EXPECT_EQ(once[stage].collectives[i].calls, sent[i].calls);
        EXPECT_EQ(once[stage].collectives[i].bytes, sent[i].bytes);
      }
      repeated += once[stage].peak_bytes > each[stage].peak_bytes ? 1 : 0;
    }
    const bool has_own_runs =
        config.parallel.schedule == PipelineScheduleKind::kZeroBubble;
    EXPECT_EQ(repeated > 0, !has_own_runs);
    for (const size_t own : {size_t{0}, size_t{1}, once.size() - 1}) {
      EXPECT_EQ(once[own].peak_bytes, each[own].peak_bytes);
    }
  }
}

/// LibTorch convolves 1 x 1 patches itself on one thread, and by oneDNN on
/// more.
TEST_F(Plan, KnowsTheConvolutionsOfOneThread) {
  std::ofstream(folder_ / "vit.json") << nlohmann::json{
      {"model_type", "vit"},
      {"architectures", {"ViTForImageClassification"}},
      {"image_size", 16},
      {"patch_size", 1},
      {"num_channels", 3},
      {"hidden_size", 48},
      {"num_hidden_layers", 1},
      {"num_attention_heads", 4},
      {"intermediate_size", 48}};
  std::ofstream(folder_ / "images.json") << nlohmann::json{
      {"task", "examples"},
      {"model",
       {{"config", (folder_ / "vit.json").string()}, {"classes", {"a", "b"}}}},
      {"data", {{"train", "nowhere.safetensors"}}},
      {"optimizer", {{"lr", 1e-3}}},
      {"training", {{"batch_size", 4}}},
      {"output", {{"folder", "nowhere"}}}};
  ::setenv("OMP_NUM_THREADS", "1", 1);
  const auto told = run_tessera(
      1,
      {"plan",
       (folder_ / "images.json").string(),
       "device=cpu",
       "--simulate-world=1",
       "--steps=1",
       "--json"});
  ::unsetenv("OMP_NUM_THREADS");
  ASSERT_EQ(told.exit_code, 0) << told.output;
  const auto peak = nlohmann::json::parse(told.output).at("memory").back();
  EXPECT_NEAR(
      peak.at("planned").get<double>() / peak.at("measured").get<double>(),
      1,
      0.01);
}

/// What was not planned takes no less than the best, and a bound is at most
/// what the layout takes.
void expect_bounds(const PlanAnswer& estimated, const PlanAnswer& full) {
  for (const PlannedRun& run : estimated.runs) {
    if (!run.is_bound) {
      continue;
    }
    EXPECT_GE(run.time.total(), estimated.best_run()->time.total());
    for (const PlannedRun& planned : full.runs) {
      if (planned.fits() && planned.layout == run.layout &&
          planned.batch_size == run.batch_size &&
          planned.residency == "zero 3") {
        EXPECT_LE(run.time.total(), 1.02 * planned.time.total())
            << run.layout << ": " << run.recomputed.column() << " and "
            << run.device_bytes << " bytes in place of "
            << planned.recomputed.column() << " and " << planned.device_bytes;
      }
    }
  }
}

/// A model of 12 layers, which is estimated from few of them, on devices that
/// hold it and on some that do not.
TEST_F(Plan, EstimatesFindTheSameAsAllLayers) {
  write_model(12, /*features=*/128); // layers of 0.2 million weights
  PlanSearch one = search(int64_t{1} << 40);
  one.machine.device = c10::kCUDA;
  one.overrides = {"training.batch_size=1", "training.accumulate=8"};
  one.as_given = true;
  const int64_t full = search_plans(one).runs.front().device_bytes;
  one.as_given = false;
  std::set<std::string> found;
  for (const double part : {1.0, 0.8}) {
    one.machine.device_bytes =
        static_cast<int64_t>(part * static_cast<double>(full));
    one.in_full = true;
    const PlanAnswer full = search_plans(one);
    one.in_full = false;
    const PlanAnswer estimated = search_plans(one);
    ASSERT_NE(full.best_run(), nullptr);
    ASSERT_NE(estimated.best_run(), nullptr);
    // The same layout, or one that takes as long; a layer that is recomputed
    // takes 2 %.
    const double longest =
        estimated.best_run()->layout == full.best_run()->layout ? 1.02 : 1.01;
    EXPECT_LT(
        estimated.best_run()->time.total(),
        longest * full.best_run()->time.total())
        << estimated.best_run()->layout << ", " << full.best_run()->layout;
    EXPECT_LE(
        estimated.best_run()->device_bytes, one.machine.available_bytes());
    found.insert(
        estimated.best_run()->layout +
        estimated.best_run()->recomputed.column());
    expect_bounds(estimated, full);
  }
  EXPECT_GT(found.size(), 1U);
}

// All-gathers of pipelines, whose stages have fewer layers and more
// micro-batches, where they take longer than all else.
TEST_F(Plan, BoundsTheAllGathersOfPipelines) {
  write_model(12, /*features=*/128);
  PlanSearch one = search(int64_t{1} << 40);
  one.machine.device = c10::kCUDA;
  one.machine.devices = 4;
  one.machine.rates.in_node = 0.01;
  one.overrides = {"training.batch_size=1", "training.accumulate=8"};
  const PlanAnswer estimated = search_plans(one);
  one.in_full = true;
  const PlanAnswer full = search_plans(one);
  ASSERT_NE(estimated.best_run(), nullptr);
  expect_bounds(estimated, full);
  EXPECT_TRUE(std::any_of(
      estimated.runs.begin(), estimated.runs.end(), [](const PlannedRun& run) {
        return run.is_bound &&
               run.layout.find("pipeline") != std::string::npos &&
               run.time.shards > run.time.compute;
      }));
}

// Layers of less than 100 000 weights are merged into groups, whose slots are
// more or less full with each number of layers.
TEST_F(Plan, EstimatesFromFewLayersWhereEachIsAGroup) {
  const auto can_estimate = [&](int features, const Names& overrides) {
    write_model(12, features);
    return tasks::model_layers(
               tasks::read_training_config(folder_ / "train.json", overrides))
        .can_be_fewer;
  };
  EXPECT_TRUE(can_estimate(128, {}));
  EXPECT_FALSE(can_estimate(64, {}));
  EXPECT_TRUE(can_estimate(64, {"sharding.min_group_numel=1000"}));
  EXPECT_FALSE(can_estimate(128, {"sharding.max_group_numel=1000000"}));
}

// On one small device: state, gradients and weights go to the host as needed;
// without a host the answer says how much of it would do.
TEST_F(Plan, FitsByABudgetAndSaysWhatElseWouldFit) {
  PlanSearch one = search(0);
  write_model(12);
  one.machine.devices = 1;
  one.machine.device = c10::kCUDA;
  one.overrides = {"training.batch_size=1", "training.accumulate=4"};
  one.machine.device_bytes = int64_t{9} << 19;
  const PlanAnswer none = search_plans(one);
  EXPECT_EQ(none.best_run(), nullptr);
  ASSERT_TRUE(none.nearest);
  EXPECT_NE(
      none.runs[*none.nearest].problem.find("above the"), std::string::npos);
  ASSERT_FALSE(none.changes.empty());
  const PlannedChange& host = none.changes.front();
  EXPECT_TRUE(host.change.starts_with("--host-memory ")) << host.change;
  EXPECT_TRUE(host.change.ends_with("MiB")) << host.change;
  EXPECT_GT(host.run.host_bytes, 0);
  EXPECT_TRUE(host.run.fits());
  EXPECT_LE(host.run.device_bytes, one.machine.available_bytes());

  one.machine.host_bytes = int64_t{1} << 30;
  const PlanAnswer answer = search_plans(one);
  ASSERT_NE(answer.best_run(), nullptr);
  EXPECT_TRUE(answer.changes.empty());
  EXPECT_EQ(answer.best_run()->residency, "budget");
  EXPECT_GT(answer.best_run()->host_bytes, 0);
  EXPECT_LE(answer.best_run()->device_bytes, one.machine.available_bytes());
}

// Also where a node's memory is known, and too small: what stays on the device
// may lack less than what does not fit on the host.
TEST_F(Plan, NamesTheLeastOfAllThatWasTried) {
  write_model(12, /*features=*/128);
  PlanSearch one = search(int64_t{10} << 20);
  one.machine.devices = 1;
  one.overrides = {"training.batch_size=1", "training.accumulate=4"};
  const auto lack_of = [&](const PlanAnswer& answer) {
    EXPECT_EQ(answer.best_run(), nullptr);
    EXPECT_TRUE(answer.nearest);
    return answer.runs[*answer.nearest].device_bytes -
           one.machine.available_bytes();
  };
  const int64_t alone = lack_of(search_plans(one));
  one.machine.host_bytes = int64_t{1} << 20;
  const PlanAnswer answer = search_plans(one);
  EXPECT_LE(lack_of(answer), alone);
  ASSERT_FALSE(answer.changes.empty());
  const PlannedChange& host = answer.changes.front();
  EXPECT_TRUE(host.change.starts_with("--host-memory ")) << host.change;
  EXPECT_LE(host.run.device_bytes, one.machine.available_bytes());
}

// As if the section was not there.
TEST_F(Plan, TakesAnEmptySectionAsNone) {
  PlanSearch one = search(int64_t{1} << 40);
  const auto runs_with = [&](const Names& overrides) {
    one.overrides = overrides;
    return search_plans(one).runs.size();
  };
  const size_t without = runs_with({});
  EXPECT_GT(without, 3U);
  EXPECT_EQ(runs_with({"parallel="}), without);
  EXPECT_EQ(runs_with({"parallel=null", "memory="}), without);
}

// Ranks of a configuration for other devices, and examples that cannot be
// divided among all of them.
TEST_F(Plan, SaysWhatOtherDevicesChange) {
  const auto output_with = [&](const char* devices, const Names& more) {
    Names words{
        "plan",
        (folder_ / "train.json").string(),
        devices,
        "--device=cpu",
        "--device-memory=1GiB",
        "parallel.shard=4"};
    words.insert(words.end(), more.begin(), more.end());
    return run_tessera(1, words).output;
  };
  const std::string refused = output_with("--devices=7", {"parallel.tensor=2"});
  for (const char* part :
       {"no layout can run on 7 devices",
        "a step has 32 examples",
        "parallel=null",
        "=shard 4, tensor 2",
        "sizes that would fit"}) {
    EXPECT_NE(refused.find(part), std::string::npos) << part << "\n" << refused;
  }
  const std::string changed = output_with("--devices=7", {});
  EXPECT_NE(
      changed.find("examples: 56 a step, not 32 as in the configuration"),
      std::string::npos)
      << changed;
  const std::string same = output_with("--devices=4", {});
  EXPECT_NE(same.find("run: "), std::string::npos) << same;
  EXPECT_EQ(same.find("examples:"), std::string::npos) << same;
}

// State that the configuration fixes on the host stays there, and the answer
// says that it need not.
TEST_F(Plan, SaysWhatAFixedPlacementCosts) {
  PlanSearch one = search(int64_t{1} << 40);
  one.machine.devices = 1;
  one.machine.device = c10::kCUDA;
  one.machine.rates.host_update = 1;
  one.overrides = {
      "placement.optimizer=host",
      "memory.host_bytes=1GiB",
      "memory.device_bytes=1GiB",
      "optimizer.overlap=off"};
  const PlanAnswer answer = search_plans(one);
  ASSERT_NE(answer.best_run(), nullptr);
  for (const PlannedRun& run : answer.runs) {
    EXPECT_EQ(run.stages.empty() ? 1 : run.host_bytes > 0 ? 1 : 0, 1);
  }
  ASSERT_TRUE(answer.lifted);
  EXPECT_EQ(answer.lifted->change, "placement.optimizer=auto");
  EXPECT_LT(answer.lifted->run.time.total(), answer.best_run()->time.total());
  EXPECT_EQ(answer.lifted->run.time.update, 0);
}

TEST_F(Plan, AddsAdapters) {
  std::filesystem::create_directory(folder_ / "model");
  std::filesystem::copy(
      folder_ / "gpt.json", folder_ / "model" / "config.json");
  const Names words{
      "plan",
      (folder_ / "train.json").string(),
      "--device=cpu",
      "--device-memory=1GiB",
      "--as-given",
      "model.config=null",
      "model.folder=" + (folder_ / "model").string()};
  const auto with = [&](const Names& more) {
    Names all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run_tessera(1, all);
  };
  const auto bytes = [&](const Names& more) {
    Names all = more;
    all.emplace_back("--json");
    return nlohmann::json::parse(with(all).output)
        .at("runs")
        .at(0)
        .at("device_bytes")
        .get<int64_t>();
  };
  const int64_t adapted = bytes({"--lora=4"});
  const auto json = nlohmann::json::parse(with({"--lora=4", "--json"}).output);
  EXPECT_NE(
      json.at("command").get<std::string>().find("model.lora.r=4"),
      std::string::npos)
      << json.at("command");
  EXPECT_NE(
      json.at("given_overrides").dump().find("model.lora.r=4"),
      std::string::npos);
  EXPECT_LT(adapted, bytes({}));
  EXPECT_LT(adapted, bytes({"--lora"})) << "of rank 16";
  // As the configuration would have it.
  const Names keys{"model.lora.r=4", "model.lora.target_modules=all-linear"};
  EXPECT_EQ(adapted, bytes(keys));
  EXPECT_NE(
      with({"--lora=4"})
          .output.find("model.lora.r=4 model.lora.alpha=8 "
                       "model.lora.target_modules=all-linear"),
      std::string::npos);
  // Without weights, which a run needs and a plan does not.
  const auto bare = run_tessera(
      1,
      {"plan",
       (folder_ / "train.json").string(),
       "--device=cpu",
       "--device-memory=1GiB",
       "--as-given",
       "--lora=4",
       "--json"});
  ASSERT_EQ(bare.exit_code, 0) << bare.output;
  EXPECT_LT(
      nlohmann::json::parse(bare.output)
          .at("runs")
          .at(0)
          .at("device_bytes")
          .get<int64_t>(),
      bytes({}));
  Names twice = keys;
  twice.emplace_back("--lora");
  EXPECT_NE(with(twice).output.find("leave out --lora"), std::string::npos);
  const auto none = with({"--lora=0"});
  EXPECT_NE(none.exit_code, 0);
  EXPECT_NE(none.output.find("--lora"), std::string::npos) << none.output;
}

// A job of this machine may use its memory; of another one's that is not known.
TEST_F(Plan, UsesTheMemoryOfThisMachine) {
  write_model(12);
  const Names words{
      "plan",
      (folder_ / "train.json").string(),
      "--device-memory=4608KiB",
      "--reserve=0",
      "--margin=0",
      "training.batch_size=1",
      "training.accumulate=4"};
  const auto here = run_tessera(1, words);
  EXPECT_EQ(here.exit_code, 0) << here.output;
  EXPECT_NE(here.output.find("of this machine"), std::string::npos)
      << here.output;
  Names elsewhere = words;
  elsewhere.emplace_back("--device=a100");
  const auto there = run_tessera(1, elsewhere);
  EXPECT_NE(there.exit_code, 0);
  EXPECT_NE(there.output.find("fits with --host-memory "), std::string::npos)
      << there.output;
}

// A model as a program has it gets the picks of its configuration, whose runs
// have layers that ranks may divide: other operators than plain ones.
TEST_F(Plan, OfAModuleIsThatOfItsConfiguration) {
  // A run's dropout follows training.seed, a program's need not.
  auto gpt = nlohmann::json::parse(std::ifstream(folder_ / "gpt.json"));
  for (const char* dropout : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) {
    gpt[dropout] = 0;
  }
  std::ofstream(folder_ / "gpt.json") << gpt;
  const auto config = tasks::read_training_config(folder_ / "train.json");
  World world(
      0,
      1,
      {.use_cuda = false},
      std::make_shared<runtime::SimulatedJob>(std::vector<int>{0}));
  ParallelRun parallel(world, config.parallel, /*micro_batches=*/2);
  const std::shared_ptr<zoo::Model> model = lazy([&] {
    return zoo::from_config(
        gpt, {.context = zoo::fresh_layer_context(parallel)});
  });
  zoo::ModelInput batch;
  at::Tensor counted; // as the batch, which is made outside of dry runs
  const PlannedModule training{
      .loss =
          [&](int64_t /*rows*/) {
            counted = at::empty(batch.input_ids.sizes(), at::kLong);
            return model->forward(batch).loss;
          },
      .batch_size = config.batch_size,
      .accumulate = config.trainer.accumulate,
      .clips_gradients = config.trainer.clip_grad_norm > 0,
      .prepare =
          [&](int64_t rows, int64_t /*layers*/) {
            batch = tasks::largest_batch(
                *model, rows, config.max_length, /*masks=*/false);
          }};
  std::set<std::string> found;
  int64_t full = 0;
  for (const double part : {1.0, 0.75, 0.5, 0.35}) {
    SCOPED_TRACE(part);
    PlanSearch one = search(
        full == 0 ? int64_t{1} << 40
                  : static_cast<int64_t>(part * static_cast<double>(full)));
    one.machine.devices = 1;
    one.machine.device = c10::kCUDA;
    one.machine.host_bytes = int64_t{1} << 30;
    one.machine.rates = planner::known_rates("a100");
    const PlanAnswer answer = search_plans(one);
    ASSERT_NE(answer.best_run(), nullptr);
    full = full == 0 ? answer.runs.front().device_bytes : full;
    const PlannedRun& best = *answer.best_run();
    ASSERT_FALSE(best.recomputed.attention);
    const ModulePlan module = plan(
        *model,
        config.engine,
        training,
        {.device_bytes = one.machine.device_bytes,
         .reserved_bytes = 0,
         .margin_bytes = 0,
         .host_bytes = one.machine.host_bytes});
    ASSERT_TRUE(module.best);
    const ModulePick& pick = *module.best_pick();
    EXPECT_EQ(pick.device_bytes, best.device_bytes);
    EXPECT_EQ(pick.host_bytes, best.host_bytes);
    EXPECT_EQ(pick.batch_size, best.batch_size);
    EXPECT_EQ(pick.accumulate, best.accumulate);
    EXPECT_EQ(pick.recomputed_layers, best.recomputed.layers);
    EXPECT_EQ(pick.options.recompute_operators, best.recomputed.operators);
    EXPECT_EQ(pick.step_seconds, best.time.total());
    // And the command says the same.
    const auto printed = nlohmann::json::parse(
        run_tessera(
            1,
            {"plan",
             (folder_ / "train.json").string(),
             "--devices=1",
             "--device=a100",
             formatted("--device-memory={}", one.machine.device_bytes),
             "--host-memory=1GiB",
             "--reserve=0",
             "--margin=0",
             "--json"})
            .output);
    const auto& line = printed.at("runs").at(printed.at("best").get<size_t>());
    EXPECT_EQ(line.at("device_bytes"), pick.device_bytes);
    EXPECT_EQ(line.at("host_bytes"), pick.host_bytes);
    EXPECT_EQ(line.at("overrides"), nlohmann::json(best.overrides));
    EXPECT_EQ(line.at("step_s"), pick.step_seconds);
    Names options; // those of wrap()
    std::copy_if(
        best.changed.begin(),
        best.changed.end(),
        std::back_inserter(options),
        [](const std::string& each) {
          return !each.starts_with("training.") && !each.starts_with("model.");
        });
    EXPECT_EQ(pick.changed, options);
    found.insert(
        best.recomputed.column() + " " + best.residency + " " + best.offloaded);
  }
  EXPECT_GT(found.size(), 2U);
}

TEST_F(Plan, SaysWhatIsWrong) {
  const auto output_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"plan", (folder_ / "train.json").string()};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run_tessera(1, words);
    EXPECT_NE(result.exit_code, 0);
    return result.output;
  };
  const auto expect_has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect_has(
      output_of({"--device=cpu", "--device-memory=1KiB"}),
      "nothing fits; the least is shard 1");
  expect_has(
      output_of({"--device=cpu", "--device-memory=1KiB", "--as-given"}),
      "leave out --as-given");
  expect_has(
      output_of(
          {"--device=cpu",
           "--device-memory=1GiB",
           "--as-given",
           "parallel.shard=2"}),
      "no layout can run on 1 device (--devices)");
  expect_has(
      output_of({"--device=tpu", "--device-memory=1GiB"}),
      "there are no rates of 'tpu'; known are a100");
  expect_has(
      output_of({"--device-memory=4GiB", "--rate=in_noed=3"}), "in_noed");
  expect_has(output_of({"--device-memory=1GiB"}), "--reserve");
  expect_has(output_of({"--device-memory=4GiB", "--margin=3GiB"}), "--margin");
  expect_has(output_of({}), "--device-memory is missing");
  // Before a search.
  const Names cpu{"--device=cpu", "--device-memory=1GiB"};
  const auto output_with = [&](const Names& more) {
    Names all = cpu;
    all.insert(all.end(), more.begin(), more.end());
    return output_of(all);
  };
  expect_has(
      output_with({"--write=" + folder_.path().string()}),
      "which is a folder; name a file in it");
  expect_has(
      output_with(
          {"--report=" + (folder_ / "train.json" / "plan.html").string()}),
      "nothing can be written in");
  expect_has(
      output_with(
          {"--host-memory=1GiB", "--nvme-memory=1GiB", "--nvme-path=nowhere"}),
      "--nvme-path is 'nowhere', which is not a folder");
  expect_has(output_with({"--margin=5"}), "write 5% for a part");
  expect_has(output_with({"--margin=105%"}), "from 0% to less than 100%");
  expect_has(output_of({"--memory-cap=1GiB"}), "--simulate-world");
  expect_has(output_of({"--device-memory=much"}), "--device-memory");
}

} // namespace tessera::tools::plan_test
