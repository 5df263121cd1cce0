// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/failure_socket.h"

#include "tessera/runtime/core/error.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>

namespace tessera::runtime {

FailureSocket::FailureSocket()
    : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  socklen_t bytes = sizeof(address);
  // If bound to a family only, it gets an unused name from the kernel.
  TESSERA_CHECK(
      fd_.is_open() && ::bind(fd_.get(), plain, sizeof(sa_family_t)) == 0 &&
          ::getsockname(fd_.get(), plain, &bytes) == 0,
      "cannot open a socket to the ranks: {}",
      std::strerror(errno));
  constexpr size_t kNameBegin = offsetof(sockaddr_un, sun_path) + 1;
  name_.assign(address.sun_path + 1, bytes - kNameBegin);
}

std::optional<int> FailureSocket::next() {
  std::array<char, 16> text;
  while (true) {
    const auto count = ::recv(fd_.get(), text.data(), text.size(), 0);
    if (count < 0) {
      return std::nullopt;
    }
    int rank = 0;
    const char* const end = text.data() + count;
    const auto [stop, code] = std::from_chars(text.data(), end, rank);
    if (code == std::errc() && stop == end) {
      return rank;
    }
  }
}

} // namespace tessera::runtime
