// SPDX-License-Identifier: Apache-2.0
#include "support/launched_job.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {

namespace {

using testing::LaunchedJob;

/// Runs the tessera program with arguments in the shell's spelling.
LaunchedJob::Result run_tessera(const std::string& arguments) {
  const std::string line = "exec " TESSERA_PROGRAM " " + arguments;
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
  EXPECT_EQ(result.output, "tessera " TESSERA_VERSION "\n");
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

TEST(Cli, PrintsHelpOfACommand) {
  const auto result = run_tessera("launch --help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.output.find("--nproc"), std::string::npos) << result.output;
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

} // namespace tessera
