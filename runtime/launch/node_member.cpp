// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/node_member.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/launch/rank_process.h"

#include <csignal>
#include <utility>

namespace tessera::runtime {

namespace {

std::int64_t seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::steady_clock::now() - begin)
      .count();
}

} // namespace

NodeMember::NodeMember(const LaunchOptions& options)
    : options_(options),
      begin_(std::chrono::steady_clock::now()),
      next_notice_(begin_ + kNodeNotice) {}

NodeMessage NodeMember::next_order(
    SignalScope& signals,
    const ShowLine& show,
    int& stop_signals) {
  while (true) {
    if (!channel_) {
      connect(show);
    }
    std::vector<NodeMessage> messages = take_messages();
    for (auto next = messages.begin(); next != messages.end(); ++next) {
      NodeMessage& message = *next;
      switch (message.kind) {
        case NodeMessageKind::kStart:
        case NodeMessageKind::kExit:
          pending_.assign(next + 1, messages.end());
          return message;
        case NodeMessageKind::kRefuse:
          throw Error(message.text);
        case NodeMessageKind::kNotice:
        case NodeMessageKind::kEnd:
          show(message.text);
          break;
        default:
          break;
      }
    }
    TESSERA_CHECK(!channel_ || loss().empty(), "{}", loss());
    std::vector<pollfd> entries{{signals.fd(), POLLIN, 0}};
    add_poll_entries(entries);
    ::poll(entries.data(), entries.size(), kNodeTurnMs);
    while (const int signal = signals.next()) {
      if (signal == SIGCHLD) {
        continue;
      }
      ++stop_signals;
      if (!channel_) {
        const ProcessEnd end{true, signal};
        return {
            .kind = NodeMessageKind::kExit,
            .text = "ended by signal " + describe_signal(signal),
            .exit_code = end.exit_code()};
      }
      show("telling node 0 about signal " + describe_signal(signal));
      send(
          {.kind = NodeMessageKind::kSignal,
           .signal = signal,
           .count = stop_signals});
    }
  }
}

void NodeMember::add_poll_entries(std::vector<pollfd>& entries) const {
  if (channel_) {
    entries.push_back(channel_->poll_entry());
  }
}

std::vector<NodeMessage> NodeMember::take_messages() {
  std::vector<NodeMessage> messages = std::exchange(pending_, {});
  if (channel_) {
    auto received = channel_->receive();
    messages.insert(messages.end(), received.begin(), received.end());
  }
  return messages;
}

void NodeMember::send(const NodeMessage& message) {
  channel_->send(message);
}

std::string NodeMember::loss() const {
  const NodeOptions& nodes = options_.nodes;
  const bool silent = channel_->silence() > nodes.silence;
  if (channel_->is_open() && !silent) {
    return "";
  }
  return formatted(
      "the launcher of node 0 ({}:{}) {}",
      nodes.master_addr,
      nodes.master_port,
      silent
          ? formatted(
                "has been silent for {} s, as if the node or its network were down",
                nodes.silence.count() / 1000)
          : "has ended or was killed: its connection is closed");
}

void NodeMember::connect(const ShowLine& show) {
  constexpr std::chrono::milliseconds kPerAddress{1000};
  const NodeOptions& nodes = options_.nodes;
  channel_ = connected_channel(
      nodes.master_addr, nodes.master_port, kPerAddress, error_);
  if (channel_) {
    channel_->send(
        {.kind = NodeMessageKind::kHello,
         .text = this_host(),
         .node_rank = nodes.rank,
         .nnodes = nodes.count,
         .nproc = options_.nproc,
         .version = kNodeProtocolVersion});
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  TESSERA_CHECK(
      now - begin_ < nodes.timeout,
      "node 0 could not be reached at {}:{} (--master-addr, --master-port) within {} s: {}; start its launcher, and check that this host can resolve and reach the address",
      nodes.master_addr,
      nodes.master_port,
      nodes.timeout.count() / 1000,
      error_);
  if (now >= next_notice_) {
    next_notice_ += kNodeNotice;
    show(formatted(
        "waiting for node 0 at {}:{} for {} s: {}",
        nodes.master_addr,
        nodes.master_port,
        seconds_since(begin_),
        error_));
  }
}

} // namespace tessera::runtime
