// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/line_prefixer.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::runtime::line_prefixer_test {

TEST(LinePrefixer, PutsThePrefixBeforeEachLine) {
  LinePrefixer prefixer("[rank 1] ");
  EXPECT_EQ(prefixer.feed("a\n\nb\n"), "[rank 1] a\n[rank 1] \n[rank 1] b\n");
  EXPECT_EQ(prefixer.finish(), "");
}

TEST(LinePrefixer, KeepsAPartialLineUntilItsEnd) {
  LinePrefixer prefixer("> ");
  EXPECT_EQ(prefixer.feed("one"), "");
  EXPECT_EQ(prefixer.feed(" two\nthr"), "> one two\n");
  EXPECT_EQ(prefixer.finish(), "> thr\n");
  EXPECT_EQ(prefixer.finish(), "");
}

TEST(LinePrefixer, GivesTheSameLinesHoweverTheBytesArrive) {
  const std::string bytes = "a\r\nstep 1\rstep 2\rstep 3\nb\r\r\nlast";
  LinePrefixer full("> ");
  const std::string expected = "> a\n> step 3\n> b\n";
  EXPECT_EQ(full.feed(bytes), expected);
  EXPECT_EQ(full.finish(), "> last\n");
  LinePrefixer single("> ");
  std::string lines;
  for (const char byte : bytes) {
    lines += single.feed({&byte, 1});
  }
  EXPECT_EQ(lines, expected);
  EXPECT_EQ(single.finish(), "> last\n");
}

TEST(LinePrefixer, KeepsOnlyTheLastStateOfAProgressBar) {
  LinePrefixer prefixer("> ");
  EXPECT_EQ(prefixer.feed("\rstep 1"), "");
  EXPECT_EQ(prefixer.progress(), "step 1");
  EXPECT_EQ(prefixer.feed("\rstep 2"), "");
  EXPECT_EQ(prefixer.progress(), "step 2");
  EXPECT_EQ(prefixer.feed("\nplain"), "> step 2\n");
  EXPECT_EQ(prefixer.progress(), "");
  EXPECT_EQ(prefixer.finish(), "> plain\n");
}

TEST(LinePrefixer, KnowsABarThatEndsItsStatesWithTheReturn) {
  LinePrefixer prefixer("> ");
  prefixer.feed("step 1\r");
  EXPECT_EQ(prefixer.progress(), "step 1");
  prefixer.feed("step 2\r");
  EXPECT_EQ(prefixer.progress(), "step 2");
}

TEST(LinePrefixer, LeavesTheShownBarWithoutAPrefix) {
  LinePrefixer prefixer("> ", /*bare_progress=*/true);
  EXPECT_EQ(prefixer.feed("\rstep 9\nplain\n"), "step 9\n> plain\n");
}

TEST(LinePrefixer, BreaksALineThatNeverEnds) {
  LinePrefixer prefixer("> ");
  const std::string fragment(LinePrefixer::kMaxLineBytes / 2 + 1, 'x');
  EXPECT_EQ(prefixer.feed(fragment), "");
  EXPECT_EQ(prefixer.feed(fragment), "> " + fragment + "\n");
  EXPECT_EQ(prefixer.finish(), "> " + fragment + "\n");
}

} // namespace tessera::runtime::line_prefixer_test
