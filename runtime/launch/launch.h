// SPDX-License-Identifier: Apache-2.0
#pragma once
// Starts the ranks of a job on this machine and looks after them.

#include <chrono>
#include <string>
#include <vector>

namespace tessera {

struct LaunchOptions {
  /// Program, looked up on PATH, and its arguments.
  std::vector<std::string> command;
  /// Ranks to start.
  int nproc = 1;
  /// TCP port on 127.0.0.1 where the ranks meet; 0 picks a free one.
  int port = 0;
  /// Time between asking the ranks to end (SIGTERM) and killing them.
  std::chrono::milliseconds grace{5000};
  /// Puts "[rank 1] " before each line.
  bool prefix = true;
};

/// Runs `nproc` copies of a program with torchrun's environment (see
/// rank_environment) and returns when all have ended: 0, or the code of the
/// rank that failed, with 128 + signal for one that a signal killed, and 127
/// when the program cannot be executed.
///
/// [Note: whose exit code] When one rank fails, others fail of it, and may end
/// before it. Tessera's errors whose cause is another rank say so on a socket
/// that the launcher has opened (blame_peer()). The job's code is that of the
/// first rank that failed without having blamed another. Of ranks that end at
/// the same moment one that was killed counts as the cause. When a rank that
/// blames another ends first, the others are given three seconds to end by
/// themselves, so that the one to blame gets to say why; if none fails in that
/// time, the job's code is that of the first one that ended.
///
/// - Whole lines of their output are passed on. A line that a rank rewrites
///   with carriage returns shows its last state; on a terminal, rank 0's is
///   shown as it changes.
/// - SIGINT, SIGTERM and SIGHUP go to all ranks, which may take their time; a
///   second one gives them `grace`.
/// - When a rank has failed, or nobody reads the output any more, the other
/// ranks
///   are sent SIGTERM (unless they have been signalled already) and after
///   `grace` SIGKILL, with everything they started.
/// - Ranks have nothing on standard input.
///
/// Blocks. Call it from the main thread of a program with no other threads: it
/// forks, and takes the signals named above while it runs.
/// @throws Error on wrong options, and when processes or pipes cannot be made;
///     ranks that were started are then killed.
int launch(const LaunchOptions& options);

} // namespace tessera
