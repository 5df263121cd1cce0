// SPDX-License-Identifier: Apache-2.0
#pragma once
// A server on this host that answers as a test says, also wrongly.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/unique_fd.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

struct HttpRequest {
  std::string path; ///< with the query
  std::map<std::string, std::string> headers; ///< names in lower case

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct HttpAnswer {
  int status = 200;
  std::string body;
  std::vector<std::string> headers; ///< "Name: value"
  /// The connection ends after so many bytes of the body.
  std::optional<size_t> cut_after;
};

/// Answers each connection's one request, each in a thread of its own.
class HttpServer {
 public:
  using Answer = std::function<HttpAnswer(const HttpRequest&)>;

  explicit HttpServer(Answer answer) : answer_(std::move(answer)) {
    // A proxy of the machine that runs the tests does not know this host.
    ::setenv("no_proxy", "127.0.0.1", /*overwrite=*/1);
    ::setenv("NO_PROXY", "127.0.0.1", /*overwrite=*/1);
    listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    TESSERA_CHECK(
        ::bind(listener_.get(), any, size) == 0 &&
            ::listen(listener_.get(), 64) == 0 &&
            ::getsockname(listener_.get(), any, &size) == 0,
        "cannot listen on this host");
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this] { accept_all(); });
  }

  ~HttpServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    connections_.clear();
  }

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url() const {
    return formatted("http://127.0.0.1:{}", port_);
  }
  /// All requests so far, in the order of their arrival.
  std::vector<HttpRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  /// How many of them had this in their path.
  int64_t count(const std::string& part) const {
    const auto all = requests();
    return std::count_if(all.begin(), all.end(), [&](const HttpRequest& each) {
      return each.path.find(part) != std::string::npos;
    });
  }

 private:
  void accept_all() {
    while (true) {
      const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) {
        return;
      }
      connections_.emplace_back([this, fd] { serve(runtime::UniqueFd(fd)); });
    }
  }

  void serve(const runtime::UniqueFd& fd) {
    std::string text;
    std::vector<char> chunk(4096);
    while (text.find("\r\n\r\n") == std::string::npos) {
      const ssize_t count = ::recv(fd.get(), chunk.data(), chunk.size(), 0);
      if (count <= 0) {
        return;
      }
      text.append(chunk.data(), static_cast<size_t>(count));
    }
    const HttpRequest request = parsed(text);
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const HttpAnswer answer = answer_(request);
    std::string head = formatted(
        "HTTP/1.1 {} Status\r\nConnection: close\r\nContent-Length: {}\r\n",
        answer.status,
        answer.body.size());
    for (const std::string& header : answer.headers) {
      head += header + "\r\n";
    }
    const size_t sent =
        std::min(answer.body.size(), answer.cut_after.value_or(SIZE_MAX));
    send_all(fd.get(), head + "\r\n" + answer.body.substr(0, sent));
  }

  static HttpRequest parsed(const std::string& text) {
    HttpRequest request;
    size_t at = text.find("\r\n");
    const std::string line = text.substr(0, at);
    const size_t begin = line.find(' ') + 1;
    request.path = line.substr(begin, line.find(' ', begin) - begin);
    while (at + 2 < text.size()) {
      const size_t end = text.find("\r\n", at + 2);
      const std::string header = text.substr(at + 2, end - at - 2);
      const size_t colon = header.find(": ");
      if (colon == std::string::npos) {
        break;
      }
      std::string name = header.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(), ::tolower);
      request.headers[name] = header.substr(colon + 2);
      at = end;
    }
    return request;
  }

  static void send_all(int fd, const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const ssize_t count =
          ::send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (count <= 0) {
        return;
      }
      at += static_cast<size_t>(count);
    }
  }

  Answer answer_;
  runtime::UniqueFd listener_;
  uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::vector<HttpRequest> requests_;
  std::vector<std::jthread> connections_; ///< of accept_all()
  std::jthread thread_;
};

} // namespace tessera
