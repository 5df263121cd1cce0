// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank as a child process.

#include "tessera/runtime/core/unique_fd.h"

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// How a process ended.
struct ProcessEnd {
  bool by_signal = false;
  /// The exit code, or the signal.
  int value = 0;

  bool is_success() const {
    return !by_signal && value == 0;
  }
  /// The code that a shell would report: 128 + signal for a signal.
  int exit_code() const;
  /// "exited with code 3", "was killed by signal 9 (SIGKILL)".
  std::string describe() const;
};

/// "2 (SIGINT)".
std::string describe_signal(int signal);

/// A running rank: the leader of a process group of its own, so that what it
/// starts gets its signals too, with standard output and standard error on
/// pipes and nothing on standard input. The kernel kills the leader when the
/// launcher dies, however that dies.
class RankProcess {
 public:
  /// Starts the rank; returns once its program runs.
  /// @param command program (looked up on PATH) and arguments.
  /// @param environment "NAME=value" strings.
  /// @param mask the signal mask that the program starts with.
  /// @throws Error when the process cannot be made. A program that cannot be
  ///     executed is reported by exec_error().
  RankProcess(
      const std::vector<std::string>& command,
      const std::vector<std::string>& environment,
      const sigset_t& mask);
  /// Kills what is left of the group and reaps the leader. Blocks until the
  /// leader is gone.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  pid_t pid() const {
    return pid_;
  }
  /// The errno of a failed exec, or 0.
  int exec_error() const {
    return exec_error_;
  }
  /// The reading ends of the pipes, non-blocking.
  UniqueFd& out() {
    return out_;
  }
  UniqueFd& err() {
    return err_;
  }

  /// How the leader ended, if it has. Does not block, and leaves the leader
  /// unreaped so that the number of its group stays taken.
  const std::optional<ProcessEnd>& poll_end();
  /// Sends a signal to every process of the group.
  void signal_group(int signal) const;

 private:
  pid_t pid_ = -1;
  UniqueFd out_;
  UniqueFd err_;
  int exec_error_ = 0;
  std::optional<ProcessEnd> end_;
};

} // namespace tessera
