// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/node_leader.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/launch/node_member.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace tessera::runtime {

namespace {

using NodeClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string seconds_text(milliseconds duration) {
  return std::to_string(duration.count() / 1000) + " s";
}

} // namespace

NodeLeader::NodeLeader(const LaunchOptions& options)
    : options_(options),
      host_(this_host()),
      listener_(listen_for_nodes(options.nodes.master_port)),
      nodes_(static_cast<std::size_t>(options.nodes.count)) {
  nodes_[0].state = NodeState::kJoined;
  nodes_[0].host = host_;
}

std::optional<int> NodeLeader::gather(
    SignalScope& signals,
    const ShowLine& show) {
  const auto begin = NodeClock::now();
  auto next_notice = begin + kNodeNotice;
  for (Node& node : nodes_) {
    if (node.state == NodeState::kDone) {
      node.state = NodeState::kJoined;
    }
  }
  objection_.clear();
  while (true) {
    std::vector<NodeMessage> messages;
    turn(messages);
    for (const NodeMessage& message : messages) {
      if (message.kind == NodeMessageKind::kSignal) {
        return message.signal;
      }
    }
    const std::string absent = missing();
    if (objection_.empty() && absent.empty()) {
      return std::nullopt;
    }
    const auto now = NodeClock::now();
    const auto waited = std::chrono::duration_cast<milliseconds>(now - begin);
    std::string error = objection_;
    if (error.empty() && waited >= options_.nodes.timeout) {
      error = formatted(
          "{} of {} did not join the job at {}:{} within {}; start one `tessera launch` per node, with the same --nnodes, --master-addr and --master-port, and check that the nodes can reach that address",
          absent,
          options_.nodes.count,
          options_.nodes.master_addr,
          options_.nodes.master_port,
          seconds_text(options_.nodes.timeout));
    }
    if (!error.empty()) {
      finish({.kind = NodeMessageKind::kRefuse, .text = error});
      throw Error(error);
    }
    if (now >= next_notice) {
      next_notice += kNodeNotice;
      const std::string line = formatted(
          "waiting for {} of {} to join the job at {}:{} for {}",
          absent,
          options_.nodes.count,
          options_.nodes.master_addr,
          options_.nodes.master_port,
          seconds_text(waited));
      show(line);
      send_all({.kind = NodeMessageKind::kNotice, .text = line});
    }
    std::vector<pollfd> entries{{signals.fd(), POLLIN, 0}};
    add_poll_entries(entries);
    ::poll(entries.data(), entries.size(), kNodeTurnMs);
    while (const int signal = signals.next()) {
      if (signal != SIGCHLD) {
        return signal;
      }
    }
  }
}

void NodeLeader::start(int attempt, int port) {
  for (Node& node : nodes_) {
    if (node.channel != nullptr) {
      node.state = NodeState::kRunning;
    }
  }
  send_all(
      {.kind = NodeMessageKind::kStart,
       .attempt = attempt,
       .port = port,
       .count = options_.max_restarts});
}

void NodeLeader::add_poll_entries(std::vector<pollfd>& entries) const {
  entries.push_back({listener_.get(), POLLIN, 0});
  for (const Node& node : nodes_) {
    if (node.channel != nullptr) {
      entries.push_back(node.channel->poll_entry());
    }
  }
  for (const auto& stranger : strangers_) {
    entries.push_back(stranger->poll_entry());
  }
}

std::vector<NodeMessage> NodeLeader::take_messages() {
  std::vector<NodeMessage> messages;
  turn(messages);
  return messages;
}

bool NodeLeader::is_running() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return node.state == NodeState::kRunning;
  });
}

void NodeLeader::send_all(const NodeMessage& message, int except) {
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    if (nodes_[i].channel != nullptr && static_cast<int>(i) != except) {
      nodes_[i].channel->send(message);
    }
  }
}

void NodeLeader::finish(const NodeMessage& message) {
  constexpr milliseconds kPatience{5000};
  send_all(message);
  for (Node& node : nodes_) {
    if (node.channel != nullptr) {
      node.channel->finish();
    }
  }
  // Closing at once could discard what was sent: members close first.
  const auto deadline = NodeClock::now() + kPatience;
  while (NodeClock::now() < deadline) {
    std::vector<NodeMessage> ignored;
    std::vector<pollfd> entries;
    for (const Node& node : nodes_) {
      if (node.channel != nullptr) {
        node.channel->receive();
        entries.push_back(node.channel->poll_entry());
      }
    }
    for (const auto& stranger : strangers_) {
      stranger->receive();
      entries.push_back(stranger->poll_entry());
    }
    if (std::none_of(entries.begin(), entries.end(), [](const pollfd& entry) {
          return entry.fd >= 0;
        })) {
      return;
    }
    ::poll(entries.data(), entries.size(), kNodeTurnMs);
  }
}

void NodeLeader::turn(std::vector<NodeMessage>& messages) {
  while (auto channel = accepted_channel(listener_)) {
    strangers_.push_back(std::make_unique<NodeChannel>(*std::move(channel)));
  }
  for (auto& stranger : strangers_) {
    const auto received = stranger->receive();
    if (received.empty()) {
      continue;
    }
    const NodeMessage& hello = received.front();
    const std::string reason = objection(hello);
    if (reason.empty()) {
      Node& node = nodes_[static_cast<std::size_t>(hello.node_rank)];
      node = {NodeState::kJoined, hello.text, std::move(stranger)};
    } else {
      objection_ = reason;
      stranger->send({.kind = NodeMessageKind::kRefuse, .text = reason});
      stranger->finish();
    }
  }
  std::erase_if(strangers_, [&](const auto& stranger) {
    return stranger == nullptr || !stranger->is_open() ||
           stranger->silence() > options_.nodes.silence;
  });
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (node.channel == nullptr) {
      continue;
    }
    for (NodeMessage& message : node.channel->receive()) {
      message.node_rank = static_cast<int>(i);
      if (message.kind == NodeMessageKind::kDone) {
        node.state = NodeState::kDone;
      }
      messages.push_back(std::move(message));
    }
    const bool silent = node.channel->silence() > options_.nodes.silence;
    if (node.channel->is_open() && !silent) {
      continue;
    }
    if (node.state == NodeState::kRunning) {
      messages.push_back(
          {.kind = NodeMessageKind::kFailed,
           .text = "the launcher of " + describe(static_cast<int>(i)) +
                   (silent ? " has been silent for " +
                                 seconds_text(options_.nodes.silence) +
                                 ", as if the node or its network were down"
                           : " has ended or was killed: its connection is "
                             "closed"),
           .node_rank = static_cast<int>(i),
           .exit_code = 1,
           .may_restart = true});
    }
    node = {};
  }
}

std::string NodeLeader::missing() const {
  std::string list;
  int count = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state == NodeState::kMissing) {
      list += (list.empty() ? "" : ", ") + std::to_string(i);
      ++count;
    }
  }
  return list.empty() ? "" : (count == 1 ? "node " : "nodes ") + list;
}

std::string NodeLeader::objection(const NodeMessage& hello) const {
  const NodeOptions& nodes = options_.nodes;
  if (hello.kind != NodeMessageKind::kHello ||
      hello.version != kNodeProtocolVersion) {
    return formatted(
        "the launcher of node 0 ({}) and that of another node are of different versions; install the same one on all nodes",
        host_);
  }
  const auto differ = [&](const char* option, int other, int local) {
    return formatted(
        "node {} ({}) was started with {} {}, node 0 ({}) with {} {}; give the same on all nodes",
        hello.node_rank,
        hello.text,
        option,
        other,
        host_,
        option,
        local);
  };
  if (hello.nnodes != nodes.count) {
    return differ("--nnodes", hello.nnodes, nodes.count);
  }
  if (hello.nproc != options_.nproc) {
    return differ("--nproc", hello.nproc, options_.nproc);
  }
  if (hello.node_rank < 0 || hello.node_rank >= nodes.count) {
    return formatted(
        "a launcher on {} has --node-rank {}; give 0 to {}",
        hello.text,
        hello.node_rank,
        nodes.count - 1);
  }
  const Node& known = nodes_[static_cast<std::size_t>(hello.node_rank)];
  if (known.state != NodeState::kMissing) {
    return formatted(
        "launchers on {} and on {} both have --node-rank {}; give each node another one, and each job another --master-port",
        known.host,
        hello.text,
        hello.node_rank);
  }
  return "";
}

std::string NodeLeader::describe(int node_rank) const {
  const int first = node_rank * options_.nproc;
  const std::string ranks =
      options_.nproc == 1 ? "rank " + std::to_string(first)
                          : "ranks " + std::to_string(first) + " to " +
                                std::to_string(first + options_.nproc - 1);
  return formatted(
      "node {} ({}, {})",
      node_rank,
      nodes_[static_cast<std::size_t>(node_rank)].host,
      ranks);
}

} // namespace tessera::runtime
