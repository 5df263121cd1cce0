// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NodeMember` is the end of another node's launcher of the connection to the
// launcher of node 0.

#include "tessera/runtime/launch/node_leader.h"

namespace tessera::runtime {

/// Launchers with other messages have another one.
inline constexpr int kNodeProtocolVersion = 1;
/// How often a launcher says for which node it waits.
inline constexpr std::chrono::seconds kNodeNotice{10};
/// Longest time between two looks at the connections.
inline constexpr int kNodeTurnMs = 250;

/// See [Note: several nodes].
class NodeMember {
 public:
  explicit NodeMember(const LaunchOptions& options);

  /// Joins the job, or waits after kDone, until node 0 says what to do next:
  /// kStart or kExit. Shows notices. Signals go to node 0; before this node has
  /// joined, they end the wait, as a kExit.
  /// @param stop_signals how many signals this launcher got; counted on.
  /// @throws Error when node 0 cannot be reached in time, refuses this node, or
  ///   is lost.
  NodeMessage next_order(
      SignalScope& signals,
      const ShowLine& show,
      int& stop_signals);

  void add_poll_entries(std::vector<pollfd>& entries) const;
  /// Messages of node 0 while ranks run: kNotice, kSignal, kEnd.
  std::vector<NodeMessage> take_messages();
  void send(const NodeMessage& message);
  /// Why the connection to node 0 counts as lost; empty while it does not.
  std::string loss() const;

 private:
  void connect(const ShowLine& show);

  LaunchOptions options_;
  std::optional<NodeChannel> channel_;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point next_notice_;
  std::string error_;
  // Arrived together with an order; for take_messages().
  std::vector<NodeMessage> pending_;
};

} // namespace tessera::runtime
