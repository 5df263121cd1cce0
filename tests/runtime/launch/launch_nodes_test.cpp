// SPDX-License-Identifier: Apache-2.0
// Several launchers on this machine stand for nodes.
#include "tessera/runtime/launch/launch.h"

#include "support/launched_job.h"
#include "support/paths.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/launch/node_channel.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace tessera::runtime::launch_nodes_test {

namespace {

using std::chrono::milliseconds;
using tests::is_gone_soon;
using tests::LaunchedJob;

/// A port that no process listens on.
int free_port() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  socklen_t bytes = sizeof(address);
  EXPECT_EQ(::bind(socket.get(), plain, bytes), 0);
  EXPECT_EQ(::getsockname(socket.get(), plain, &bytes), 0);
  return ntohs(address.sin_port);
}

/// Options of node 0 of a job; `rank` places them on another one.
LaunchOptions node_options(int nodes, int nproc, const std::string& script) {
  LaunchOptions options;
  options.command = {"bash", "-c", script};
  options.nproc = nproc;
  options.grace = milliseconds(1000);
  options.nodes.count = nodes;
  options.nodes.master_addr = "127.0.0.1";
  options.nodes.master_port = free_port();
  options.nodes.timeout = milliseconds(60000);
  return options;
}

/// What the `tessera` program does with an error.
int launch_and_report(const LaunchOptions& options) {
  try {
    return launch(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "tessera: error: %s\n", error.what());
    return 1;
  }
}

std::unique_ptr<LaunchedJob> start_node(LaunchOptions options, int rank) {
  options.nodes.rank = rank;
  return std::make_unique<LaunchedJob>(
      [options] { return launch_and_report(options); });
}

using Nodes = std::vector<std::unique_ptr<LaunchedJob>>;

Nodes start_nodes(const LaunchOptions& options) {
  Nodes nodes;
  for (int rank = 0; rank < options.nodes.count; ++rank) {
    nodes.push_back(start_node(options, rank));
  }
  return nodes;
}

std::vector<LaunchedJob::Result> wait_for_all(Nodes& nodes) {
  std::vector<LaunchedJob::Result> results;
  for (const auto& node : nodes) {
    results.push_back(node->wait());
  }
  return results;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos)
      << "'" << part << "' is not in:\n"
      << text;
}

std::string last_line(const std::string& output) {
  const auto end = output.find_last_not_of('\n');
  const auto begin = output.rfind('\n', end);
  return output.substr(begin + 1, end - begin);
}

/// All launchers end with this code and a last line with these parts.
void expect_failure(
    const std::vector<LaunchedJob::Result>& results,
    int exit_code,
    const std::vector<std::string>& parts) {
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, exit_code) << result.output;
    for (const std::string& part : parts) {
      expect_contains(last_line(result.output), part);
    }
  }
}

pid_t pid_of(const LaunchedJob& job, int rank) {
  const std::string label = "pid of " + std::to_string(rank) + " is ";
  const auto at = job.output().find(label);
  return at == std::string::npos
             ? -1
             : static_cast<pid_t>(
                   std::atoi(job.output().c_str() + at + label.size()));
}

const std::string kSleep = "echo pid of $RANK is $$; exec sleep 1000";

} // namespace

TEST(LaunchNodes, GivesEachRankTorchrunsEnvironment) {
  Nodes nodes = start_nodes(node_options(
      2,
      2,
      "echo rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of "
      "$LOCAL_WORLD_SIZE, group $GROUP_RANK at $MASTER_ADDR:$MASTER_PORT"));
  const auto results = wait_for_all(nodes);
  const auto port =
      results[0].output.substr(results[0].output.find("127.0.0.1:"), 15);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank / 2)];
    EXPECT_EQ(result.exit_code, 0);
    const std::string number = std::to_string(rank);
    expect_contains(
        result.output,
        "[rank " + number + "] rank " + number + " of 4, local " +
            std::to_string(rank % 2) + " of 2, group " +
            std::to_string(rank / 2) + " at " + port);
  }
}

TEST(LaunchNodes, AFailureEndsThemAllAndIsNamedLast) {
  Nodes nodes = start_nodes(node_options(
      3, 2, "test $RANK = 3 && { sleep 0.3; exit 7; }; exec sleep 1000"));
  const auto results = wait_for_all(nodes);
  expect_failure(
      results,
      7,
      {"tessera: error: the job has failed: rank 3 (pid ",
       " on node 1, " + this_host() + ") exited with code 7"});
  for (const auto& result : results) {
    EXPECT_LT(result.seconds, 10);
  }
}

TEST(LaunchNodes, AKilledRankEndsThemAll) {
  Nodes nodes = start_nodes(node_options(2, 2, kSleep));
  ASSERT_TRUE(
      nodes[0]->wait_for("pid of", 2) && nodes[1]->wait_for("pid of", 2));
  const pid_t victim = pid_of(*nodes[1], 3);
  ::kill(victim, SIGKILL);
  expect_failure(
      wait_for_all(nodes),
      128 + SIGKILL,
      {"rank 3 (pid " + std::to_string(victim) + " on node 1",
       "was killed by signal 9 (SIGKILL)"});
  EXPECT_TRUE(is_gone_soon(pid_of(*nodes[0], 0)));
}

// Rank 0 notices first, and ends first.
TEST(LaunchNodes, ReturnTheCodeOfTheRankThatFailedByItself) {
  Nodes nodes = start_nodes(node_options(
      2,
      1,
      "test $RANK = 0 && { " + tests::program("blame_peer_program") +
          "; exit 1; }; sleep 1; exit 5"));
  const auto results = wait_for_all(nodes);
  expect_failure(results, 5, {"rank 1 (pid ", "exited with code 5"});
  expect_contains(results[1].output, "because of another rank; waiting");
}

class KilledLauncher : public ::testing::TestWithParam<int> {};

TEST_P(KilledLauncher, EndsTheOthers) {
  const int victim = GetParam();
  Nodes nodes = start_nodes(node_options(3, 1, kSleep));
  for (const auto& node : nodes) {
    ASSERT_TRUE(node->wait_for("pid of"));
  }
  nodes[static_cast<std::size_t>(victim)]->signal(SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    auto& node = *nodes[static_cast<std::size_t>(rank)];
    const auto result = node.wait();
    EXPECT_LT(result.seconds, 20);
    EXPECT_TRUE(is_gone_soon(pid_of(node, rank)));
    if (rank != victim) {
      EXPECT_EQ(result.exit_code, 1);
      const std::string line = last_line(result.output);
      expect_contains(
          line, "the launcher of node " + std::to_string(victim) + " (");
      expect_contains(line, "has ended or was killed");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(LaunchNodes, KilledLauncher, ::testing::Values(0, 1));

// A launcher that is stopped is as silent as a node without power.
TEST_P(KilledLauncher, CountsAsLostWhenItIsSilent) {
  const int victim = GetParam();
  LaunchOptions options = node_options(2, 1, kSleep);
  options.nodes.silence = milliseconds(4000);
  Nodes nodes = start_nodes(options);
  ASSERT_TRUE(nodes[0]->wait_for("pid of") && nodes[1]->wait_for("pid of"));
  nodes[static_cast<std::size_t>(victim)]->signal(SIGSTOP);
  const auto result = nodes[static_cast<std::size_t>(1 - victim)]->wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_LT(result.seconds, 30);
  expect_contains(
      last_line(result.output),
      "the launcher of node " + std::to_string(victim) + " (");
  expect_contains(last_line(result.output), "has been silent for 4 s");
}

class MissingNode : public ::testing::TestWithParam<int> {};

TEST_P(MissingNode, IsNamedEveryTenSecondsAndIsAnErrorInTheEnd) {
  const int missing = GetParam();
  LaunchOptions options = node_options(3, 1, "echo the rank runs");
  options.nodes.timeout = milliseconds(11500);
  Nodes nodes;
  for (int rank = 0; rank < 3; ++rank) {
    if (rank != missing) {
      nodes.push_back(start_node(options, rank));
    }
  }
  const std::string node = "node " + std::to_string(missing);
  for (const auto& result : wait_for_all(nodes)) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.output.find("the rank runs"), std::string::npos);
    expect_contains(result.output, "waiting for " + node);
    expect_contains(last_line(result.output), "error: " + node);
    expect_contains(last_line(result.output), "within 11 s");
  }
}

INSTANTIATE_TEST_SUITE_P(LaunchNodes, MissingNode, ::testing::Values(0, 2));

TEST(LaunchNodes, ANodeMayStartLate) {
  const LaunchOptions options = node_options(2, 1, "echo the rank runs");
  Nodes nodes;
  nodes.push_back(start_node(options, 1));
  ::usleep(1500000);
  nodes.push_back(start_node(options, 0));
  for (const auto& result : wait_for_all(nodes)) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(LaunchNodes, DifferentOptionsAreErrorsThatNameBoth) {
  const LaunchOptions options = node_options(2, 1, "echo the rank runs");
  LaunchOptions more_ranks = options;
  more_ranks.nproc = 2;
  LaunchOptions more_nodes = options;
  more_nodes.nodes.count = 3;
  const std::string host = "(" + this_host() + ")";
  for (const auto& [other, text] :
       {std::pair(
            more_ranks,
            "node 1 " + host + " was started with --nproc 2, node 0 " + host +
                " with --nproc 1;"),
        std::pair(
            more_nodes,
            "node 1 " + host + " was started with --nnodes 3, node 0 " + host +
                " with --nnodes 2;")}) {
    Nodes nodes;
    nodes.push_back(start_node(options, 0));
    nodes.push_back(start_node(other, 1));
    const auto results = wait_for_all(nodes);
    expect_failure(results, 1, {text});
    EXPECT_EQ(results[0].output.find("the rank runs"), std::string::npos);
  }
}

TEST(LaunchNodes, TwoNodesWithOneNumberAreAnError) {
  const LaunchOptions options = node_options(3, 1, "echo the rank runs");
  Nodes nodes;
  for (const int rank : {0, 1, 1}) {
    nodes.push_back(start_node(options, rank));
  }
  expect_failure(wait_for_all(nodes), 1, {"both have --node-rank 1"});
}

class StoppedNode : public ::testing::TestWithParam<int> {};

TEST_P(StoppedNode, StopsTheRanksOfAllNodes) {
  LaunchOptions options = node_options(
      3,
      1,
      "trap 'sleep 2; echo saved; exit 143' TERM; echo ready; "
      "while :; do sleep 0.1; done");
  Nodes nodes = start_nodes(options);
  for (const auto& node : nodes) {
    ASSERT_TRUE(node->wait_for("ready"));
  }
  nodes[static_cast<std::size_t>(GetParam())]->signal(SIGTERM);
  for (const auto& result : wait_for_all(nodes)) {
    EXPECT_EQ(result.exit_code, 128 + SIGTERM);
    expect_contains(result.output, "saved"); // after twice the grace time
  }
}

INSTANTIATE_TEST_SUITE_P(LaunchNodes, StoppedNode, ::testing::Values(0, 1));

// As a scheduler does: that is one request, not three.
TEST(LaunchNodes, SignalsOfAllLaunchersAreOneRequest) {
  Nodes nodes = start_nodes(node_options(
      3,
      1,
      "trap 'sleep 2; echo saved; exit 143' TERM; echo ready; "
      "while :; do sleep 0.1; done"));
  for (const auto& node : nodes) {
    ASSERT_TRUE(node->wait_for("ready"));
  }
  for (const auto& node : nodes) {
    node->signal(SIGTERM);
  }
  for (const auto& result : wait_for_all(nodes)) {
    EXPECT_EQ(result.exit_code, 128 + SIGTERM);
    expect_contains(result.output, "saved");
  }
}

TEST(LaunchNodes, ASecondSignalEndsStubbornRanksOfAllNodes) {
  Nodes nodes = start_nodes(node_options(
      2, 1, "trap '' INT TERM; echo ready; while :; do sleep 0.1; done"));
  ASSERT_TRUE(nodes[0]->wait_for("ready") && nodes[1]->wait_for("ready"));
  nodes[1]->signal(SIGINT);
  ASSERT_TRUE(nodes[1]->wait_for("forwarding signal 2"));
  nodes[1]->signal(SIGINT);
  for (const auto& result : wait_for_all(nodes)) {
    EXPECT_EQ(result.exit_code, 128 + SIGKILL);
    EXPECT_LT(result.seconds, 15);
  }
}

TEST(LaunchNodes, ASignalEndsTheWaitForOthers) {
  const LaunchOptions options = node_options(3, 1, "echo the rank runs");
  Nodes nodes;
  nodes.push_back(start_node(options, 0));
  nodes.push_back(start_node(options, 1));
  ::usleep(1500000);
  nodes[1]->signal(SIGTERM);
  for (const auto& result : wait_for_all(nodes)) {
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.output;
    expect_contains(last_line(result.output), "ended by signal 15 (SIGTERM)");
  }
}

TEST(LaunchNodes, AProgramThatIsMissingOnANodeIsNamed) {
  LaunchOptions options = node_options(2, 1, kSleep);
  options.max_restarts = 3;
  Nodes nodes;
  nodes.push_back(start_node(options, 0));
  options.command = {"/nowhere/to/be/found"};
  nodes.push_back(start_node(options, 1));
  const auto results = wait_for_all(nodes);
  expect_failure(
      results,
      127,
      {"cannot start '/nowhere/to/be/found' on node 1 (" + this_host() +
       "): No such file or directory"});
  EXPECT_EQ(results[0].output.find("restart"), std::string::npos);
}

TEST(LaunchRestarts, StartAllRanksAgainAsOftenAsAllowed) {
  LaunchOptions options;
  options.nproc = 2;
  options.max_restarts = 2;
  options.command = {
      "bash",
      "-c",
      "echo rank $RANK restart $TORCHELASTIC_RESTART_COUNT of "
      "$TORCHELASTIC_MAX_RESTARTS; "
      "test $RANK = 1 && exit 3; exec sleep 1000"};
  LaunchedJob job([&] { return launch(options); });
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 3);
  for (const char* const restart : {"0", "1", "2"}) {
    expect_contains(
        result.output,
        "[rank 1] rank 1 restart " + std::string(restart) + " of 2\n");
  }
  EXPECT_EQ(job.count("starting all ranks again: restart "), 2);
}

TEST(LaunchRestarts, DoNotFollowASignal) {
  LaunchOptions options;
  options.max_restarts = 2;
  options.command = {"bash", "-c", "echo ready; exec sleep 1000"};
  LaunchedJob job([&] { return launch(options); });
  ASSERT_TRUE(job.wait_for("ready"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait().exit_code, 128 + SIGTERM);
  EXPECT_EQ(job.count("ready"), 1) << job.output();
}

TEST(LaunchRestarts, StartTheRanksOfAllNodesAgain) {
  LaunchOptions options = node_options(
      2,
      1,
      "echo run $TORCHELASTIC_RESTART_COUNT; "
      "test $TORCHELASTIC_RESTART_COUNT = 2 && exit 0; "
      "test $RANK = $TORCHELASTIC_RESTART_COUNT && { sleep 0.2; exit 3; }; "
      "exec sleep 1000");
  options.max_restarts = 2;
  Nodes nodes = start_nodes(options);
  for (const auto& result : wait_for_all(nodes)) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    for (const char* const run : {"run 0", "run 1", "run 2"}) {
      expect_contains(result.output, run);
    }
  }
}

TEST(LaunchRestarts, WaitForTheNodeThatWasLost) {
  LaunchOptions options = node_options(
      2,
      1,
      "echo run $TORCHELASTIC_RESTART_COUNT; "
      "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; exec sleep 1000");
  options.max_restarts = 1;
  Nodes nodes = start_nodes(options);
  ASSERT_TRUE(nodes[0]->wait_for("run 0") && nodes[1]->wait_for("run 0"));
  nodes[1]->signal(SIGKILL);
  ASSERT_TRUE(nodes[0]->wait_for("starting all ranks again: restart 1 of 1"));
  nodes[1] = start_node(options, 1);
  for (const auto& result : wait_for_all(nodes)) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    expect_contains(result.output, "run 1");
  }
}

TEST(LaunchNodes, RefusesWrongOptions) {
  LaunchOptions options = node_options(2, 1, "true");
  options.nodes.rank = 2;
  EXPECT_THROW(launch(options), Error);
  options = node_options(2, 1, "true");
  options.nodes.master_addr.clear();
  EXPECT_THROW(launch(options), Error);
  options = node_options(2, 1, "true");
  options.nodes.master_port = 0;
  EXPECT_THROW(launch(options), Error);
}

} // namespace tessera::runtime::launch_nodes_test
