// SPDX-License-Identifier: Apache-2.0
#include "support/launched_job.h"
#include "support/paths.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace tessera::cli_test {

namespace {

using tests::LaunchedJob;

/// Runs the tessera program with arguments in the shell's spelling.
LaunchedJob::Result run_tessera(const std::string& arguments) {
  const std::string line =
      "exec " + tests::program("tessera") + " " + arguments;
  LaunchedJob job([&] {
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    return 1;
  });
  return job.wait();
}

} // namespace

TEST(Cli, PrintsItsVersion) {
  const auto result = run_tessera("--version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, "tessera " + tests::version() + "\n");
}

TEST(Cli, EndsWithTwoOnAUsageError) {
  for (const char* arguments :
       {"",
        "-- true",
        "no-such-command",
        "launch -- true",
        "launch --nproc 2",
        "launch --nproc 2 true",
        "launch --nproc 0 -- true",
        "launch --nproc two -- true",
        "launch --nproc 2 --port 65536 -- true",
        "launch --nproc 2 --no-such-option -- true"}) {
    const auto result = run_tessera(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.output;
    EXPECT_FALSE(result.output.empty()) << arguments;
  }
}

TEST(Cli, HelpsWhereThereIsNoCommand) {
  EXPECT_EQ(run_tessera("").output, run_tessera("--help").output);
}

TEST(Cli, ListsTheKeysOfASection) {
  const auto section = run_tessera("keys loss_scale");
  EXPECT_EQ(section.exit_code, 0);
  EXPECT_EQ(section.output.rfind("loss_scale.fixed\n", 0), 0u);
  EXPECT_NE(
      section.output.find("loss_scale.growth_factor = 2.0\n"),
      std::string::npos);
  EXPECT_EQ(section.output.find("\noptimizer"), std::string::npos);
  const auto all = run_tessera("keys").output;
  EXPECT_NE(all.find("loss_scale.growth_factor = 2.0\n"), std::string::npos);
  EXPECT_EQ(all.find("\n "), std::string::npos) << "only names and defaults";
  const auto none = run_tessera("keys los_scale");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(
      none.output.find("no key 'los_scale'; did you mean 'loss_scale'?"),
      std::string::npos)
      << none.output;
}

TEST(Cli, ListsTheKeysOfATask) {
  const auto all = run_tessera("keys data").output;
  const auto result = run_tessera("keys data --task image_folder");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("data.mixup"), std::string::npos);
  EXPECT_NE(result.output.find("data.loader."), std::string::npos);
  EXPECT_NE(all.find("data.text_key"), std::string::npos);
  EXPECT_EQ(result.output.find("data.text_key"), std::string::npos);
  // "AdamW" in a row is no task.
  EXPECT_EQ(
      run_tessera("keys optimizer --task examples").output,
      run_tessera("keys optimizer").output);
  const auto wrong = run_tessera("keys data --task images");
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(
      wrong.output.find("--task is 'images'; the tasks are"), std::string::npos)
      << wrong.output;
}

// libgomp says what it has read.
TEST(Cli, ThreadsOfCommandsWaitPassively) {
  const auto shown = [](const std::string& setting) {
    const std::string line =
        "exec env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT "
        "OMP_DISPLAY_ENV=verbose " +
        setting + " " + tests::program("tessera") + " keys loss_scale";
    LaunchedJob job([&] {
      ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      return 1;
    });
    return job.wait().output;
  };
  const std::string usual = shown("UNRELATED=1");
  EXPECT_NE(usual.find("GOMP_SPINCOUNT = '0'"), std::string::npos) << usual;
  EXPECT_NE(
      shown("GOMP_SPINCOUNT=7").find("GOMP_SPINCOUNT = '7'"),
      std::string::npos);
}

TEST(Cli, NamesWhatDoesNotExistAndTheNearestThatDoes) {
  const std::pair<const char*, const char*> cases[] = {
      {"lanch", "tessera has no command 'lanch'; did you mean 'launch'?"},
      {"help lanch", "tessera has no command 'lanch'; did you mean 'launch'?"},
      {"zzzzzz", "tessera has no command 'zzzzzz'; available: launch, train"},
      {"--verzion",
       "tessera has no option '--verzion'; did you mean "
       "'--version'?"},
      {"launch --nprocs 2 -- true",
       "tessera launch has no option '--nprocs'; did you mean '--nproc'?"},
      {"launch --nproc 1 --prot=3 -- true",
       "tessera launch has no option '--prot'; did you mean '--port'?"},
      {"launch --nproc 2 true", "the program to start goes after '--'"},
      {"train --hlep",
       "tessera train has no option '--hlep'; did you mean "
       "'--help'?"}};
  for (const auto& [arguments, message] : cases) {
    const auto result = run_tessera(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_NE(result.output.find(message), std::string::npos)
        << arguments << "\n"
        << result.output;
  }
}

TEST(Cli, PrintsHelpOfACommand) {
  for (const char* arguments : {"launch --help", "help launch"}) {
    const auto result = run_tessera(arguments);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.output.find("--nproc"), std::string::npos)
        << result.output;
  }
  EXPECT_NE(run_tessera("help").output.find("launch"), std::string::npos);
  EXPECT_NE(
      run_tessera("help train").output.find("configs/README.md"),
      std::string::npos);
}

TEST(Cli, LaunchesAProgramWithItsOwnOptionsAndDashes) {
  const auto result = run_tessera(
      "launch --nproc 2 -- sh -c 'echo $RANK $0 $1 $2' --help -- --nproc");
  EXPECT_EQ(result.exit_code, 0);
  for (const char* line :
       {"[rank 0] 0 --help -- --nproc\n", "[rank 1] 1 --help -- --nproc\n"}) {
    EXPECT_NE(result.output.find(line), std::string::npos) << result.output;
  }
}

TEST(Cli, KeepsTheStreamsApart) {
  EXPECT_EQ(
      run_tessera("launch --nproc 1 -- sh -c 'echo o; echo e >&2' 2>/dev/null")
          .output,
      "[rank 0] o\n");
}

TEST(Cli, LaunchesThoughItsStandardStreamsAreClosed) {
  EXPECT_EQ(
      run_tessera("launch --nproc 1 -- sh -c 'echo lost; exit 4' <&- >&- 2>&-")
          .exit_code,
      4);
}

TEST(Cli, ReportsAnErrorInOneLine) {
  const auto result = run_tessera("launch --nproc 1 -- ''");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(
      result.output,
      "tessera: error: there is no program to launch; name one\n");
}

} // namespace tessera::cli_test
