// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch()` starts the ranks of a job, or those of one node, and supervises
// them.

#include <chrono>
#include <string>
#include <vector>

namespace tessera::runtime {

/// The nodes of a job; each runs launch() once.
struct NodeOptions {
  int count = 1;
  /// Number of this node; 0 is the one that the others connect to.
  int rank = 0;
  /// Address of node 0, which all nodes reach. With one node, the ranks meet at
  /// 127.0.0.1 whatever it is.
  std::string master_addr;
  /// TCP port where the launcher of node 0 listens for those of other nodes.
  int master_port = 29500;
  /// Time for all nodes to join the job.
  std::chrono::milliseconds timeout{600000};
  /// A node that is not heard of for this time counts as lost. Each launcher
  /// sends a sign of life every second.
  std::chrono::milliseconds silence{30000};
};

struct LaunchOptions {
  /// Program (looked up on PATH) and arguments.
  std::vector<std::string> command;
  /// Number of ranks to start on this node; the same on all nodes.
  int nproc = 1;
  /// TCP port on node 0 for the rendezvous of the ranks; 0 picks a free one.
  int port = 0;
  /// Time between asking the ranks to end (SIGTERM) and killing them (SIGKILL).
  std::chrono::milliseconds grace{5000};
  /// Puts "[rank 1] " before each line.
  bool prefix = true;
  NodeOptions nodes{};
  /// How many times all ranks are started again after one has failed or a node
  /// was lost. Node 0's counts.
  int max_restarts = 0;
};

/// Runs `nproc` copies of a program with torchrun's environment (see
/// rank_environment) and returns when all have ended. Returns 0, or the exit
/// code of the rank that failed; 128 + signal if a signal killed it, 127 if the
/// program cannot be executed, 1 if the launcher of another node is lost. With
/// several nodes ([Note: several nodes]), all launchers return the same code
/// once the ranks of all nodes have ended.
///
/// [Note: whose exit code] When one rank fails, others fail as a consequence,
/// possibly earlier. Tessera reports errors caused by another rank on a socket
/// that the launcher opens (blame_peer()). The exit code of the job is that of
/// the first rank that failed without blaming another. Among ranks that end at
/// the same moment, one that was killed by a signal counts as the cause. If a
/// rank that blames another ends first, the other ranks get three seconds to
/// end by themselves, so that the cause can report its error; if none of them
/// fails in that time, the exit code is that of the first rank that ended.
///
/// - Output is forwarded in whole lines. A line that is rewritten with carriage
///   returns appears in its final state; on a terminal, that of rank 0 is
///   updated as it changes.
/// - SIGINT, SIGTERM and SIGHUP are forwarded to all ranks, which may take any
///   time to end; after a second signal they have `grace`. A rank that then
///   exits with code 128 + signal has not failed.
/// - When a rank has failed, or nothing reads the output any more, the other
///   ranks get SIGTERM (unless they were signaled already) and after `grace`
///   SIGKILL, with all processes they started.
/// - Standard input of the ranks is empty.
/// - With `max_restarts`, all ranks are started again after such a failure,
///   unless a signal has asked the job to end or the program cannot be
///   executed.
///
/// Blocks. Call it from the main thread of a program without other threads: it
/// forks, and handles the signals above while it runs.
/// @throws Error on invalid options, and when processes or pipes cannot be
///   created; ranks that were started are then killed. With several nodes, also
///   on options that differ between nodes and on nodes that do not join in
///   time.
int launch(const LaunchOptions& options);

} // namespace tessera::runtime
