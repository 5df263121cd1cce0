// SPDX-License-Identifier: Apache-2.0
// `tessera bench`: what it prints, and what it makes of it.
#include "bench/comm.h"
#include "bench/prediction.h"
#include "support/launched_job.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/planner/measured_rates.h"
#include "tessera/runtime/kernels/bfloat16_product.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace tessera::bench_test {

using namespace tools;

namespace {

using tests::LaunchedJob;

LaunchedJob::Result run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {tests::program("tessera"), "bench"});
  LaunchedJob job([&arguments] {
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    ::execv(argv.front(), argv.data());
    return 127;
  });
  return job.wait();
}

/// Small and short: what it finds is not looked at.
std::vector<std::string> quick(const std::string& folder) {
  return {
      "--seconds",
      "0.6",
      "--array-mib",
      "2",
      "--file-mib",
      "8",
      "--folder",
      folder};
}

} // namespace

TEST(Prediction, DividesBytesByBandwidths) {
  Bandwidths bandwidths;
  bandwidths.host_update = 56e9;
  bandwidths.device_to_host = 8e9;
  bandwidths.host_to_device = 16e9;
  bandwidths.disk_read = 6e9;
  bandwidths.disk_write = 3e9;
  BytesPerParameter bytes;
  bytes.gradient = 4;
  bytes.weight = 2;
  const auto step = predict_step(2e9, bytes, bandwidths);
  EXPECT_DOUBLE_EQ(step.update, 1.0); // 2e9 x 28 / 56e9
  EXPECT_DOUBLE_EQ(step.gradients_to_host, 1.0);
  EXPECT_DOUBLE_EQ(step.weights_to_device, 0.25);
  EXPECT_DOUBLE_EQ(step.state_from_disk, 4.0); // 2e9 x 12 / 6e9
  EXPECT_DOUBLE_EQ(step.state_to_disk, 8.0);
  EXPECT_DOUBLE_EQ(step.serial(), 2.25);
  EXPECT_DOUBLE_EQ(step.overlapped(), 1.0);
  EXPECT_DOUBLE_EQ(step.overlapped_with_disk(), 12.0);
}

TEST(Prediction, SplitsUpdatesBetweenCpuAndDevice) {
  Bandwidths bandwidths;
  bandwidths.host_update = 56e9;
  const auto without = predict_step(2e9, {}, bandwidths);
  EXPECT_EQ(without.ratio, 1);
  EXPECT_EQ(without.split, 0);
  bandwidths.device_to_host = 20e9;
  bandwidths.host_to_device = 20e9;
  const auto step = predict_step(2e9, {}, bandwidths);
  // The CPU's part takes as long as both parts' transfers: r x 28 / 56 =
  // ((1 - r) x 12 + r x 4) / 20.
  EXPECT_NEAR(step.ratio, 0.6 / 0.9, 1e-12);
  EXPECT_NEAR(step.split, step.ratio * step.update, 1e-12);
  EXPECT_LT(step.split, step.overlapped());
}

TEST(Prediction, WhatIsNotThereTakesNoTime) {
  Bandwidths bandwidths;
  bandwidths.host_update = 28e9;
  const auto step = predict_step(1e9, {}, bandwidths);
  EXPECT_DOUBLE_EQ(step.serial(), 1.0);
  EXPECT_DOUBLE_EQ(step.overlapped_with_disk(), 1.0);
}

TEST(Bench, JsonHoldsTheBandwidthsThatItsPredictionsAreMadeOf) {
  const TemporaryFolder folder;
  auto arguments = quick(folder.path().string());
  arguments.insert(
      arguments.end(),
      {"--json", "--parameters", "1e9", "--weight-bytes", "4"});
  const auto result = run(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto json = nlohmann::json::parse(result.output);

  Bandwidths bandwidths;
  ASSERT_FALSE(json["numa_nodes"].empty());
  for (const auto& node : json["numa_nodes"]) {
    EXPECT_GT(node["cores"], 0);
    double best = 0;
    int threads = 0;
    for (const auto& row : node["bandwidth"]) {
      EXPECT_GT(row["threads"], threads);
      threads = row["threads"];
      for (const char* kind : {"read", "write", "triad", "update"}) {
        EXPECT_GT(row[kind], 0) << kind;
      }
      best = std::max(best, row["update"].get<double>());
    }
    EXPECT_EQ(threads, node["cores"]);
    bandwidths.host_update += best;
  }
  const auto& disk = json["disk"];
  EXPECT_EQ(disk["file_bytes"], 8 << 20);
  EXPECT_EQ(disk["direct"].get<bool>(), disk["note"] == "");
  bandwidths.disk_read = disk["read"].get<double>();
  bandwidths.disk_write = disk["write"].get<double>();
  const auto& cpu = json["cpu_operators"];
  EXPECT_GT(cpu["threads"], 0);
  for (const char* kind :
       {"products_32bit", "products_16bit", "attention_16bit", "elementwise"}) {
    EXPECT_GT(cpu[kind], 0) << kind;
  }
  const planner::DeviceRates rates =
      planner::measured_rates(json, at::kCPU, planner::known_rates("cpu"));
  EXPECT_EQ(rates.flops_32bit, cpu["products_32bit"]);
  EXPECT_EQ(rates.flops_16bit, cpu["products_16bit"]);
  EXPECT_EQ(rates.attention_16bit, cpu["attention_16bit"]);
  EXPECT_EQ(cpu.contains("products_rounded"), runtime::has_bfloat16_products());
  if (runtime::has_bfloat16_products()) {
    EXPECT_GT(cpu["products_rounded"], 0);
    EXPECT_NE(cpu["products_rounded"], cpu["products_32bit"]);
  }
  EXPECT_EQ(rates.flops_rounded, cpu.value("products_rounded", 0.0));
  EXPECT_EQ(rates.device_memory, cpu["elementwise"]);
  // The CPU's are not those of a card.
  EXPECT_EQ(
      planner::measured_rates(json, at::kCUDA, planner::known_rates("a100"))
          .flops_32bit,
      planner::known_rates("a100").flops_32bit);
  for (const auto& device : json["devices"]) {
    EXPECT_GT(device["host_to_device"], 0);
    EXPECT_GT(device["device_to_host"], 0);
  }

  ASSERT_EQ(json["predictions"].size(), 1U);
  const auto& prediction = json["predictions"][0];
  const auto expected = predict_step(1e9, {.weight = 4}, bandwidths);
  EXPECT_DOUBLE_EQ(prediction["update_s"], expected.update);
  EXPECT_DOUBLE_EQ(prediction["state_from_disk_s"], expected.state_from_disk);
  EXPECT_DOUBLE_EQ(prediction["state_to_disk_s"], expected.state_to_disk);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Bench, PrintsTables) {
  const TemporaryFolder folder;
  const auto result = run(quick(folder.path().string()));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* expected :
       {"host memory, GB/s",
        "NUMA node",
        "triad",
        "products of float32",
        "disk of '",
        "13.00 B"}) {
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << result.output;
  }
}

TEST(Bench, SaysWhichNumbersItTakes) {
  const auto result = run({"--parameters", "0"});
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_NE(
      result.output.find("--parameters: '0' is not a number greater than 0"),
      std::string::npos)
      << result.output;
  EXPECT_LT(result.output.size(), 200U); // no limits of 309 digits
}

TEST(Bench, NamesAFolderThatIsNotThere) {
  const auto result = run(quick("/nowhere/at/all"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.output.find("/nowhere/at/all"), std::string::npos)
      << result.output;
}

TEST(BenchComm, BusBandwidthIsNcclTests) {
  EXPECT_EQ(bus_factor(CommKind::kAllReduce, 4), 1.5);
  EXPECT_EQ(bus_factor(CommKind::kAllGather, 4), 0.75);
  EXPECT_EQ(bus_factor(CommKind::kReduceScatter, 8), 0.875);
  EXPECT_EQ(bus_factor(CommKind::kAllToAll, 2), 0.5);
  EXPECT_EQ(bus_factor(CommKind::kBroadcast, 4), 1);
  EXPECT_EQ(bus_factor(CommKind::kSendReceive, 4), 1);
  CommResult result{CommKind::kAllReduce, "gloo", at::kFloat, 1000, 0.5, 0};
  EXPECT_EQ(result.algorithm_bandwidth(), 2000);
  EXPECT_EQ(result.bus_bandwidth(2), 2000);
}

TEST(BenchComm, ChecksEveryCollectiveOfAJobAndFeedsThePlan) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "comm.json";
  const auto done = tests::run_tessera(
      3,
      {"bench",
       "comm",
       "--cpu",
       "--output",
       path.string(),
       "--transport",
       "shm,gloo",
       "--dtype",
       "float32,bfloat16",
       "--min-bytes",
       "1KiB",
       "--max-bytes",
       "64KiB",
       "--factor",
       "64",
       "--iterations",
       "2",
       "--warmup",
       "1"});
  ASSERT_EQ(done.exit_code, 0) << done.output;
  const auto json = tests::read_json(path);
  const auto& comm = json.at("comm");
  EXPECT_EQ(comm.at("ranks"), 3);
  EXPECT_EQ(comm.at("nodes"), 1);
  ASSERT_EQ(comm.at("results").size(), 2U * 6 * 2 * 2);
  for (const auto& result : comm.at("results")) {
    EXPECT_EQ(result.at("wrong"), 0);
    EXPECT_GT(result.at("busbw"), 0);
    EXPECT_LE(result.at("bytes"), 65536);
  }
  const planner::DeviceRates rates =
      planner::measured_rates(json, at::kCPU, planner::known_rates("cpu"));
  EXPECT_NE(rates.in_node, planner::known_rates("cpu").in_node);
  EXPECT_EQ(rates.between_nodes, planner::known_rates("cpu").between_nodes);
}

TEST(Bench, OperatorsOfTrainingReplaceRatesOfTheCpu) {
  const TemporaryFolder folder;
  auto arguments = quick(folder.path().string());
  arguments.insert(arguments.end(), {"--json", "--no-disk", "--training=64"});
  const auto result = run(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto json = nlohmann::json::parse(result.output);
  const auto& training = json.at("training");
  // Each in both types, forward and backward.
  std::set<std::string> found;
  for (const auto& row : training.at("operators")) {
    EXPECT_GT(row.at("work"), 0) << row;
    EXPECT_GT(row.at("seconds"), 0) << row;
    found.insert(
        row.at("name").get<std::string>() + " " +
        row.at("dtype").get<std::string>() +
        (row.at("rounded").get<bool>() ? " rounded" : "") +
        (row.at("backward").get<bool>() ? " backward" : ""));
  }
  for (const char* name :
       {"aten::mm Float",
        "aten::mm BFloat16 backward",
        "aten::addmm Float",
        "aten::gelu Float",
        "aten::gelu_backward BFloat16 backward",
        "tessera::gated_activation BFloat16",
        "aten::_softmax Float",
        "tessera::pattern_attention BFloat16",
        "tessera::pattern_attention_backward Float backward"}) {
    EXPECT_TRUE(found.contains(name)) << name;
  }
  for (const char* name :
       {"aten::mm Float rounded",
        "aten::addmm Float rounded",
        "aten::mm Float rounded backward"}) {
    EXPECT_EQ(found.contains(name), runtime::has_bfloat16_products()) << name;
  }
  EXPECT_FALSE(found.contains("aten::gelu Float rounded"));
  const planner::DeviceRates rates =
      planner::measured_rates(json, at::kCPU, planner::known_rates("cpu"));
  EXPECT_EQ(rates.device_memory, training.at("others"));
  ASSERT_NE(rates.operators, nullptr);
  EXPECT_EQ(rates.operators->kernels(), training.at("kernels"));
  const planner::DeviceRates card =
      planner::measured_rates(json, at::kCUDA, planner::known_rates("a100"));
  EXPECT_EQ(card.operators, nullptr);
  EXPECT_EQ(card.device_memory, planner::known_rates("a100").device_memory);
}

TEST(BenchComm, BetweenNodesALinkIsSharedByTheDevicesOfANode) {
  const nlohmann::json json{
      {"comm",
       {{"ranks", 16},
        {"nodes", 2},
        {"results",
         {{{"collective", "all_gather"}, {"busbw", 160e9}},
          {{"collective", "all_gather"}, {"busbw", 80e9}},
          {{"collective", "reduce_scatter"}, {"busbw", 240e9}},
          {{"collective", "broadcast"}, {"busbw", 1e9}}}}}}};
  const planner::DeviceRates rates =
      planner::measured_rates(json, at::kCUDA, planner::known_rates("a100"));
  EXPECT_EQ(rates.between_nodes, 20e9);
  EXPECT_EQ(rates.in_node, planner::known_rates("a100").in_node);
}

} // namespace tessera::bench_test
