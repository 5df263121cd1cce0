// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/launch.h"

#include "support/launched_job.h"
#include "tessera/runtime/core/unique_fd.h"

#include <gtest/gtest.h>
#include <pty.h>

#include <string>

namespace tessera::runtime::launch_terminal_test {

namespace {

using tests::LaunchedJob;

/// What a terminal of 72 columns receives from two ranks.
std::string shown_on_terminal(const std::string& script) {
  int master = -1;
  int slave = -1;
  winsize size{24, 72, 0, 0};
  if (::openpty(&master, &slave, nullptr, nullptr, &size) != 0) {
    return "no terminal";
  }
  const UniqueFd screen(master);
  UniqueFd terminal(slave);
  LaunchOptions options;
  options.nproc = 2;
  options.command = {"sh", "-c", script};
  LaunchedJob job([&] { return launch(options); }, terminal.get());
  terminal.reset();
  std::string shown;
  char bytes[256];
  // Reading fails once no process has the terminal open.
  for (ssize_t count = 0;
       (count = ::read(screen.get(), bytes, sizeof(bytes))) > 0;) {
    shown.append(bytes, static_cast<std::size_t>(count));
  }
  return shown;
}

} // namespace

TEST(LaunchTerminal, ShowsTheProgressBarOfRank0AsItChanges) {
  const auto shown = shown_on_terminal(
      "for i in 1 2 3; do printf '\\rstep %d' $i; sleep 0.1; done; echo");
  for (const char* state : {"step 1", "step 2", "step 3"}) {
    EXPECT_NE(shown.find(state), std::string::npos) << shown;
  }
  EXPECT_EQ(shown.find("[rank 0]"), std::string::npos) << shown;
  EXPECT_NE(shown.find("[rank 1] step 3\r\n"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("[rank 1] step 1"), std::string::npos) << shown;
}

TEST(LaunchTerminal, KeepsTheBarBelowTheLinesOfOthers) {
  const auto shown = shown_on_terminal(
      "if test $RANK = 0; then printf '\\rbar'; sleep 0.6; echo; "
      "else sleep 0.3; echo line; fi");
  EXPECT_NE(shown.find("\r\033[K[rank 1] line\r\nbar"), std::string::npos)
      << shown;
}

TEST(LaunchTerminal, TellsRank0TheWidth) {
  const auto shown =
      shown_on_terminal("echo columns ${TESSERA_TERMINAL_COLUMNS-unknown}");
  EXPECT_NE(shown.find("[rank 0] columns 72"), std::string::npos) << shown;
  EXPECT_NE(shown.find("[rank 1] columns unknown"), std::string::npos) << shown;
}

} // namespace tessera::runtime::launch_terminal_test
