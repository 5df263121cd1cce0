// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/host_identity.h"

#include <unistd.h>

#include <fstream>

namespace tessera::runtime {

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::string host(256, '\0');
  ::gethostname(host.data(), host.size() - 1);
  std::string processes(256, '\0');
  const ssize_t length =
      ::readlink("/proc/self/ns/pid", processes.data(), processes.size());
  processes.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return std::string(host.c_str()) + " (boot " + boot + ", user " +
         std::to_string(::geteuid()) + ", " + processes + ")";
}

} // namespace tessera::runtime
