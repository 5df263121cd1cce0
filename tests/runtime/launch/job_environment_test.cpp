// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/job_environment.h"
#include "support/expect_error.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tessera::runtime::job_environment_test {

namespace {

using Variables = std::map<std::string, std::string>;

Variables translate(const Variables& environment) {
  return translated_job_environment(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = environment.find(name);
        return found == environment.end()
                   ? std::nullopt
                   : std::optional<std::string>(found->second);
      });
}

Variables slurm_step() {
  return {
      {"SLURM_PROCID", "5"},
      {"SLURM_LOCALID", "1"},
      {"SLURM_NODEID", "1"},
      {"SLURM_STEP_NUM_TASKS", "7"},
      {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
      {"SLURM_STEP_NODELIST", "gpu[03-04]"},
      {"SLURM_JOB_ID", "31234"},
      {"SLURM_STEP_ID", "2"}};
}

} // namespace

TEST(JobEnvironment, TorchrunsIsLeftAlone) {
  Variables environment = slurm_step();
  environment.insert({"RANK", "0"});
  EXPECT_EQ(translate(environment), Variables{});
  EXPECT_EQ(translate({}), Variables{});
}

TEST(JobEnvironment, KnowsSlurm) {
  EXPECT_EQ(
      translate(slurm_step()),
      (Variables{
          {"RANK", "5"},
          {"WORLD_SIZE", "7"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "3"},
          {"MASTER_ADDR", "gpu03"},
          {"MASTER_PORT", "16236"}}));
  Variables environment = slurm_step();
  environment["MASTER_ADDR"] = "head";
  environment["MASTER_PORT"] = "77";
  const Variables kept = translate(environment);
  EXPECT_EQ(kept.count("MASTER_ADDR"), 0u);
  EXPECT_EQ(kept.count("MASTER_PORT"), 0u);
}

// The script itself, outside of any step, has these and is not a rank.
TEST(JobEnvironment, ABatchScriptIsNoRank) {
  EXPECT_EQ(
      translate(
          {{"SLURM_PROCID", "0"},
           {"SLURM_NTASKS", "8"},
           {"SLURM_LOCALID", "0"},
           {"SLURM_JOB_ID", "1"}}),
      Variables{});
}

TEST(JobEnvironment, KnowsOpenMpi) {
  Variables environment{
      {"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  const Variables expected{
      {"RANK", "3"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_RANK", "3"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "29500"}};
  EXPECT_EQ(translate(environment), expected);
  // Inside of a Slurm step, whose tasks are mpirun's helpers.
  environment.merge(slurm_step());
  EXPECT_EQ(translate(environment), expected);
  environment["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  expect_error(
      [&] { translate(environment); },
      {"Open MPI", "4 ranks, 2 of them", "MASTER_ADDR"});
  environment["MASTER_ADDR"] = "head";
  EXPECT_EQ(translate(environment).at("LOCAL_WORLD_SIZE"), "2");
  environment.erase("OMPI_COMM_WORLD_SIZE");
  expect_error(
      [&] { translate(environment); },
      {"OMPI_COMM_WORLD_SIZE", "Open MPI", "tessera launch"});
}

TEST(JobEnvironment, KnowsPmi) {
  const Variables hydra{
      {"PMI_RANK", "1"},
      {"PMI_SIZE", "2"},
      {"MPI_LOCALRANKID", "1"},
      {"MPI_LOCALNRANKS", "2"}};
  const Variables expected{
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "29500"}};
  EXPECT_EQ(translate(hydra), expected);
  EXPECT_EQ(translate({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), expected);
  // srun --mpi=pmi2: only Slurm says what is on this node.
  Variables both = slurm_step();
  both["PMI_RANK"] = "5";
  both["PMI_SIZE"] = "7";
  EXPECT_EQ(translate(both), translate(slurm_step()));
}

TEST(JobEnvironment, NamesWhatIsMalformed) {
  Variables environment = slurm_step();
  environment["SLURM_PROCID"] = "five";
  expect_error([&] { translate(environment); }, {"SLURM_PROCID", "'five'"});
  environment = slurm_step();
  environment.erase("SLURM_STEP_NODELIST");
  expect_error([&] { translate(environment); }, {"SLURM_STEP_NODELIST"});
  environment = slurm_step();
  environment["SLURM_NODEID"] = "2";
  expect_error([&] { translate(environment); }, {"'4,3'", "node 2"});
}

TEST(JobEnvironment, ReadsSlurmsLists) {
  EXPECT_EQ(first_slurm_host("node7"), "node7");
  EXPECT_EQ(first_slurm_host("a1,b2"), "a1");
  EXPECT_EQ(first_slurm_host("gpu[03-07,11],cpu2"), "gpu03");
  EXPECT_EQ(first_slurm_host("n[5]"), "n5");
  EXPECT_EQ(first_slurm_host("rack[2,4]-ib"), "rack2-ib");
  EXPECT_EQ(first_slurm_host("rack[2,4]-ib,x"), "rack2-ib");
  expect_error([] { first_slurm_host("gpu[03"); }, {"gpu[03", "MASTER_ADDR"});
  EXPECT_EQ(slurm_tasks_on_node("8", 0), 8);
  EXPECT_EQ(slurm_tasks_on_node("4(x2),3,1(x2)", 1), 4);
  EXPECT_EQ(slurm_tasks_on_node("4(x2),3,1(x2)", 2), 3);
  EXPECT_EQ(slurm_tasks_on_node("4(x2),3,1(x2)", 4), 1);
  expect_error([] { slurm_tasks_on_node("x(x2)", 0); }, {"'x'"});
}

TEST(JobEnvironment, SetsThisProcesss) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR"}) {
    ::unsetenv(name);
  }
  ::setenv("PMI_RANK", "0", 1);
  ::setenv("PMI_SIZE", "1", 1);
  adopt_job_environment();
  EXPECT_STREQ(std::getenv("RANK"), "0");
  EXPECT_STREQ(std::getenv("WORLD_SIZE"), "1");
  EXPECT_STREQ(std::getenv("MASTER_ADDR"), "127.0.0.1");
}

} // namespace tessera::runtime::job_environment_test
