// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/row_report.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "support/expect_error.h"

namespace tessera::tasks::row_report_test {

namespace {

std::string logged(const std::function<void()>& act) {
  testing::internal::CaptureStderr();
  act();
  return testing::internal::GetCapturedStderr();
}

void refuse(const char* text) {
  TESSERA_FAIL("{}", text);
}

} // namespace

TEST(RowReport, SaysHowManyRowsAreTruncated) {
  RowReport report("row");
  EXPECT_EQ(logged([&] { report.log_truncated("f", "the limit", 8); }), "");
  report.add(true);
  report.add(false);
  EXPECT_NE(
      logged([&] {
        report.log_truncated("f", "the limit", 8);
      }).find("'f': 1 of 2 rows is longer than the limit, 8 tokens, and is truncated"),
      std::string::npos);
  report.add(true);
  EXPECT_NE(
      logged([&] {
        report.log_truncated("f", "the limit", 8);
      }).find("2 of 3 rows are longer than the limit, 8 tokens, and are"),
      std::string::npos);
}

TEST(RowReport, LeavesOutBadRowsWhereThatIsAskedFor) {
  RowReport report("question", text::BadRows::kSkip);
  EXPECT_TRUE(report.use([] {}));
  const std::string first =
      logged([&] { EXPECT_FALSE(report.use([] { refuse("f:1: no"); })); });
  EXPECT_NE(first.find("skipped: f:1: no"), std::string::npos) << first;
  // Others are counted.
  EXPECT_EQ(logged([&] { report.use([] { refuse("f:2: no"); }); }), "");
  EXPECT_NE(
      logged([&] {
        report.log_skipped("'f' that are too long");
      }).find("2 questions of 'f' that are too long were skipped"),
      std::string::npos);
  RowReport two("question", text::BadRows::kSkip, /*shown=*/2);
  for (const char* row : {"f:1: no", "f:2: no"}) {
    EXPECT_NE(
        logged([&] { two.use([&] { refuse(row); }); }).find(row),
        std::string::npos);
  }
  EXPECT_EQ(logged([&] { two.use([] { refuse("f:3: no"); }); }), "");
  RowReport strict("row");
  expect_error([&] { strict.use([] { refuse("f:1: no"); }); }, {"f:1: no"});
  EXPECT_EQ(logged([&] { strict.log_skipped("'f'"); }), "");
}

} // namespace tessera::tasks::row_report_test
