// SPDX-License-Identifier: Apache-2.0
// Jobs over several nodes, for which launchers on this machine stand.
#include "support/launched_job.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tools/trained_run.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace tessera::nodes_test {

namespace {

namespace fs = std::filesystem;
using tests::LaunchedJob;
using Words = std::vector<std::string>;
using Nodes = std::vector<std::unique_ptr<LaunchedJob>>;

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  socklen_t bytes = sizeof(address);
  ::bind(socket, plain, bytes);
  ::getsockname(socket, plain, &bytes);
  ::close(socket);
  return ntohs(address.sin_port);
}

/// One `tessera launch` per node. Ranks of different nodes use TCP.
Nodes start_nodes(int nodes, int nproc, const Words& options, Words program) {
  const std::string port = std::to_string(free_port());
  Nodes started;
  for (int node = 0; node < nodes; ++node) {
    Words words{tests::program("tessera"), "launch"};
    if (nodes > 1) {
      const Words place{
          "--nnodes",
          std::to_string(nodes),
          "--node-rank",
          std::to_string(node),
          "--master-addr",
          "127.0.0.1",
          "--master-port",
          port};
      words.insert(words.end(), place.begin(), place.end());
    }
    words.insert(words.end(), {"--nproc", std::to_string(nproc)});
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("--");
    words.insert(words.end(), program.begin(), program.end());
    started.push_back(std::make_unique<LaunchedJob>([words] {
      fs::current_path(tests::source_dir());
      ::setenv("TESSERA_TRANSPORT", "gloo", 1);
      // The ranks of a node share its cores; other numbers of threads add up
      // in other orders.
      ::setenv("OMP_NUM_THREADS", "1", 1);
      std::vector<char*> argv;
      for (const std::string& word : words) {
        argv.push_back(const_cast<char*>(word.c_str()));
      }
      argv.push_back(nullptr);
      ::execv(argv.front(), argv.data());
      return 127;
    }));
  }
  return started;
}

pid_t number_after(const std::string& output, const std::string& label) {
  const auto at = output.find(label);
  return at == std::string::npos ? -1
                                 : static_cast<pid_t>(std::atoi(
                                       output.c_str() + at + label.size()));
}

Words training(const fs::path& folder, const std::string& name) {
  return {
      tests::program("tessera"),
      "train",
      "configs/finetune_minilm.json",
      "training.batch_size=2",
      "training.max_steps=3",
      "training.log_every=1",
      "data.train=" + (folder / "data.jsonl").string(),
      "data.heldout=" + (folder / "data.jsonl").string(),
      "output.folder=" + (folder / name).string()};
}

} // namespace

TEST(Nodes, AKilledRankEndsTheJobOnAllWithinTenSeconds) {
  Nodes nodes = start_nodes(2, 2, {}, {tests::program("all_reduce_loop")});
  for (const auto& node : nodes) {
    ASSERT_TRUE(node->wait_for("step 50\n", 2)) << node->output();
  }
  const pid_t victim = number_after(nodes[1]->output(), "[rank 3] process ");
  ::kill(victim, SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  for (const auto& node : nodes) {
    const auto result = node->wait();
    EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
    const auto last = result.output.rfind(
        "tessera: error: the job has failed: rank 3 (pid " +
        std::to_string(victim) + " on node 1, ");
    ASSERT_NE(last, std::string::npos) << result.output;
    EXPECT_NE(
        result.output.find("was killed by signal 9 (SIGKILL)\n", last),
        std::string::npos)
        << result.output;
  }
  EXPECT_LT(
      std::chrono::steady_clock::now() - killed, std::chrono::seconds(10));
}

TEST(Nodes, HaveTheLossesOfOneNode) {
  const TemporaryFolder folder;
  write_examples(folder.path() / "data.jsonl");
  const auto losses = [&](int nodes, int nproc) {
    const std::string name =
        std::to_string(nodes) + "x" + std::to_string(nproc);
    Nodes started =
        start_nodes(nodes, nproc, {}, training(folder.path(), name));
    for (const auto& node : started) {
      const auto result = node->wait();
      EXPECT_EQ(result.exit_code, 0) << result.output;
    }
    return losses_of(folder.path() / name);
  };
  const auto two = losses(1, 2);
  EXPECT_EQ(two.size(), 3U);
  EXPECT_EQ(losses(2, 1), two);
  const auto four = losses(1, 4);
  EXPECT_NE(four, two);
  EXPECT_EQ(losses(2, 2), four);
}

TEST(Nodes, RestartFromTheNewestCheckpoint) {
  const TemporaryFolder folder;
  write_examples(folder.path() / "data.jsonl");
  Words program{"bash", "-c", "echo run $RANK is $$; exec \"$@\"", "rank"};
  for (const std::string& word : training(folder.path(), "run")) {
    program.push_back(word);
  }
  program.insert(
      program.end(),
      {"training.max_steps=6",
       "training.epochs=2",
       "training.save_every=3",
       "training.resume=true"});
  Nodes nodes = start_nodes(2, 1, {"--max-restarts", "1"}, program);
  ASSERT_TRUE(nodes[1]->wait_for("run 1 is "));
  ASSERT_TRUE(nodes[0]->wait_for("saved step 3 ")) << nodes[0]->output();
  ::kill(number_after(nodes[1]->output(), "run 1 is "), SIGKILL);
  for (const auto& node : nodes) {
    const auto result = node->wait();
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(
        result.output.find("starting all ranks again: restart 1 of 1\n"),
        std::string::npos)
        << result.output;
  }
  EXPECT_NE(nodes[0]->output().find("resum"), std::string::npos)
      << nodes[0]->output();
  // Nothing is lost or done twice.
  EXPECT_EQ(losses_of(folder.path() / "run").size(), 6U);
}

} // namespace tessera::nodes_test
