// SPDX-License-Identifier: Apache-2.0
// One rank of a job whose others are simulated takes the memory that its plan
// says, and no more than it may.
#include "tessera/planner/simulated_rank.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/tasks/plan_training.h"
#include "tessera/tasks/training_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::planner::simulated_rank_test {

namespace {

using nlohmann::json;

struct Case {
  const char* name;
  int ranks = 1;
  int rank = 0;
  std::vector<std::string> overrides = {};
  bool has_experts = false;
  const char* task = "language_model";
};

/// In overrides: the folder of another model, of twice the layers.
constexpr const char* kOther = "OTHER";

void PrintTo(const Case& subject, std::ostream* out) { // NOLINT: GoogleTest's
  *out << subject.name;
}

std::vector<Case> cases() {
  const auto pipeline = [](const char* name, int rank) {
    return Case{
        name,
        4,
        rank,
        {"parallel.shard=2", "parallel.pipeline=2", "training.accumulate=4"}};
  };
  return {
      {"zero1", 8, 3, {"sharding.zero_stage=1"}},
      {"zero2", 8, 3, {"sharding.zero_stage=2"}},
      {"zero3", 8, 3},
      {"recomputed", 8, 0, {"model.checkpoint_layers=4"}},
      {"accumulated",
       8,
       0,
       {"training.accumulate=3", "training.clip_grad_norm=1"}},
      {"bfloat16",
       8,
       0,
       {"precision.parameters=bfloat16",
        "precision.gradients=bfloat16",
        "precision.accumulate=float32"}},
      {"bfloat16_one_row",
       2,
       0,
       {"precision.parameters=bfloat16", "training.batch_size=1"}},
      {"documents", 2, 0, {"data.separate_documents=true"}},
      {"offloaded",
       4,
       1,
       {"placement.optimizer=host", "memory.host_bytes=64MiB"}},
      // Slots stay in use while gradients are written to files.
      {"gradients_in_files",
       4,
       1,
       {"placement.optimizer=nvme",
        "placement.gradients=nvme",
        "memory.nvme_path=OTHER",
        "memory.host_bytes=64MiB",
        "training.accumulate=2"}},
      {"tensor", 4, 1, {"parallel.shard=2", "parallel.tensor=2"}},
      {"sequence",
       4,
       1,
       {"parallel.shard=2", "parallel.tensor=2", "parallel.sequence=true"}},
      pipeline("first_stage", 0),
      pipeline("last_stage", 2),
      {"experts", 4, 0, {}, true},
      {"averaged", 4, 1, {"optimizer.ema_decay=0.99"}},
      {"averaged_on_host",
       4,
       1,
       {"optimizer.ema_decay=0.99",
        "placement.optimizer=host",
        "memory.host_bytes=64MiB"}},
      {"distilled", 4, 1, {"distill.model.folder=OTHER"}},
      {"distilled_in_a_budget",
       4,
       1,
       {"distill.model.folder=OTHER",
        "distill.hidden_weight=1",
        "distill.student_layers=[0]",
        "distill.teacher_layers=[0]",
        "memory.device_bytes=64MiB",
        "memory.activation_bytes=40MiB"}},
      {"preferred",
       4,
       1,
       {"preference.reference.folder=OTHER", "training.accumulate=2"},
       false,
       "preference"},
      {"preferred_packed",
       4,
       1,
       {"preference.reference.folder=OTHER", "data.packed=true"},
       false,
       "preference"},
      {"preferred_to_its_base",
       4,
       1,
       {"model.lora.r=4", "model.lora.target_modules=all-linear"},
       false,
       "preference"},
      {"judged_against_its_base",
       4,
       1,
       {"preference.loss=kto",
        "model.lora.r=4",
        "model.lora.target_modules=all-linear",
        "training.accumulate=2"},
       false,
       "preference"},
      {"rewarded", 4, 1, {"training.accumulate=2"}, false, "reward"},
      {"layers_left_out",
       4,
       1,
       {"model.layer_drop.theta=0.2", "model.layer_drop.gamma=10"}},
      {"tokens_left_out", 4, 1, {"model.token_drop.min_tokens=16"}},
  };
}

tasks::TrainingConfig config(
    const std::filesystem::path& folder,
    const Case& subject) {
  json model = {
      {"model_type", "gpt2"},
      {"vocab_size", 1000},
      {"n_positions", 128},
      {"n_embd", 128},
      {"n_layer", 4},
      {"n_head", 4}};
  if (subject.has_experts) {
    model = {
        {"model_type", "qwen3_moe"},
        {"vocab_size", 1000},
        {"hidden_size", 128},
        {"intermediate_size", 256},
        {"moe_intermediate_size", 64},
        {"num_hidden_layers", 4},
        {"num_attention_heads", 4},
        {"head_dim", 32},
        {"num_key_value_heads", 2},
        {"num_experts", 8},
        {"num_experts_per_tok", 2},
        {"norm_topk_prob", true},
        {"max_position_embeddings", 128}};
  }
  runtime::write_file_atomically(folder / "config.json", model.dump());
  model["n_layer"] = 8;
  std::filesystem::create_directory(folder / "other");
  runtime::write_file_atomically(
      folder / "other" / "config.json", model.dump());
  json source = {{"config", (folder / "config.json").string()}};
  if (subject.task == std::string("preference") ||
      subject.task == std::string("reward")) {
    source = {{"folder", folder.string()}};
  }
  source["max_length"] = 128;
  std::vector<std::string> overrides = subject.overrides;
  for (std::string& override : overrides) {
    const size_t place = override.find(kOther);
    if (place != std::string::npos) {
      override.replace(
          place, std::string(kOther).size(), (folder / "other").string());
    }
  }
  const json values = {
      {"task", subject.task},
      {"device", "cpu"},
      {"model", source},
      {"data", {{"train", (folder / "nowhere.bin").string()}}},
      {"optimizer", {{"lr", 1e-3}}},
      {"training", {{"clip_grad_norm", 0}, {"batch_size", 4}}},
      {"output", {{"folder", (folder / "run").string()}}}};
  runtime::write_file_atomically(folder / "train.json", values.dump());
  return tasks::read_training_config(folder / "train.json", overrides);
}

class SimulatedRank : public ::testing::TestWithParam<Case> {
 protected:
  const TemporaryFolder folder_;
};

int64_t sum(const TierBytes& bytes, MemoryTier tier) {
  return total_bytes(bytes[static_cast<size_t>(tier)]);
}

} // namespace

TEST_P(SimulatedRank, TakesWhatIsPlanned) {
  const Case& subject = GetParam();
  const tasks::TrainingConfig given = config(folder_.path(), subject);
  const int64_t before = runtime::cpu_bytes_live();
  const SimulatedRun run =
      tasks::simulate_training(given, subject.ranks, subject.rank, 2, {});
  std::printf(
      "%-12s measured %7.2f MB, planned %7.2f MB, of which activations %.2f MB\n",
      subject.name,
      static_cast<double>(run.peak_bytes) / 1e6,
      static_cast<double>(run.plan.peak_bytes) / 1e6,
      static_cast<double>(run.plan.peak.activations) / 1e6);
  // Experts get shares of tokens that are only nearly equal.
  EXPECT_NEAR(
      static_cast<double>(run.plan.peak_bytes) /
          static_cast<double>(run.peak_bytes),
      1,
      subject.has_experts ? 0.03 : 0.002);
  for (const MemoryTier tier : {MemoryTier::kDevice, MemoryTier::kHost}) {
    EXPECT_NEAR(
        static_cast<double>(sum(run.plan.planned, tier)),
        static_cast<double>(sum(run.measured, tier)),
        0.01 * static_cast<double>(sum(run.plan.planned, tier)))
        << name_of(tier);
  }
  ASSERT_EQ(run.steps.size(), 2U);
  for (const MeasuredStep& step : run.steps) {
    EXPECT_GT(step.seconds, step.collective_seconds);
    EXPECT_GT(step.collective_seconds, 0);
    const bool has_loss =
        given.parallel.sizes.pipeline == 1 || subject.rank != 0;
    ASSERT_EQ(step.loss.has_value(), has_loss);
    EXPECT_TRUE(!step.loss || std::isfinite(*step.loss));
  }
  // Neither a run folder nor a checkpoint; nothing stays.
  EXPECT_EQ(folder_.count(), 3U);
  EXPECT_NEAR(
      static_cast<double>(runtime::cpu_bytes_live() - before), 0, 64 << 10);
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    SimulatedRank,
    ::testing::ValuesIn(cases()),
    [](const auto& info) { return std::string(info.param.name); });

class SimulatedRankLimits : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
};

/// As many bytes as the run takes are enough, and fewer are not, whatever it is
/// that does not fit.
TEST_F(SimulatedRankLimits, KeepsToTheCap) {
  const tasks::TrainingConfig given = config(folder_.path(), {"zero3"});
  SimulationOptions settings;
  const SimulatedRun free = tasks::simulate_training(given, 2, 0, 2, settings);
  const int64_t engine = sum(free.plan.planned, MemoryTier::kDevice);
  // The batch and what earlier tests left, which count as well.
  constexpr int64_t kOthers = 1 << 20;
  settings.memory_cap = runtime::cpu_bytes_live() + free.peak_bytes + kOthers;
  EXPECT_EQ(
      tasks::simulate_training(given, 2, 0, 2, settings).peak_bytes,
      free.peak_bytes);
  settings.memory_cap = runtime::cpu_bytes_live() + free.peak_bytes * 9 / 10;
  expect_error(
      [&] { tasks::simulate_training(given, 2, 0, 2, settings); },
      {"the limit of", "model.checkpoint_layers", "optimizer state"});
  settings.memory_cap = runtime::cpu_bytes_live() + engine / 2;
  expect_error(
      [&] { tasks::simulate_training(given, 2, 0, 2, settings); },
      {"simulated rank 0 of 2 runs out of memory in wrap()",
       "under a cap of",
       "on the device",
       "planned for the engine"});
  // Nothing of it is left.
  EXPECT_EQ(tasks::simulate_training(given, 2, 0, 1, {}).steps.size(), 1U);
}

TEST_F(SimulatedRankLimits, RefusesWhatDependsOnOtherRanks) {
  expect_error(
      [&] {
        tasks::simulate_training(
            config(folder_.path(), {"context", 2, 0, {"parallel.context=2"}}),
            2,
            0,
            1,
            {});
      },
      {"parallel.context 2"});
}

} // namespace tessera::planner::simulated_rank_test
