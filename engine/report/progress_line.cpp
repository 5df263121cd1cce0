// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/progress_line.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "tessera/engine/report/plot_ticks.h"
#include "tessera/runtime/core/error.h"

namespace tessera::engine {

namespace {

constexpr int kBarColumns = 24;
constexpr int kSmallestBar = 6;

// Moves to the start of the line; erases to its end.
constexpr const char* kReturn = "\r";
constexpr const char* kErase = "\x1b[K";

double steady_now_s() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Three significant digits.
std::string three_digits(double value) {
  return fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string bar(double fraction, int columns) {
  const auto inside = static_cast<size_t>(columns - 2);
  const auto filled =
      static_cast<size_t>(fraction * static_cast<double>(inside));
  std::string text(inside, ' ');
  std::fill_n(text.begin(), filled, '=');
  if (filled < inside) {
    text[filled] = '>';
  }
  text.insert(text.begin(), '[');
  return text + ']';
}

} // namespace

std::string format_bytes(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return (unit == 0 ? fixed(value, 0) : three_digits(value)) + " " +
         kUnits[unit];
}

std::string format_duration(double seconds) {
  if (!(seconds < 360'000'000)) { // Also nan.
    return "?";
  }
  const auto total = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  const auto padded = [](int64_t value) {
    return formatted("{}{}", value < 10 ? "0" : "", value);
  };
  const int64_t minutes = total / 60;
  return minutes < 60 ? formatted("{}:{}", minutes, padded(total % 60))
                      : formatted(
                            "{}:{}:{}",
                            minutes / 60,
                            padded(minutes % 60),
                            padded(total % 60));
}

std::string format_count(double count) {
  constexpr std::array<const char*, 4> kUnits{"", "k", "M", "G"};
  size_t unit = 0;
  while (count >= 999.5 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  return (unit == 0 ? fixed(count, 0) : three_digits(count)) + kUnits[unit];
}

std::string format_progress(const Progress& progress, int columns) {
  enum Field { kSteps, kLoss, kSpeed, kMemory, kLeft, kFields };
  std::array<std::string, kFields> fields;
  const bool has_total = progress.total_steps > 0;
  double fraction = 0;
  std::string percent;
  if (has_total) {
    fraction = std::clamp(
        static_cast<double>(progress.step) /
            static_cast<double>(progress.total_steps),
        0.0,
        1.0);
    percent = fixed(std::floor(fraction * 100), 0) + "%";
    percent.insert(0, 4 - percent.size(), ' ');
    fields[kSteps] = std::to_string(progress.step) + "/" +
                     std::to_string(progress.total_steps);
  } else {
    fields[kSteps] = formatted("step {}", progress.step);
  }
  if (progress.loss) {
    fields[kLoss] = "loss " + fixed(*progress.loss, 4);
  }
  if (progress.tokens_per_s) {
    fields[kSpeed] = format_count(*progress.tokens_per_s) + " tokens/s";
  }
  if (progress.memory_bytes) {
    fields[kMemory] = format_bytes(*progress.memory_bytes) + "/rank";
  }
  if (progress.seconds_left) {
    fields[kLeft] = format_duration(*progress.seconds_left) + " left";
  }
  const auto join = [&](const std::string& start) {
    std::string line = start;
    for (const std::string& field : fields) {
      if (!field.empty()) {
        line += (line.empty() ? "" : "  ") + field;
      }
    }
    return line;
  };
  const auto limit = static_cast<size_t>(std::max(columns, 1));
  for (const Field next : {kMemory, kSpeed, kLoss, kLeft}) {
    if (join(percent).size() <= limit) {
      break;
    }
    fields[next].clear();
  }
  std::string line = join(percent);
  if (has_total) {
    const auto room =
        static_cast<int>(limit) - static_cast<int>(line.size()) - 1;
    if (room >= kSmallestBar) {
      line = join(percent + " " + bar(fraction, std::min(room, kBarColumns)));
    }
  }
  line.resize(std::min(line.size(), limit));
  return line;
}

int terminal_columns(int fd) {
  winsize size{};
  const bool known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

ProgressLine::ProgressLine(std::ostream& out, ProgressLineOptions options)
    : out_(out), options_(std::move(options)) {
  if (!options_.now_s) {
    options_.now_s = steady_now_s;
  }
}

ProgressLine::~ProgressLine() {
  try {
    finish();
  } catch (...) {
    // A progress line that cannot be shown is not a reason to fail.
  }
}

void ProgressLine::update(Progress progress) {
  const double now_s = options_.now_s();
  const bool is_first = !start_;
  if (is_first) {
    start_ = Start{now_s, progress.step};
  }
  const int64_t steps = progress.step - start_->step;
  if (!progress.seconds_left && steps > 0 && progress.total_steps > 0) {
    progress.seconds_left = (now_s - start_->time_s) /
                            static_cast<double>(steps) *
                            static_cast<double>(std::max<int64_t>(
                                0, progress.total_steps - progress.step));
  }
  const bool is_last = progress.step == progress.total_steps;
  pending_ = std::move(progress);
  const double interval_s = options_.is_terminal ? options_.redraw_interval_s
                                                 : options_.plain_interval_s;
  if (is_first || is_last || now_s - shown_s_ >= interval_s) {
    show(now_s);
  }
}

void ProgressLine::show(double now_s) {
  if (options_.is_terminal) {
    // The last column stays free: some terminals wrap when it is written.
    out_ << kReturn << format_progress(*pending_, options_.columns() - 1)
         << kErase << std::flush;
    is_open_ = true;
  } else {
    constexpr int kPlainColumns = 200;
    out_ << format_progress(*pending_, kPlainColumns) << "\n" << std::flush;
  }
  pending_.reset();
  shown_s_ = now_s;
}

void ProgressLine::clear() {
  if (is_open_) {
    out_ << kReturn << kErase << std::flush;
    is_open_ = false;
    shown_s_ = -1e300; // So that the next update draws at once.
  }
}

void ProgressLine::finish() {
  if (pending_) {
    show(options_.now_s());
  }
  if (is_open_) {
    out_ << "\n" << std::flush;
    is_open_ = false;
  }
}

} // namespace tessera::engine
