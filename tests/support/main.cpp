// SPDX-License-Identifier: Apache-2.0
// The main() of a room's tests: GoogleTest's, and
//
//   --file=engine/matrix_test.cpp   runs the tests of one file, as ctest does;
//                                   with --gtest_filter, those of them that it
//                                   selects

#include <fnmatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

namespace {

/// Whether one of the patterns, with a ":" between them, matches.
bool matches_any(const std::string& patterns, const std::string& name) {
  size_t at = 0;
  while (at <= patterns.size()) {
    const size_t end = std::min(patterns.find(':', at), patterns.size());
    // GoogleTest's `*` and `?` are those of shells.
    if (end > at &&
        fnmatch(patterns.substr(at, end - at).c_str(), name.c_str(), 0) == 0) {
      return true;
    }
    at = end + 1;
  }
  return false;
}

/// Whether a filter of GoogleTest, "PATTERNS-PATTERNS", selects the test.
bool selects(const std::string& filter, const std::string& name) {
  const size_t minus = filter.find('-');
  const std::string wanted = filter.substr(0, minus);
  return (wanted.empty() || matches_any(wanted, name)) &&
         (minus == std::string::npos ||
          !matches_any(filter.substr(minus + 1), name));
}

/// The filter that picks the tests of a file that `asked` selects too; empty
/// when there are none.
std::string filter_of(const std::string& file, const std::string& asked) {
  std::string filter;
  const auto& unit = *testing::UnitTest::GetInstance();
  for (int s = 0; s < unit.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *unit.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      const std::string name = std::string(suite.name()) + "." + test.name();
      if (std::string_view(test.file()).ends_with("/tests/" + file) &&
          selects(asked, name)) {
        filter += (filter.empty() ? "" : ":") + name;
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
    const std::string asked = GTEST_FLAG_GET(filter);
    const std::string filter = filter_of(file, asked);
    if (filter.empty()) {
      std::fprintf(
          stderr,
          "%s: no test is in tests/%s and matches '%s'\n",
          argv[0],
          file.c_str(),
          asked.c_str());
      return 2;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}
