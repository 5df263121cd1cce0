// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/communicator.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <string>

namespace tessera {

namespace {

// Two threads, so that an all-gather and a reduction can overlap.
constexpr int kGlooThreads = 2;

std::shared_ptr<gloo::transport::Device> make_gloo_device() {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  const char* master = std::getenv("MASTER_ADDR");
  const std::string address = master ? master : "127.0.0.1";
  if (address == "localhost" || address.rfind("127.", 0) == 0) {
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

} // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->threads = kGlooThreads;
  options->devices.push_back(make_gloo_device());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      store, rank, size, options);
}

} // namespace tessera
