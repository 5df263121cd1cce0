// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RankJob` is the poll loop behind launch().

#include "tessera/runtime/launch/console.h"
#include "tessera/runtime/launch/failure_socket.h"
#include "tessera/runtime/launch/launch.h"
#include "tessera/runtime/launch/line_prefixer.h"
#include "tessera/runtime/launch/node_leader.h"
#include "tessera/runtime/launch/node_member.h"
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

/// The ranks of one job on this node from start to end, and on node 0 the
/// decision why the job has ended. Single-threaded: output, signals, ended
/// ranks, messages of other nodes and deadlines are events of one poll loop.
class RankJob {
 public:
  explicit RankJob(const LaunchOptions& options);

  /// Starts the ranks, also again if they may restart, waits for all of them
  /// and returns the exit code of the job. Call it once.
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

  /// Why the job ends before its ranks have succeeded.
  struct Failure {
    std::string text;
    int exit_code = 1;
    bool blames_peer = false;
    bool may_restart = true;
  };

  /// Waits until all nodes have joined; returns the exit code of the job if it
  /// ends instead.
  std::optional<int> meet_nodes();
  void run_ranks();
  /// Returns the exit code of the job, unless node 0 determines it or the ranks
  /// are to be started again.
  std::optional<int> conclude();
  int first_rank() const;
  std::string describe(const Rank& rank) const;
  /// "; rank 1 (pid 7) had ended with code 0": the ranks of this node that were
  /// finished before others. "" if there is none.
  std::string early_ends() const;
  void start_ranks();
  bool is_over() const;
  void wait_for_events();
  void take_signals();
  void take_blames();
  void take_ended_ranks();
  void take_failure(const Failure& failure);
  void take_messages();
  void stop(int signal, int count);
  void forward_signal(int signal, int sender);
  bool is_any_node_running() const;
  void end_job(const std::string& line);
  void keep_deadlines();
  void end_ranks();
  void pass_on(Rank& rank, ConsoleStream stream);
  void pass_on_all();
  void log_text(std::string_view text);
  void flush();
  void flush_to_the_end();

  LaunchOptions options_;
  SignalScope signals_;
  FailureSocket blames_;
  // Of node 0 if there are several, and of the others.
  std::unique_ptr<NodeLeader> leader_;
  std::unique_ptr<NodeMember> member_;
  // Only on node 0.
  std::optional<PortReservation> reservation_;
  int port_ = 0;
  // How many times the ranks have been started before.
  int attempt_ = 0;
  Console console_;
  std::vector<Rank> ranks_;
  RepeatedErrors errors_;
  int running_ = 0;
  int stop_signals_ = 0;
  int last_stop_signal_ = 0;
  // When another node asked for the latest stop.
  std::optional<Clock::time_point> remote_stop_time_;
  std::optional<Failure> first_failure_;
  // The exit code of ranks that ended as a signal asked them to, or 0.
  int stopped_code_ = 0;
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
