// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/file_lock.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>

namespace tessera::runtime::file_lock_test {

namespace {

using std::chrono::milliseconds;

} // namespace

TEST(FileLock, NamesTheProcessThatHoldsIt) {
  const TemporaryFolder folder;
  const auto file = folder / "lock";
  std::optional<FileLock> first(std::in_place, file, "the folder");
  const std::string expected =
      "the folder is in use: pid " + std::to_string(::getpid()) + " on host ";
  try {
    const FileLock second(file, "the folder", milliseconds(0));
    ADD_FAILURE() << "two locks";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos)
        << error.what();
  }
  first.reset();
  const FileLock third(file, "the folder", milliseconds(0));
}

TEST(FileLock, WaitsForAProcessThatIsBeingKilled) {
  const TemporaryFolder folder;
  const auto file = folder / "lock";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FileLock lock(file, "the folder");
    [[maybe_unused]] const auto told = ::write(ready[1], "x", 1);
    ::usleep(300000);
    ::raise(SIGKILL);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THROW(FileLock(file, "the folder", milliseconds(0)), Error);
  EXPECT_NO_THROW(FileLock(file, "the folder", milliseconds(10000)));
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

} // namespace tessera::runtime::file_lock_test
