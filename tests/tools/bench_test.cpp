// SPDX-License-Identifier: Apache-2.0
// `tessera bench`: what it prints, and what it makes of it.
#include "bench/prediction.h"
#include "support/launched_job.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
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
       {"host memory, GB/s", "NUMA node", "triad", "disk of '", "13.00 B"}) {
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

} // namespace tessera::bench_test
