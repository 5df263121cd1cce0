// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ProgressLine` shows the progress of training in one line.

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

namespace tessera::engine {

/// The state of a running job; unknown values are omitted from the line.
struct Progress {
  int64_t step = 0; ///< Steps done.
  int64_t total_steps = 0; ///< Zero if unknown.
  std::optional<double> loss;
  std::optional<double> learning_rate;
  std::optional<double> grad_norm; ///< Before clipping.
  std::optional<double> tokens_per_s; ///< Over all ranks.
  double padding_ratio = 0; ///< Of the tokens; shown from half a percent on.
  /// Model FLOPs per second as a share of the peak of all devices.
  std::optional<double> utilization;
  bool has_measured_peak = false; ///< The peak is not that of a data sheet.
  std::optional<int64_t> memory_bytes; ///< Per rank.
  std::optional<double> seconds_left;
};

/// "1.20 GiB", "512 MiB", "3 B".
std::string format_bytes(int64_t bytes);

/// "0:42", "12:05", "1:02:03".
std::string format_duration(double seconds);

/// "950", "12.3k", "4.56M".
std::string format_count(double count);

/// A positive number in at most seven characters: "1.23", "2.9e-5", "inf".
std::string format_short(double value);

/// The line, without line end, at most `columns` wide. In a narrow line the bar
/// shrinks and is omitted first; then words become shorter, so that all fits
/// into a terminal of 80 columns; then memory, utilization, learning rate,
/// gradient norm, speed, loss and time left are omitted, in this order. Pure.
std::string format_progress(const Progress& progress, int columns);

/// Columns of the terminal of a file descriptor; 80 if it is not a terminal.
int terminal_columns(int fd);

struct ProgressLineOptions {
  /// A terminal gets one line that is redrawn, other streams a plain line from
  /// time to time.
  bool is_terminal = false;
  double redraw_interval_s = 0.1;
  double plain_interval_s = 10;
  std::function<int()> columns = [] { return 80; }; ///< Of the terminal.
  std::function<double()> now_s; ///< Any steady clock; empty for the system's.
};

/// Shows Progress on a stream. The first and the last step are always shown,
/// others if the interval has passed. Used by one thread.
class ProgressLine {
 public:
  /// @param out must outlive this object.
  explicit ProgressLine(std::ostream& out, ProgressLineOptions options = {});

  /// Ends the line that is being redrawn, as finish() does.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Shows the state if it is time. Computes `seconds_left`, unless given, from
  /// the mean time of a step since the first update: the first step, which is
  /// slower than others, does not count.
  void update(Progress progress);

  /// Removes the line from the terminal, so that something else can be printed;
  /// the next update draws it again.
  void clear();

  /// Shows the last state if it was not shown, and ends the line.
  void finish();

 private:
  struct Start {
    double time_s;
    int64_t step;
  };

  void show(double now_s);

  std::ostream& out_;
  ProgressLineOptions options_;
  std::optional<Start> start_;
  std::optional<Progress> pending_; // Not shown yet.
  double shown_s_ = 0;
  bool is_open_ = false; // An unfinished line is on the terminal.
};

} // namespace tessera::engine
