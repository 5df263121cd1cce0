// SPDX-License-Identifier: Apache-2.0
// A rank is killed while the ranks train: the job ends soon and says which.
#include "support/launched_job.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>

namespace tessera {

namespace {

using testing::is_gone_soon;
using testing::LaunchedJob;

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
        TESSERA_PROGRAM,
        TESSERA_PROGRAM,
        "launch",
        "--nproc",
        "2",
        "--",
        TESSERA_RANK_PROGRAM,
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
  EXPECT_TRUE(is_gone_soon(survivor));
}

// The other rank notices first, and ends first, with code 1.
TEST_P(KilledRank, GivesTheJobTheCodeOfTheRankThatFailedByItself) {
  const std::string rank = GetParam();
  LaunchedJob job([&] {
    ::execl(
        TESSERA_PROGRAM,
        TESSERA_PROGRAM,
        "launch",
        "--nproc",
        "2",
        "--",
        TESSERA_RANK_PROGRAM,
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

} // namespace tessera
