// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/rendezvous.h"

#include "support/expect_error.h"
#include "tessera/runtime/launch/port_reservation.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace tessera::runtime::rendezvous_test {

namespace {

using std::chrono::milliseconds;

/// Sets MASTER_ADDR and MASTER_PORT to a free port of this host.
class Rendezvous : public ::testing::Test {
 protected:
  Rendezvous() {
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", port().c_str(), 1);
  }
  ~Rendezvous() override {
    ::unsetenv("MASTER_ADDR");
    ::unsetenv("MASTER_PORT");
  }

  std::string port() const {
    return std::to_string(reservation_.port());
  }

 private:
  PortReservation reservation_{0};
};

} // namespace

TEST_F(Rendezvous, EndsWhenAllRanksHaveJoined) {
  std::vector<std::thread> ranks;
  // Rank 0 hosts the store: it stays until all have left.
  std::vector<c10::intrusive_ptr<c10d::Store>> stores(3);
  for (int rank = 2; rank >= 0; --rank) {
    ranks.emplace_back([rank, &stores] {
      auto& store = stores[static_cast<size_t>(rank)];
      store = join_store(rank, 3, milliseconds(20000));
      EXPECT_TRUE(store->check({"joined/0", "joined/1", "joined/2"}));
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

TEST_F(Rendezvous, NamesTheRanksThatDoNotCome) {
  std::thread other([] {
    expect_error(
        [] { join_store(2, 4, milliseconds(20000)); },
        {"rank 0 left before all 4 ranks had joined"});
  });
  expect_error(
      [] { join_store(0, 4, milliseconds(1500)); },
      {"ranks 1 and 3 of 4 did not join the job", "WORLD_SIZE"});
  other.join();
}

TEST_F(Rendezvous, SaysWhereRankZeroWasExpected) {
  const std::string address = "127.0.0.1:" + port();
  expect_error(
      [] { join_store(1, 2, milliseconds(300)); },
      {"rank 0 could not be reached at", address.c_str(), "firewall"});
}

TEST_F(Rendezvous, NamesAHostThatIsUnknown) {
  ::setenv("MASTER_ADDR", "no.such.host.invalid", 1);
  for (const int rank : {0, 1}) {
    expect_error(
        [&] { join_store(rank, 2, milliseconds(300)); },
        {"MASTER_ADDR is 'no.such.host.invalid'", "cannot resolve"});
  }
}

TEST_F(Rendezvous, NamesTheVariableThatIsMissing) {
  ::unsetenv("MASTER_PORT");
  expect_error([] { join_store(1, 2, milliseconds(300)); }, {"MASTER_PORT"});
  ::unsetenv("MASTER_ADDR");
  expect_error([] { join_store(1, 2, milliseconds(300)); }, {"MASTER_ADDR"});
}

} // namespace tessera::runtime::rendezvous_test
