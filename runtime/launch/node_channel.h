// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NodeChannel` is a connection between the launchers of two nodes.

#include "tessera/runtime/core/unique_fd.h"
#include "tessera/runtime/launch/node_message.h"

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

/// Sends and receives messages over TCP without blocking, and a sign of life
/// every second, so that the loss of a whole node, which closes no connection,
/// is noticed by its silence.
class NodeChannel {
 public:
  /// @param socket connected and non-blocking.
  explicit NodeChannel(UniqueFd socket);

  /// What to poll for; descriptor -1 once the connection is closed.
  pollfd poll_entry() const;
  /// Queues a message; flush() or receive() sends it.
  void send(const NodeMessage& message);
  /// Nothing is sent after the messages that are queued.
  void finish();
  /// Sends what is queued and returns the messages that have arrived. Call it
  /// at least once a second.
  std::vector<NodeMessage> receive();

  /// False once the other end is gone or sent what is not a message, and all
  /// messages before that were received.
  bool is_open() const {
    return socket_.is_open();
  }
  /// How long the other end has sent nothing, at the last receive().
  std::chrono::milliseconds silence() const;

 private:
  using Clock = std::chrono::steady_clock;
  void flush();

  UniqueFd socket_;
  std::string outgoing_;
  std::string incoming_;
  Clock::time_point last_sent_ = Clock::now();
  Clock::time_point last_received_ = Clock::now();
  Clock::time_point last_turn_ = Clock::now();
  bool finished_ = false;
};

/// Opens a socket that listens on all addresses of this host.
/// @throws Error when the port is in use.
UniqueFd listen_for_nodes(int port);

/// The next connection to a socket of listen_for_nodes(), if any.
std::optional<NodeChannel> accepted_channel(const UniqueFd& listener);

/// Connects to a host; waits at most `timeout` for each of its addresses.
/// @param error says what failed when nothing is returned.
std::optional<NodeChannel> connected_channel(
    const std::string& host,
    int port,
    std::chrono::milliseconds timeout,
    std::string& error);

/// The name of this host; "unknown" if it has none.
std::string this_host();

} // namespace tessera::runtime
