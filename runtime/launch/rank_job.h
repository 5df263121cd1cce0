// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RankJob` is the poll loop behind launch().

#include "tessera/runtime/launch/blame_socket.h"
#include "tessera/runtime/launch/console.h"
#include "tessera/runtime/launch/launch.h"
#include "tessera/runtime/launch/line_prefixer.h"
#include "tessera/runtime/launch/port_reservation.h"
#include "tessera/runtime/launch/rank_process.h"
#include "tessera/runtime/launch/repeated_errors.h"
#include "tessera/runtime/launch/signal_scope.h"

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::runtime {

/// The ranks of one job from start to end. Single-threaded: output, signals,
/// ended ranks and deadlines are events of one poll loop.
class RankJob {
 public:
  explicit RankJob(const LaunchOptions& options);

  /// Starts the ranks, waits for all of them and returns the exit code of the
  /// job. Call it once.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Rank {
    Rank(
        int number,
        std::unique_ptr<RankProcess> started,
        std::string line_prefix,
        bool shows_progress);

    int number;
    std::string prefix;
    std::unique_ptr<RankProcess> process;
    // One per console stream.
    std::array<LinePrefixer, 2> prefixers;
    bool ended = false;
    // It has reported that another rank caused its failure.
    bool blames_peer = false;
  };

  bool start_ranks();
  bool is_over() const;
  void wait_for_events();
  void take_signals();
  void take_blames();
  void take_ended_ranks();
  void take_failure(Rank& rank);
  void keep_deadlines();
  void end_ranks();
  void pass_on(Rank& rank, ConsoleStream stream);
  void pass_on_all();
  void say(std::string_view text);
  void flush();
  void flush_to_the_end();

  LaunchOptions options_;
  SignalScope signals_;
  BlameSocket blames_;
  PortReservation port_;
  Console console_;
  std::vector<Rank> ranks_;
  RepeatedErrors errors_;
  int running_ = 0;
  int stop_signals_ = 0;
  int last_stop_signal_ = 0;
  std::optional<ProcessEnd> first_failure_;
  // A rank that ended as a signal asked it to.
  std::optional<ProcessEnd> stopped_;
  // Until then, a rank that fails by itself replaces first_failure_, which
  // blames another rank.
  std::optional<Clock::time_point> culprit_time_;
  // When to kill ranks that were asked to end.
  std::optional<Clock::time_point> kill_time_;
  bool killed_ = false;
  // When to stop waiting for output from processes that ended ranks left
  // behind.
  std::optional<Clock::time_point> linger_time_;
};

} // namespace tessera::runtime
