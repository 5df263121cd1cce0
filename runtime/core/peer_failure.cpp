// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/peer_failure.h"

#include "tessera/runtime/core/unique_fd.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace tessera::runtime {

void blame_peer() noexcept {
  const char* name = std::getenv(kLauncherSocketVariable);
  const char* rank = std::getenv("RANK");
  sockaddr_un address{};
  if (name == nullptr || rank == nullptr ||
      std::strlen(name) + 1 > sizeof(address.sun_path)) {
    return;
  }
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name, std::strlen(name));
  const auto bytes = static_cast<socklen_t>(
      offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name));
  // It is not an error if the launcher does not receive it.
  [[maybe_unused]] const auto sent = ::sendto(
      socket.get(),
      rank,
      std::strlen(rank),
      MSG_DONTWAIT | MSG_NOSIGNAL,
      reinterpret_cast<const sockaddr*>(&address),
      bytes);
}

} // namespace tessera::runtime
