// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RankProcess` runs one rank as a child process.

#include "tessera/runtime/core/unique_fd.h"

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

/// How a process ended.
struct ProcessEnd {
  bool by_signal = false;
  /// The exit code or the signal number.
  int value = 0;

  bool is_success() const {
    return !by_signal && value == 0;
  }
  /// The exit code that a shell would report: 128 + signal for a signal.
  int exit_code() const;
  /// "exited with code 3", "was killed by signal 9 (SIGKILL)".
  std::string describe() const;
};

/// "2 (SIGINT)".
std::string describe_signal(int signal);

/// A running rank. It leads a process group of its own, so that processes it
/// starts are signaled too; standard output and standard error are pipes, and
/// standard input is empty. The kernel kills the leader when the launcher dies
/// for any reason.
class RankProcess {
 public:
  /// Starts the rank; returns once its program runs.
  /// @param command program (looked up on PATH) and arguments.
  /// @param environment "NAME=value" strings.
  /// @param mask the signal mask with which the program starts.
  /// @throws Error when the process cannot be created. exec_error() reports a
  ///   program that cannot be executed.
  RankProcess(
      const std::vector<std::string>& command,
      const std::vector<std::string>& environment,
      const sigset_t& mask);
  /// Kills the rest of the group and reaps the leader. Blocks until the leader
  /// has ended.
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
  /// The read ends of the pipes, non-blocking.
  UniqueFd& out() {
    return out_;
  }
  UniqueFd& err() {
    return err_;
  }

  /// How the leader ended, if it has. Does not block. The leader stays
  /// unreaped, so that its process group id is not reused.
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

} // namespace tessera::runtime
