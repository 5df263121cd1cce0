// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NodeMessage` is what the launchers of a job on several nodes tell each
// other.

#include <optional>
#include <string>
#include <string_view>

namespace tessera::runtime {

enum class NodeMessageKind {
  kAlive, ///< sign of life
  kHello, ///< member: node_rank, nnodes, nproc, text (host), version
  kRefuse, ///< leader: text; the launcher ends with this error
  kNotice, ///< leader: text, a line to show
  kStart, ///< leader: attempt, port, count; start the ranks
  kFailed, ///< member: text, exit_code, blames_peer, may_restart
  kSignal, ///< both: signal, count; a request to stop the job
  kEnd, ///< leader: text, a line to show; end the ranks
  kDone, ///< member: all ranks have ended; exit_code after a signal, or 0
  kExit ///< leader: exit_code of the job, text, a line to show
};

/// One line of JSON on the connection between two launchers. Which fields
/// count follows from the kind.
struct NodeMessage {
  NodeMessageKind kind = NodeMessageKind::kAlive;
  std::string text{};
  int node_rank = 0;
  int nnodes = 0;
  int nproc = 0;
  int version = 0;
  int attempt = 0;
  int port = 0;
  int exit_code = 0;
  int signal = 0;
  /// kSignal: how many times the job has been asked to stop; kStart: how many
  /// restarts there may be.
  int count = 0;
  bool blames_peer = false;
  bool may_restart = false;
};

/// The message as a line that ends in a newline.
std::string encoded(const NodeMessage& message);

/// The message of a line without its newline; nothing if it is malformed.
std::optional<NodeMessage> decoded(std::string_view line);

} // namespace tessera::runtime
