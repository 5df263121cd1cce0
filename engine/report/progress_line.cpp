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
  constexpr std::array<const char*, 6> kUnits{"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  while (count >= 999.5 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  return (unit == 0 ? fixed(count, 0) : three_digits(count)) + kUnits[unit];
}

std::string format_short(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : "inf";
  }
  if (value == 0 || (value >= 0.01 && value < 999.5)) {
    return value == 0 ? "0" : three_digits(value);
  }
  // Two digits: 2.9e-5.
  auto exponent = static_cast<int>(std::floor(std::log10(value)));
  double digits = value / std::pow(10.0, exponent);
  if (digits >= 9.95) {
    digits /= 10;
    ++exponent;
  }
  return fixed(digits, 1) + "e" + std::to_string(exponent);
}

namespace {

/// In the order of the line.
enum ProgressField {
  kSteps,
  kLoss,
  kRate,
  kNorm,
  kSpeed,
  kUtilization,
  kMemory,
  kLeft,
  kFields
};

using ProgressTexts = std::array<std::string, kFields>;

/// @param is_short words as short as they are understood.
ProgressTexts progress_texts(const Progress& progress, bool is_short) {
  ProgressTexts texts;
  if (progress.total_steps > 0) {
    texts[kSteps] = std::to_string(progress.step) + "/" +
                    std::to_string(progress.total_steps);
  } else {
    texts[kSteps] = formatted("step {}", progress.step);
  }
  if (progress.loss) {
    texts[kLoss] = "loss " + fixed(*progress.loss, 4);
  }
  if (progress.learning_rate) {
    texts[kRate] = "lr " + format_short(*progress.learning_rate);
  }
  if (progress.grad_norm) {
    texts[kNorm] = "norm " + format_short(*progress.grad_norm);
  }
  if (progress.tokens_per_s) {
    texts[kSpeed] = format_count(*progress.tokens_per_s) +
                    (is_short ? " tok/s" : " tokens/s");
    if (!is_short && progress.padding_ratio >= 0.005) {
      texts[kSpeed] +=
          " (" + fixed(100 * progress.padding_ratio, 0) + "% padding)";
    }
  }
  if (progress.utilization) {
    const double share = 100 * *progress.utilization;
    const std::string percent = fixed(share, share < 9.95 ? 1 : 0) + "%";
    if (!progress.has_measured_peak) {
      texts[kUtilization] = "MFU " + percent;
    } else {
      texts[kUtilization] =
          is_short ? percent + " peak" : percent + " of measured peak";
    }
  }
  if (progress.memory_bytes) {
    texts[kMemory] = format_bytes(*progress.memory_bytes);
    if (is_short) {
      std::erase(texts[kMemory], ' ');
    } else {
      texts[kMemory] += "/rank";
    }
  }
  if (progress.seconds_left) {
    texts[kLeft] = format_duration(*progress.seconds_left) + " left";
  }
  return texts;
}

std::string joined(
    std::string line,
    const ProgressTexts& texts,
    const char* between) {
  for (const std::string& text : texts) {
    if (!text.empty()) {
      line += (line.empty() ? "" : between) + text;
    }
  }
  return line;
}

} // namespace

std::string format_progress(const Progress& progress, int columns) {
  const auto limit = static_cast<size_t>(std::max(columns, 1));
  const bool has_total = progress.total_steps > 0;
  const double fraction =
      !has_total ? 0
                 : std::clamp(
                       static_cast<double>(progress.step) /
                           static_cast<double>(progress.total_steps),
                       0.0,
                       1.0);
  std::string percent;
  if (has_total) {
    percent = fixed(std::floor(fraction * 100), 0) + "%";
    percent.insert(0, 4 - percent.size(), ' ');
  }
  ProgressTexts texts = progress_texts(progress, /*is_short=*/false);
  std::string line = joined(percent, texts, "  ");
  const auto free_columns =
      static_cast<int>(limit) - static_cast<int>(line.size()) - 1;
  if (has_total && free_columns >= kSmallestBar) {
    return joined(
        percent + " " + bar(fraction, std::min(free_columns, kBarColumns)),
        texts,
        "  ");
  }
  if (line.size() <= limit) {
    return line;
  }
  texts = progress_texts(progress, /*is_short=*/true);
  line = joined("", texts, " ");
  for (const ProgressField next :
       {kMemory, kUtilization, kRate, kNorm, kSpeed, kLoss, kLeft}) {
    if (line.size() <= limit) {
      break;
    }
    texts[next].clear();
    line = joined("", texts, " ");
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
