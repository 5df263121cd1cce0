// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/progress_line.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

namespace tessera::engine::progress_line_test {

namespace {

Progress full() {
  Progress progress;
  progress.step = 170;
  progress.total_steps = 500;
  progress.loss = 0.43125;
  progress.learning_rate = 2.94e-5;
  progress.grad_norm = 1.234;
  progress.tokens_per_s = 12345;
  progress.utilization = 0.4123;
  progress.memory_bytes = int64_t{1234} << 20;
  progress.seconds_left = 62;
  return progress;
}

Progress at(int64_t step, int64_t total_steps = 100) {
  Progress progress;
  progress.step = step;
  progress.total_steps = total_steps;
  return progress;
}

// A ProgressLine on a clock that the test turns.
struct Shown {
  explicit Shown(bool is_terminal)
      : line(
            out,
            {.is_terminal = is_terminal,
             .redraw_interval_s = 0.1,
             .plain_interval_s = 10,
             .columns = [] { return 60; },
             .now_s = [this] { return now_s; }}) {}

  // What was written since the last call.
  std::string text() {
    std::string text = out.str();
    out.str("");
    return text;
  }

  double now_s = 1000;
  std::ostringstream out;
  ProgressLine line;
};

} // namespace

TEST(FormatProgress, ShowsEverythingThatIsKnown) {
  EXPECT_EQ(
      format_progress(full(), 200),
      " 34% [=======>              ]  170/500  loss 0.4313  lr 2.9e-5  "
      "norm 1.23  12.3k tokens/s  MFU 41%  1.21 GiB/rank  1:02 left");
  Progress padded = full();
  padded.padding_ratio = 0.184;
  EXPECT_NE(
      format_progress(padded, 200).find("  12.3k tokens/s (18% padding)  MFU"),
      std::string::npos);
  padded.padding_ratio = 0.004;
  EXPECT_EQ(format_progress(padded, 200), format_progress(full(), 200));
  EXPECT_EQ(
      format_progress(at(3, 4), 200), " 75% [================>     ]  3/4");
  EXPECT_EQ(
      format_progress(at(4, 4), 200), "100% [======================]  4/4");
  EXPECT_EQ(format_progress(at(7, 0), 200), "step 7");
  EXPECT_EQ(
      format_progress(at(0), 200), "  0% [>                     ]  0/100");
}

TEST(FormatProgress, SaysHundredPercentOnlyAtTheEnd) {
  EXPECT_EQ(format_progress(at(9999, 10000), 18), " 99%  9999/10000");
  EXPECT_EQ(format_progress(at(12, 10), 18), "100% [====]  12/10");
}

TEST(FormatProgress, ShowsALossThatIsNotFinite) {
  Progress progress = at(1);
  progress.loss = std::nan("");
  EXPECT_NE(format_progress(progress, 80).find("loss nan"), std::string::npos);
}

TEST(FormatProgress, FitsIntoAnyWidth) {
  for (int columns = 1; columns < 120; ++columns) {
    EXPECT_LE(
        format_progress(full(), columns).size(), static_cast<size_t>(columns));
  }
  // The bar goes first, then words become shorter; all of it fits into 80
  // columns, of which the last stays free.
  EXPECT_EQ(
      format_progress(full(), 110),
      " 34% [==>     ]  170/500  loss 0.4313  lr 2.9e-5  norm 1.23  "
      "12.3k tokens/s  MFU 41%  1.21 GiB/rank  1:02 left");
  EXPECT_EQ(
      format_progress(full(), 79),
      "170/500 loss 0.4313 lr 2.9e-5 norm 1.23 12.3k tok/s MFU 41% 1.21GiB "
      "1:02 left");
  Progress long_run = full();
  long_run.step = 12345;
  long_run.total_steps = 500000;
  long_run.loss = 10.43;
  long_run.seconds_left = 360000;
  EXPECT_EQ(
      format_progress(long_run, 79),
      "12345/500000 loss 10.4300 lr 2.9e-5 norm 1.23 12.3k tok/s 100:00:00 left");
  // Then memory, utilization, learning rate, norm, speed and loss.
  EXPECT_EQ(
      format_progress(full(), 62),
      "170/500 loss 0.4313 lr 2.9e-5 norm 1.23 12.3k tok/s 1:02 left");
  EXPECT_EQ(
      format_progress(full(), 52),
      "170/500 loss 0.4313 norm 1.23 12.3k tok/s 1:02 left");
  EXPECT_EQ(format_progress(full(), 30), "170/500 loss 0.4313 1:02 left");
  EXPECT_EQ(format_progress(full(), 17), "170/500 1:02 left");
  EXPECT_EQ(format_progress(full(), 7), "170/500");
}

TEST(FormatProgress, NamesAMeasuredPeak) {
  Progress progress = full();
  progress.has_measured_peak = true;
  EXPECT_NE(
      format_progress(progress, 200).find("  41% of measured peak  "),
      std::string::npos);
  EXPECT_NE(
      format_progress(progress, 79).find(" 41% peak "), std::string::npos);
}

TEST(Formats, ShortNumbers) {
  EXPECT_EQ(format_short(0), "0");
  EXPECT_EQ(format_short(1), "1.00");
  EXPECT_EQ(format_short(0.0123), "0.01");
  EXPECT_EQ(format_short(3e-5), "3.0e-5");
  EXPECT_EQ(format_short(9.96e-5), "1.0e-4");
  EXPECT_EQ(format_short(123.4), "123");
  EXPECT_EQ(format_short(12345), "1.2e4");
  EXPECT_EQ(format_short(INFINITY), "inf");
}

TEST(Formats, BytesDurationsAndCounts) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes((int64_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(int64_t{512} << 20), "512 MiB");
  EXPECT_EQ(format_bytes(int64_t{80} << 30), "80.0 GiB");
  EXPECT_EQ(format_duration(0.4), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(725), "12:05");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(-1), "0:00");
  EXPECT_EQ(format_duration(std::nan("")), "?");
  EXPECT_EQ(format_duration(1e300), "?");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(999.6), "1.00k");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(4.56e6), "4.56M");
}

TEST(ProgressLine, RedrawsOneLineOnATerminal) {
  Shown shown(true);
  shown.line.update(at(1));
  EXPECT_EQ(shown.text(), "\r  1% [>                     ]  1/100\x1b[K");
  shown.now_s += 0.06;
  shown.line.update(at(2)); // Too soon.
  EXPECT_EQ(shown.text(), "");
  shown.now_s += 0.06;
  shown.line.update(at(3));
  EXPECT_EQ(
      shown.text(), "\r  3% [>                     ]  3/100  0:06 left\x1b[K");
  shown.line.finish();
  EXPECT_EQ(shown.text(), "\n");
  shown.line.finish();
  EXPECT_EQ(shown.text(), "");
}

TEST(ProgressLine, PrintsPlainLinesElsewhere) {
  Shown shown(false);
  shown.line.update(at(1));
  EXPECT_EQ(shown.text(), "  1% [>                     ]  1/100\n");
  shown.now_s += 9;
  shown.line.update(at(10));
  EXPECT_EQ(shown.text(), "");
  shown.now_s += 1;
  shown.line.update(at(11));
  EXPECT_EQ(shown.text(), " 11% [==>                   ]  11/100  1:29 left\n");
  shown.now_s += 1;
  shown.line.update(at(12));
  EXPECT_EQ(shown.text(), "");
  shown.line.finish(); // Shows what had to wait.
  EXPECT_EQ(shown.text(), " 12% [==>                   ]  12/100  1:28 left\n");
}

TEST(ProgressLine, TimeLeftIsThatOfTheStepsBehind) {
  Shown shown(false);
  // A resumed run: the 50 steps before it cost this run nothing.
  shown.line.update(at(50));
  shown.now_s += 20;
  shown.line.update(at(60));
  EXPECT_NE(shown.text().find("1:20 left"), std::string::npos);
  Progress known = at(61);
  known.seconds_left = 5;
  shown.now_s += 10;
  shown.line.update(known);
  EXPECT_NE(shown.text().find("0:05 left"), std::string::npos);
}

TEST(ProgressLine, LastStepIsAlwaysShown) {
  Shown shown(false);
  shown.line.update(at(99));
  shown.text();
  shown.line.update(at(100));
  EXPECT_EQ(
      shown.text(), "100% [======================]  100/100  0:00 left\n");
}

TEST(ProgressLine, ClearMakesRoomForOtherOutput) {
  Shown shown(true);
  shown.line.update(at(1));
  shown.text();
  shown.line.clear();
  EXPECT_EQ(shown.text(), "\r\x1b[K");
  shown.line.clear();
  EXPECT_EQ(shown.text(), "");
  shown.line.update(at(2));
  EXPECT_NE(shown.text().find("2/100"), std::string::npos);
}

TEST(ProgressLine, DestructorEndsTheLine) {
  std::ostringstream out;
  {
    ProgressLine line(out, {.is_terminal = true});
    line.update(at(1));
  }
  EXPECT_EQ(out.str().back(), '\n');
}

} // namespace tessera::engine::progress_line_test
