// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/launch.h"
#include "support/paths.h"

#include "support/launched_job.h"
#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>

namespace tessera::runtime::launch_test {

namespace {

using tests::is_gone_soon;
using tests::LaunchedJob;

using std::chrono::milliseconds;

LaunchOptions shell(
    int nproc,
    const std::string& script,
    milliseconds grace = milliseconds(5000)) {
  LaunchOptions options;
  options.nproc = nproc;
  options.command = {"sh", "-c", script};
  options.grace = grace;
  return options;
}

LaunchedJob::Result run(const LaunchOptions& options) {
  LaunchedJob job([&] { return launch(options); });
  return job.wait();
}

/// The number printed after `label`.
pid_t number_after(const std::string& output, const std::string& label) {
  const auto at = output.find(label);
  return at == std::string::npos ? -1
                                 : static_cast<pid_t>(std::atoi(
                                       output.c_str() + at + label.size()));
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos)
      << "'" << part << "' is not in:\n"
      << text;
}

/// What a rank has of a variable, if the user has set `name`.
std::string waits_of(const char* name, const char* value) {
  LaunchedJob job([&] {
    ::unsetenv("OMP_WAIT_POLICY");
    ::unsetenv("GOMP_SPINCOUNT");
    ::setenv(name, value, 1);
    return launch(shell(1, "echo \"waits=$OMP_WAIT_POLICY.\""));
  });
  return job.wait().output;
}

// Ignores SIGTERM and so do the programs it runs.
const std::string kStubborn =
    "trap '' TERM; echo ready; while :; do sleep 0.1; done";

} // namespace

// Threads that spin take the processors of others.
TEST(Launch, ThreadsWaitPassivelyUnlessTheUserSays) {
  expect_contains(waits_of("UNRELATED", "1"), "waits=passive.");
  expect_contains(waits_of("OMP_WAIT_POLICY", "active"), "waits=active.");
  expect_contains(waits_of("GOMP_SPINCOUNT", "7"), "waits=.");
}

TEST(Launch, GivesEachRankTorchrunsEnvironment) {
  ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  ::unsetenv("OMP_NUM_THREADS");
  const auto result = run(shell(
      2,
      "echo rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of "
      "$LOCAL_WORLD_SIZE, group $GROUP_RANK; echo at $MASTER_ADDR:$MASTER_PORT;"
      "echo agent ${TORCHELASTIC_USE_AGENT_STORE-none}; "
      "test $OMP_NUM_THREADS -ge 1 && test $MASTER_PORT -gt 0"));
  ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  EXPECT_EQ(result.exit_code, 0);
  expect_contains(
      result.output, "[rank 0] rank 0 of 2, local 0 of 2, group 0\n");
  expect_contains(
      result.output, "[rank 1] rank 1 of 2, local 1 of 2, group 0\n");
  expect_contains(result.output, "[rank 0] at 127.0.0.1:");
  expect_contains(result.output, "[rank 1] agent none\n");
}

TEST(Launch, KeepsAnOmpNumThreadsThatIsSet) {
  ::setenv("OMP_NUM_THREADS", "7", 1);
  const auto result = run(shell(1, "test $OMP_NUM_THREADS = 7"));
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(result.exit_code, 0);
}

TEST(Launch, ReturnsTheCodeOfTheFirstRankThatFails) {
  const auto result =
      run(shell(3, "test $RANK = 1 && exit 3; exec sleep 1000"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_LT(result.seconds, 4);
  expect_contains(result.output, "tessera: error: rank 1 (pid ");
  expect_contains(
      result.output, ") exited with code 3; ending the other ranks\n");
}

TEST(Launch, ReturnsTheCodeOfTheRankThatFailedByItself) {
  // Rank 1 notices first, and ends first.
  const auto result = run(shell(
      2,
      "test $RANK = 1 && { " + tests::program("blame_peer_program") +
          "; exit 1; }; sleep 0.5; exit 7"));
  EXPECT_EQ(result.exit_code, 7);
  expect_contains(
      result.output,
      ") exited with code 1 because of another rank; waiting for that rank\n");
  expect_contains(result.output, ") exited with code 7\n");
}

TEST(Launch, ReturnsTheFirstCodeWhenNoRankFailedByItself) {
  const auto result = run(shell(
      2,
      "test $RANK = 1 && { " + tests::program("blame_peer_program") +
          "; exit 3; }; exec sleep 1000"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_LT(result.seconds, 8); // three seconds of waiting for the other one
  expect_contains(
      result.output, "no other rank has failed; ending the remaining ranks\n");
}

TEST(Launch, TellsARankThatEndedEarlyFromOneThatFailed) {
  const auto result = run(shell(
      2,
      "test $RANK = 1 && exit 0; sleep 0.5; " +
          tests::program("blame_peer_program") + "; exit 4"));
  EXPECT_EQ(result.exit_code, 4);
  expect_contains(
      result.output,
      ") exited with code 4 because of another rank; rank 1 (pid ");
  expect_contains(
      result.output,
      ") had ended early, with code 0: all ranks must run the same number of "
      "steps\n");
}

TEST(Launch, PrefixesLinesOfBothStreamsAndPartialOnes) {
  const auto result = run(shell(
      2,
      "echo out; echo err >&2; printf 'part of'; sleep 0.2; echo ' a line'; "
      "printf 'no newline'"));
  for (const char* rank : {"[rank 0] ", "[rank 1] "}) {
    for (const char* line : {"out\n", "err\n", "part of a line\n"}) {
      expect_contains(result.output, std::string(rank) + line);
    }
    expect_contains(result.output, std::string(rank) + "no newline\n");
  }
}

TEST(Launch, LeavesLinesBareWhenAsked) {
  auto options = shell(1, "echo out");
  options.prefix = false;
  EXPECT_EQ(run(options).output, "out\n");
}

TEST(Launch, LosesNoOutputOfRanksThatEndAtOnce) {
  constexpr int kLines = 20000;
  const auto result =
      run(shell(4, "seq -f 'a line of rank %g' " + std::to_string(kLines)));
  EXPECT_EQ(result.exit_code, 0);
  std::istringstream lines(result.output);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    ASSERT_EQ(line.rfind("[rank ", 0), 0u) << line;
  }
  EXPECT_EQ(count, 4 * kLines);
}

TEST(Launch, WaitsForTheOutputOfWhatARankLeavesBehind) {
  const auto result = run(shell(1, "(sleep 0.3; echo late) &"));
  EXPECT_EQ(result.exit_code, 0);
  expect_contains(result.output, "[rank 0] late\n");
}

TEST(Launch, EndsRanksThatIgnoreSigtermWhenOneIsKilled) {
  LaunchedJob job([] {
    return launch(shell(
        3,
        "test $RANK = 1 || { " + kStubborn + "; }; echo victim $$; sleep 1000",
        milliseconds(500)));
  });
  ASSERT_TRUE(job.wait_for("ready", 2) && job.wait_for("victim"));
  const pid_t victim = number_after(job.output(), "victim ");
  ::kill(victim, SIGKILL);
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_LT(result.seconds, 5);
  expect_contains(
      result.output,
      "rank 1 (pid " + std::to_string(victim) +
          ") was killed by signal 9 (SIGKILL); ending the other ranks\n");
  expect_contains(result.output, "did not end within 500 ms; killing it\n");
}

TEST(Launch, EndsWhatRanksHaveStartedWhenOneFails) {
  const auto result = run(shell(
      2, "sleep 1000 & echo child $RANK $!; sleep 0.3; exit $((RANK * 5))"));
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_TRUE(is_gone_soon(number_after(result.output, "child 0 ")));
  EXPECT_TRUE(is_gone_soon(number_after(result.output, "child 1 ")));
}

TEST(Launch, EndsWhatRanksLeaveBehindWhenAllSucceed) {
  const auto result = run(shell(1, "sleep 1000 & echo child $!"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(is_gone_soon(number_after(result.output, "child ")));
}

TEST(Launch, RanksDieWithALauncherThatIsKilled) {
  LaunchedJob job(
      [] { return launch(shell(2, "echo pid $RANK $$; exec sleep 1000")); });
  ASSERT_TRUE(job.wait_for("pid 0 ") && job.wait_for("pid 1 "));
  job.signal(SIGKILL);
  EXPECT_TRUE(is_gone_soon(number_after(job.output(), "pid 0 ")));
  EXPECT_TRUE(is_gone_soon(number_after(job.output(), "pid 1 ")));
}

TEST(Launch, NamesTheErrnoOfAProgramThatCannotStart) {
  LaunchOptions options;
  options.nproc = 2;
  options.command = {"/nowhere/to/be/found"};
  auto result = run(options);
  EXPECT_EQ(result.exit_code, 127);
  expect_contains(
      result.output,
      "cannot start '/nowhere/to/be/found': No such file or directory");
  options.command = {"/etc/passwd"};
  result = run(options);
  EXPECT_EQ(result.exit_code, 127);
  expect_contains(result.output, "'/etc/passwd': Permission denied");
}

TEST(Launch, DoesNotHoldRanksWhenTheReaderStalls) {
  // More than the pipe and the launcher's queue take, and nobody reads.
  LaunchedJob job([] {
    return launch(shell(
        2,
        "echo pid $RANK $$; test $RANK = 0 && yes | head -c 4000000; "
        "sleep $((1 - RANK))000; sleep 1; kill -9 $$"));
  });
  ASSERT_TRUE(job.wait_for("pid 0 "));
  EXPECT_TRUE(is_gone_soon(number_after(job.output(), "pid 0 ")));
  EXPECT_EQ(job.wait().exit_code, 128 + SIGKILL);
}

TEST(Launch, EndsWhenNobodyReadsTheOutput) {
  LaunchedJob job(
      [] { return launch(shell(2, "while echo more; do sleep 0.05; done")); });
  ASSERT_TRUE(job.wait_for("[rank 1] more"));
  job.close_output();
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGPIPE);
  EXPECT_LT(result.seconds, 4);
}

TEST(Launch, RefusesWrongOptions) {
  EXPECT_THROW(launch(shell(0, "true")), Error);
  EXPECT_THROW(launch(shell(1, "true", milliseconds(-1))), Error);
  LaunchOptions options;
  EXPECT_THROW(launch(options), Error);
}

} // namespace tessera::runtime::launch_test
