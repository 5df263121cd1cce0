// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/cpu_transport.h"

#include "support/expect_error.h"
#include "support/ranks.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tessera::runtime::cpu_transport_test {

namespace {

std::string backend_name(World& world) {
  const auto backend = make_cpu_backend(
      world.store(), world.rank(), world.size(), world.options().timeout);
  // Gloo fails to connect to a rank that has left already.
  backend->barrier()->wait();
  return backend->getBackendName();
}

} // namespace

TEST(CpuTransport, RanksOfOneHostShareMemory) {
  tests::run_ranks(2, [](World& world) {
    ::unsetenv("TESSERA_TRANSPORT");
    EXPECT_EQ(backend_name(world), "shm");
  });
}

TEST(CpuTransport, IsForcedByTheEnvironment) {
  for (const std::string name : {"shm", "gloo"}) {
    tests::run_ranks(2, [&](World& world) {
      ::setenv("TESSERA_TRANSPORT", name.c_str(), 1);
      EXPECT_EQ(backend_name(world), name);
    });
  }
}

TEST(CpuTransport, RefusesAnUnknownName) {
  tests::run_ranks(2, [](World& world) {
    ::setenv("TESSERA_TRANSPORT", "smoke signals", 1);
    expect_error(
        [&] { backend_name(world); },
        {"TESSERA_TRANSPORT", "smoke signals", "'auto', 'shm' or 'gloo'"});
  });
}

TEST(CpuTransport, RefusesRanksThatWantDifferentThings) {
  tests::run_ranks(3, [](World& world) {
    ::setenv("TESSERA_TRANSPORT", world.rank() == 2 ? "gloo" : "shm", 1);
    expect_error(
        [&] { backend_name(world); },
        {"TESSERA_TRANSPORT", "'shm' on rank 0", "'gloo' on rank 2"});
  });
}

} // namespace tessera::runtime::cpu_transport_test
