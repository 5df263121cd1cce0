// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/node_channel.h"

#include "tessera/runtime/core/error.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace tessera::runtime {

namespace {

constexpr std::chrono::milliseconds kSignOfLife{1000};
// Longer lines are not from a launcher.
constexpr std::size_t kLongestMessage = 1 << 16;

void set_flag(int socket, int level, int name) {
  const int on = 1;
  ::setsockopt(socket, level, name, &on, sizeof(on));
}

/// Binds and listens; leaves errno.
bool listens(int socket, const sockaddr* address, socklen_t bytes) {
  constexpr int kBacklog = 1024;
  set_flag(socket, SOL_SOCKET, SO_REUSEADDR);
  return ::bind(socket, address, bytes) == 0 && ::listen(socket, kBacklog) == 0;
}

/// Whether a connection is made in time; leaves errno.
bool connects(
    int socket,
    const addrinfo& address,
    std::chrono::milliseconds timeout) {
  if (::connect(socket, address.ai_addr, address.ai_addrlen) == 0) {
    return true;
  }
  if (errno != EINPROGRESS) {
    return false;
  }
  pollfd entry{socket, POLLOUT, 0};
  if (::poll(&entry, 1, static_cast<int>(timeout.count())) != 1) {
    errno = ETIMEDOUT;
    return false;
  }
  socklen_t bytes = sizeof(errno);
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &errno, &bytes);
  return errno == 0;
}

} // namespace

NodeChannel::NodeChannel(UniqueFd socket) : socket_(std::move(socket)) {
  set_flag(socket_.get(), IPPROTO_TCP, TCP_NODELAY);
}

pollfd NodeChannel::poll_entry() const {
  const bool writes = !outgoing_.empty();
  return {
      socket_.get(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0};
}

void NodeChannel::send(const NodeMessage& message) {
  if (socket_.is_open() && !finished_) {
    outgoing_ += encoded(message);
    last_sent_ = Clock::now();
    flush();
  }
}

void NodeChannel::finish() {
  finished_ = true;
  flush();
}

std::vector<NodeMessage> NodeChannel::receive() {
  std::vector<NodeMessage> messages;
  std::array<char, 1 << 14> bytes;
  last_turn_ = Clock::now();
  bool ended = !socket_.is_open();
  while (!ended) {
    const auto count = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      break;
    }
    ended = count <= 0;
    if (count > 0) {
      last_received_ = last_turn_;
      incoming_.append(bytes.data(), static_cast<std::size_t>(count));
    }
    while (true) {
      const auto end = incoming_.find('\n');
      if (end == std::string::npos) {
        ended |= incoming_.size() > kLongestMessage;
        break;
      }
      auto message = decoded(std::string_view(incoming_).substr(0, end));
      incoming_.erase(0, end + 1);
      if (!message) {
        ended = true;
        break;
      }
      if (message->kind != NodeMessageKind::kAlive) {
        messages.push_back(*std::move(message));
      }
    }
  }
  if (ended) {
    socket_.reset();
  } else if (last_turn_ - last_sent_ >= kSignOfLife) {
    send({});
  } else {
    flush();
  }
  return messages;
}

std::chrono::milliseconds NodeChannel::silence() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      last_turn_ - last_received_);
}

void NodeChannel::flush() {
  while (socket_.is_open() && !outgoing_.empty()) {
    const auto count =
        ::send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (count < 0) {
      // receive() notices when the other end is gone.
      break;
    }
    outgoing_.erase(0, static_cast<std::size_t>(count));
  }
  if (finished_ && socket_.is_open() && outgoing_.empty()) {
    ::shutdown(socket_.get(), SHUT_WR);
  }
}

UniqueFd listen_for_nodes(int port) {
  constexpr int kType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const auto number = htons(static_cast<in_port_t>(port));
  UniqueFd socket(::socket(AF_INET6, kType, 0));
  const int off = 0;
  ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  sockaddr_in6 both{};
  both.sin6_family = AF_INET6;
  both.sin6_port = number;
  if (socket.is_open() &&
      listens(socket.get(), reinterpret_cast<sockaddr*>(&both), sizeof(both))) {
    return socket;
  }
  // IPv6 may be switched off.
  socket.reset(::socket(AF_INET, kType, 0));
  sockaddr_in old{};
  old.sin_family = AF_INET;
  old.sin_addr.s_addr = htonl(INADDR_ANY);
  old.sin_port = number;
  TESSERA_CHECK(
      socket.is_open() &&
          listens(socket.get(), reinterpret_cast<sockaddr*>(&old), sizeof(old)),
      "cannot listen on port {} (--master-port) for the launchers of the other nodes: {}; choose another port on all nodes",
      port,
      std::strerror(errno));
  return socket;
}

std::optional<NodeChannel> accepted_channel(const UniqueFd& listener) {
  UniqueFd socket(::accept4(
      listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_open()) {
    return std::nullopt;
  }
  return NodeChannel(std::move(socket));
}

std::optional<NodeChannel> connected_channel(
    const std::string& host,
    int port,
    std::chrono::milliseconds timeout,
    std::string& error) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(
      host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (failure != 0) {
    error = ::gai_strerror(failure);
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(
      found, ::freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr;
       address = address->ai_next) {
    UniqueFd socket(::socket(
        address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.is_open() && connects(socket.get(), *address, timeout)) {
      return NodeChannel(std::move(socket));
    }
    error = std::strerror(errno);
  }
  return std::nullopt;
}

std::string this_host() {
  std::array<char, 256> name{};
  const bool known = ::gethostname(name.data(), name.size() - 1) == 0;
  return known && name[0] != '\0' ? name.data() : "unknown";
}

} // namespace tessera::runtime
