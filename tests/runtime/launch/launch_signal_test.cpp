// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/launch.h"

#include "support/launched_job.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>

namespace tessera::runtime::launch_signal_test {

namespace {

using tests::LaunchedJob;

// Not sh: dash loses a signal that comes while it starts a process.
LaunchOptions shell(const std::string& script) {
  LaunchOptions options;
  options.nproc = 2;
  options.command = {"bash", "-c", script};
  options.grace = std::chrono::milliseconds(1000);
  return options;
}

/// Waits for a signal, says so, and ends with the given code.
std::string trapping(const std::string& names, int code) {
  return "trap 'echo caught; exit " + std::to_string(code) + "' " + names +
         "; echo ready; while :; do sleep 0.1; done";
}

} // namespace

class ForwardedSignal : public ::testing::TestWithParam<int> {};

TEST_P(ForwardedSignal, ReachesEveryRank) {
  LaunchedJob job([] { return launch(shell(trapping("INT TERM HUP", 7))); });
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(GetParam());
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(job.count("caught"), 2) << result.output;
}

TEST_P(ForwardedSignal, IsTheExitCodeOfRanksThatDoNotHandleIt) {
  LaunchedJob job([] { return launch(shell("echo ready; exec sleep 1000")); });
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(GetParam());
  EXPECT_EQ(job.wait().exit_code, 128 + GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Launch,
    ForwardedSignal,
    ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST(LaunchSignal, LeavesRanksTheTimeTheyNeed) {
  // Twice the grace time, which counts from the second signal only.
  LaunchedJob job([] {
    return launch(
        shell("trap 'sleep 2; echo saved; exit 0' TERM; echo ready; "
              "while :; do sleep 0.1; done"));
  });
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait().exit_code, 0);
  EXPECT_EQ(job.count("saved"), 2) << job.output();
}

TEST(LaunchSignal, EndsStubbornRanksAtTheSecond) {
  LaunchedJob job([] {
    return launch(
        shell("trap '' INT TERM; echo ready; while :; do sleep 0.1; done"));
  });
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGINT);
  ASSERT_TRUE(job.wait_for("forwarding signal 2 (SIGINT) to all ranks"));
  job.signal(SIGINT);
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_LT(result.seconds, 5);
}

TEST(LaunchSignal, StaysIgnoredWhenItWasIgnored) {
  // As under nohup.
  LaunchedJob job([] {
    ::signal(SIGHUP, SIG_IGN);
    return launch(shell("echo ready; sleep 0.5; echo done"));
  });
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGHUP);
  EXPECT_EQ(job.wait().exit_code, 0);
  EXPECT_EQ(job.count("done"), 2) << job.output();
}

TEST(LaunchSignal, MaskAndHandlersAreAsBeforeInRankAndCaller) {
  LaunchedJob job([] {
    // What a parent leaves that does not wait for its children.
    ::signal(SIGCHLD, SIG_IGN);
    const int code = launch(shell("grep -E 'Sig(Blk|Ign)' /proc/self/status"));
    struct sigaction action {};
    ::sigaction(SIGCHLD, nullptr, &action);
    sigset_t mask;
    ::sigprocmask(SIG_SETMASK, nullptr, &mask);
    const bool same = action.sa_handler == SIG_IGN && sigisemptyset(&mask) == 1;
    return same ? code : 1;
  });
  EXPECT_EQ(job.wait().exit_code, 0);
  EXPECT_EQ(job.count("SigBlk:\t0000000000000000"), 2) << job.output();
}

} // namespace tessera::runtime::launch_signal_test
