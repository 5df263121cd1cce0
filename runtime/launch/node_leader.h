// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NodeLeader` is the end of node 0's launcher of the connections to the
// launchers of the other nodes.

#include "tessera/runtime/launch/launch.h"
#include "tessera/runtime/launch/node_channel.h"
#include "tessera/runtime/launch/signal_scope.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::runtime {

/// Shows a line at once.
using ShowLine = std::function<void(std::string_view line)>;

/// [Note: several nodes] Each node has one launcher, which starts and watches
/// the ranks of that node. The launcher of node 0, the leader, listens on
/// --master-port; the others, the members, connect to it. Members report ranks
/// that failed and signals; the leader alone decides which failure ended the
/// job, tells all members to end their ranks, waits until they have, and then
/// either starts all ranks again or tells the members the exit code and the
/// reason. A closed connection and a silence longer than the limit are failures
/// of the whole node. A member that loses the leader ends its ranks by itself.
class NodeLeader {
 public:
  /// @throws Error when the port is in use.
  explicit NodeLeader(const LaunchOptions& options);

  /// Waits until all nodes have joined, and says every 10 s which have not.
  /// Returns the signal that ended the wait, if one did.
  /// @throws Error on options that differ between nodes, and naming the nodes
  ///   that have not joined in time; members end with the same error.
  std::optional<int> gather(SignalScope& signals, const ShowLine& show);

  /// Tells all nodes to start their ranks.
  void start(int attempt, int port);

  void add_poll_entries(std::vector<pollfd>& entries) const;
  /// Messages of the members: kFailed, also for nodes that are lost; kSignal;
  /// kDone. `node_rank` is that of the sender.
  std::vector<NodeMessage> take_messages();
  /// True while a node has ranks that have not ended.
  bool is_running() const;
  /// Sends a message to all nodes but one.
  void send_all(const NodeMessage& message, int except = 0);
  /// Sends a last message to all nodes and waits, for a few seconds at most,
  /// until they have received it.
  void finish(const NodeMessage& message);

 private:
  enum class NodeState { kMissing, kJoined, kRunning, kDone };
  struct Node {
    NodeState state = NodeState::kMissing;
    std::string host;
    std::unique_ptr<NodeChannel> channel;
  };

  void turn(std::vector<NodeMessage>& messages);
  std::string missing() const;
  /// Why the launcher that says hello cannot join; empty if it can.
  std::string objection(const NodeMessage& hello) const;
  std::string describe(int node_rank) const;

  LaunchOptions options_;
  std::string host_;
  UniqueFd listener_;
  // By node rank; the first, this one, has no channel.
  std::vector<Node> nodes_;
  // Connections that have not said hello, or were refused.
  std::vector<std::unique_ptr<NodeChannel>> strangers_;
  // The latest objection to a launcher that wanted to join.
  std::string objection_;
};

} // namespace tessera::runtime
