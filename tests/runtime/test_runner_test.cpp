// SPDX-License-Identifier: Apache-2.0
// The main() of the tests, which tests/support/main.cpp has.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace tessera::test_runner_test {

namespace {

/// The names of the tests that this program would run.
std::string tests_with(const std::string& arguments) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      "'" + program + "' --gtest_list_tests " + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  char part[256];
  while (std::fgets(part, sizeof(part), pipe) != nullptr) {
    text += part;
  }
  pclose(pipe);
  return text;
}

} // namespace

TEST(TestRunner, AFileAndAFilterSelectWhatIsInBoth) {
  const std::string file = "--file=runtime/test_runner_test.cpp ";
  const std::string all = tests_with(file);
  EXPECT_NE(all.find("AFileAndAFilter"), std::string::npos) << all;
  EXPECT_NE(all.find("KnowsNoOther"), std::string::npos) << all;
  const std::string one = tests_with(file + "--gtest_filter='*.KnowsNo*'");
  EXPECT_EQ(one.find("AFileAndAFilter"), std::string::npos) << one;
  EXPECT_NE(one.find("KnowsNoOther"), std::string::npos) << one;
  const std::string other =
      tests_with(file + "--gtest_filter='-*.KnowsNo?th*'");
  EXPECT_NE(other.find("AFileAndAFilter"), std::string::npos) << other;
  EXPECT_EQ(other.find("KnowsNoOther"), std::string::npos) << other;
  const std::string none = tests_with(file + "--gtest_filter='Log.*:X.*'");
  EXPECT_NE(none.find("no test is in"), std::string::npos) << none;
}

TEST(TestRunner, KnowsNoOtherArguments) {
  const std::string text = tests_with("--files=a");
  EXPECT_NE(text.find("unknown argument '--files=a'"), std::string::npos);
}

} // namespace tessera::test_runner_test
