// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/repeated_errors.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::runtime::repeated_errors_test {
namespace {

/// What a rank's lines become.
std::string pass(
    RepeatedErrors& errors,
    int rank,
    const std::vector<std::string>& lines) {
  const std::string prefix = "[rank " + std::to_string(rank) + "] ";
  std::string text;
  for (const std::string& line : lines) {
    text += prefix + line + "\n";
  }
  return errors.without_repeated(rank, prefix, text);
}

} // namespace

TEST(RepeatedErrors, AreShownOnceWithTheOtherRanks) {
  RepeatedErrors errors;
  EXPECT_EQ(
      pass(errors, 2, {"tessera: rank 2: error: no file x"}),
      "[rank 2] tessera: rank 2: error: no file x\n");
  EXPECT_EQ(pass(errors, 0, {"tessera: rank 0: error: no file x"}), "");
  EXPECT_EQ(pass(errors, 1, {"tessera: error: no file x"}), "");
  EXPECT_EQ(
      errors.summary(),
      std::vector<std::string>{"ranks 0, 1: the same error as rank 2"});
}

TEST(RepeatedErrors, LeaveOutOnlyLinesThatWereShown) {
  RepeatedErrors errors;
  const auto first = {
      std::string("starting"),
      std::string("tessera: error: does not fit:"),
      std::string("  a is 3"),
      std::string("  b is 4")};
  EXPECT_EQ(
      pass(errors, 0, first),
      "[rank 0] starting\n[rank 0] tessera: error: does not fit:\n"
      "[rank 0]   a is 3\n[rank 0]   b is 4\n");
  // Other details below the same line, and the same ones below another.
  EXPECT_EQ(
      pass(
          errors,
          1,
          {"starting",
           "tessera: error: does not fit:",
           "  a is 3",
           "  b is 5",
           "tessera: done",
           "  a is 3"}),
      "[rank 1] starting\n[rank 1]   b is 5\n[rank 1] tessera: done\n"
      "[rank 1]   a is 3\n");
  EXPECT_EQ(
      pass(errors, 2, {"tessera: error: another:", "  a is 3"}),
      "[rank 2] tessera: error: another:\n[rank 2]   a is 3\n");
  EXPECT_EQ(
      errors.summary(),
      std::vector<std::string>{"rank 1: the same error as rank 0"});
}

TEST(RepeatedErrors, KeepWhatARankRepeatsAndWarnings) {
  RepeatedErrors errors;
  const std::string line = "tessera: error: again";
  EXPECT_EQ(pass(errors, 0, {line}), pass(errors, 0, {line}));
  const std::string warning = "tessera: warning: slow";
  EXPECT_NE(pass(errors, 0, {warning}), "");
  EXPECT_NE(pass(errors, 1, {warning}), "");
  EXPECT_TRUE(errors.summary().empty());
}

TEST(RepeatedErrors, TakeLinesInPieces) {
  RepeatedErrors errors;
  pass(errors, 0, {"tessera: error: one", "two"});
  EXPECT_EQ(pass(errors, 1, {"tessera: error: one"}), "");
  EXPECT_EQ(pass(errors, 1, {"two"}), "");
  EXPECT_EQ(pass(errors, 1, {"three"}), "[rank 1] three\n");
}

} // namespace tessera::runtime::repeated_errors_test
