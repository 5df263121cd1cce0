// SPDX-License-Identifier: Apache-2.0
// A rank is killed while the ranks train: the job ends soon and says which.
#include "support/launched_job.h"
#include "support/paths.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>

namespace tessera::killed_rank_test {

namespace {

using tests::is_gone_soon;
using tests::LaunchedJob;

pid_t process_of(const std::string& rank, const std::string& output) {
  const std::string label = "[rank " + rank + "] process ";
  return static_cast<pid_t>(
      std::atoi(output.c_str() + output.find(label) + label.size()));
}

} // namespace

// Rank 0 is the one that holds the store.
class KilledRank : public ::testing::TestWithParam<const char*> {};

TEST_P(KilledRank, EndsTheJobWithinTenSeconds) {
  const std::string rank = GetParam();
  LaunchedJob job([] {
    ::execl(
        tests::program("tessera").c_str(),
        tests::program("tessera").c_str(),
        "launch",
        "--nproc",
        "2",
        "--",
        tests::program("all_reduce_loop").c_str(),
        nullptr);
    return 1;
  });
  ASSERT_TRUE(
      job.wait_for("[rank 0] step 50\n") && job.wait_for("[rank 1] step 50\n"))
      << job.output();
  const pid_t victim = process_of(rank, job.output());
  const pid_t survivor = process_of(rank == "0" ? "1" : "0", job.output());
  ::kill(victim, SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  const auto result = job.wait();
  EXPECT_LT(
      std::chrono::steady_clock::now() - killed, std::chrono::seconds(10));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  const std::string message = "tessera: error: rank " + rank + " (pid " +
                              std::to_string(victim) +
                              ") was killed by signal 9 (SIGKILL)";
  EXPECT_NE(result.output.find(message), std::string::npos) << result.output;
  // c10d's warnings about the lost store are stack traces.
  EXPECT_EQ(result.output.find("frame #"), std::string::npos) << result.output;
  EXPECT_TRUE(is_gone_soon(survivor));
}

// The other rank notices first, and ends first, with code 1.
TEST_P(KilledRank, GivesTheJobTheCodeOfTheRankThatFailedByItself) {
  const std::string rank = GetParam();
  LaunchedJob job([&] {
    ::execl(
        tests::program("tessera").c_str(),
        tests::program("tessera").c_str(),
        "launch",
        "--nproc",
        "2",
        "--",
        tests::program("all_reduce_loop").c_str(),
        rank.c_str(),
        nullptr);
    return 1;
  });
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 5) << result.output;
  EXPECT_NE(
      result.output.find("exited with code 1 because of another rank"),
      std::string::npos)
      << result.output;
}

INSTANTIATE_TEST_SUITE_P(Ranks, KilledRank, ::testing::Values("0", "1"));

} // namespace tessera::killed_rank_test
