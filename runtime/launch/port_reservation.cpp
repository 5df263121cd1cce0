// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/port_reservation.h"

#include "tessera/runtime/core/error.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace tessera::runtime {

PortReservation::PortReservation(int port)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  TESSERA_CHECK(
      port >= 0 && port <= 65535,
      "port is {}; give a TCP port from 1 to 65535, or 0 for any free one",
      port);
  TESSERA_CHECK(
      socket_.is_open(), "cannot open a TCP socket: {}", std::strerror(errno));
  const int reuse = 1;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<in_port_t>(port));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  TESSERA_CHECK(
      ::bind(socket_.get(), generic, length) == 0,
      "cannot use port {} for the ranks to meet: {}; choose another one, or 0 for any free one",
      port,
      std::strerror(errno));
  TESSERA_CHECK(
      ::getsockname(socket_.get(), generic, &length) == 0,
      "cannot read the port that was chosen: {}",
      std::strerror(errno));
  port_ = ntohs(address.sin_port);
}

} // namespace tessera::runtime
