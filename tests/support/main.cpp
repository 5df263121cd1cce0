// SPDX-License-Identifier: Apache-2.0
// The main() of a room's tests: GoogleTest's, and
//
//   --file=engine/matrix_test.cpp   runs the tests of one file, as ctest does

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

/// The filter that picks the tests of a file; empty when it has none.
std::string filter_of(const std::string& file) {
  std::string filter;
  const auto& unit = *testing::UnitTest::GetInstance();
  for (int s = 0; s < unit.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *unit.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (std::string_view(test.file()).ends_with("/tests/" + file)) {
        filter += (filter.empty() ? "" : ":") + std::string(suite.name()) +
                  "." + test.name();
      }
    }
  }
  return filter;
}

} // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr const char* kOption = "--file=";
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], kOption, std::strlen(kOption)) != 0) {
      std::fprintf(stderr, "%s: unknown argument '%s'\n", argv[0], argv[i]);
      return 2;
    }
    const std::string file = argv[i] + std::strlen(kOption);
    const std::string filter = filter_of(file);
    if (filter.empty()) {
      std::fprintf(
          stderr, "%s: no test is in tests/%s\n", argv[0], file.c_str());
      return 2;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}
