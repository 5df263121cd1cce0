// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/port_reservation.h"

#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

namespace tessera::runtime::port_reservation_test {

namespace {

/// Binds as a server would; the descriptor is closed when it cannot.
UniqueFd bind_to(int port, bool reuse) {
  UniqueFd server(::socket(AF_INET6, SOCK_STREAM, 0));
  const int flag = reuse ? 1 : 0;
  ::setsockopt(server.get(), SOL_SOCKET, SO_REUSEADDR, &flag, sizeof(flag));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<in_port_t>(port));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(server.get(), generic, sizeof(address)) != 0 ||
      ::listen(server.get(), 1) != 0) {
    server.reset();
  }
  return server;
}

} // namespace

TEST(PortReservation, LetsRank0ListenAndKeepsOthersAway) {
  const PortReservation reservation(0);
  EXPECT_GT(reservation.port(), 0);
  EXPECT_FALSE(bind_to(reservation.port(), /*reuse=*/false).is_open());
  EXPECT_TRUE(bind_to(reservation.port(), /*reuse=*/true).is_open());
}

TEST(PortReservation, NamesAPortThatIsTaken) {
  const int port = PortReservation(0).port();
  const UniqueFd server = bind_to(port, /*reuse=*/true);
  ASSERT_TRUE(server.is_open());
  try {
    const PortReservation reservation(port);
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("port " + std::to_string(port)),
        std::string::npos)
        << error.what();
  }
}

TEST(PortReservation, RefusesNumbersThatAreNoPort) {
  EXPECT_THROW(PortReservation(-1), Error);
  EXPECT_THROW(PortReservation(65536), Error);
}

} // namespace tessera::runtime::port_reservation_test
