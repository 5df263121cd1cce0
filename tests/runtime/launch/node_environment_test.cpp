// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/node_environment.h"

#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tessera::runtime::node_environment_test {

namespace {

using Variables = std::map<std::string, std::string>;

LaunchVariables complete(
    const Variables& variables,
    LaunchVariables given = {}) {
  return complete_launch_variables(
      std::move(given),
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt
                                        : std::optional(found->second);
      });
}

const Variables kSlurm{
    {"SLURM_STEP_NUM_NODES", "2"},
    {"SLURM_STEP_NUM_TASKS", "2"},
    {"SLURM_NODEID", "1"},
    {"SLURM_STEP_NODELIST", "gpu[03-04]"},
    {"SLURM_JOB_ID", "70"},
    {"SLURM_STEP_ID", "5"}};

} // namespace

TEST(NodeEnvironment, IsOneNodeWithoutVariables) {
  const auto result = complete({{"MASTER_ADDR", "elsewhere"}});
  EXPECT_EQ(result.nnodes, 1);
  EXPECT_EQ(result.node_rank, 0);
  EXPECT_FALSE(result.nproc || result.master_addr || result.master_port);
}

TEST(NodeEnvironment, TakesTorchrunsVariables) {
  const auto result = complete(
      {{"PET_NNODES", "4"},
       {"PET_NODE_RANK", "3"},
       {"PET_NPROC_PER_NODE", "8"},
       {"PET_MASTER_ADDR", "first"},
       {"PET_MASTER_PORT", "23456"},
       {"MASTER_ADDR", "second"}});
  EXPECT_EQ(result.nnodes, 4);
  EXPECT_EQ(result.node_rank, 3);
  EXPECT_EQ(result.nproc, 8);
  EXPECT_EQ(result.master_addr, "first");
  EXPECT_EQ(result.master_port, 23456);
}

TEST(NodeEnvironment, OptionsComeFirst) {
  LaunchVariables given;
  given.nnodes = 3;
  given.node_rank = 2;
  given.master_addr = "mine";
  given.master_port = 1234;
  const auto result = complete(
      {{"PET_NNODES", "4"},
       {"PET_NODE_RANK", "3"},
       {"MASTER_ADDR", "first"},
       {"MASTER_PORT", "23456"}},
      given);
  EXPECT_EQ(result.nnodes, 3);
  EXPECT_EQ(result.node_rank, 2);
  EXPECT_EQ(result.master_addr, "mine");
  EXPECT_EQ(result.master_port, 1234);
}

TEST(NodeEnvironment, TakesASlurmStepWithOneTaskPerNode) {
  const auto result = complete(kSlurm);
  EXPECT_EQ(result.nnodes, 2);
  EXPECT_EQ(result.node_rank, 1);
  EXPECT_EQ(result.master_addr, "gpu03");
  EXPECT_EQ(result.master_port, 15075);
}

TEST(NodeEnvironment, LeavesASlurmStepWithATaskPerRank) {
  auto variables = kSlurm;
  variables["SLURM_STEP_NUM_TASKS"] = "16";
  EXPECT_EQ(complete(variables).nnodes, 1);
}

TEST(NodeEnvironment, TakesTheIndexOfAKubernetesJob) {
  LaunchVariables given;
  given.nnodes = 2;
  given.master_addr = "tessera-0.tessera";
  const auto result = complete({{"JOB_COMPLETION_INDEX", "1"}}, given);
  EXPECT_EQ(result.node_rank, 1);
  EXPECT_EQ(result.master_port, 29500);
}

TEST(NodeEnvironment, NamesWhatIsMissingOrMalformed) {
  LaunchVariables given;
  given.nnodes = 2;
  EXPECT_THROW(complete({{"MASTER_ADDR", "first"}}, given), Error);
  EXPECT_THROW(complete({{"PET_NODE_RANK", "1"}}, given), Error);
  try {
    complete({{"PET_NNODES", "1:4"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("PET_NNODES is '1:4'"),
        std::string::npos)
        << error.what();
  }
}

} // namespace tessera::runtime::node_environment_test
