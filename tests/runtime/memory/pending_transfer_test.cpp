// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/pending_transfer.h"

#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace tessera::runtime::pending_transfer_test {

namespace {

struct Calls {
  int issued = 0;
  int waits = 0;
};

class Counted : public PendingTransfer::Work {
 public:
  explicit Counted(Calls& calls) : calls_(calls) {}
  void wait_issued() override {
    ++calls_.issued;
  }
  void wait() override {
    ++calls_.waits;
  }

 private:
  Calls& calls_;
};

} // namespace

TEST(PendingTransfer, TheHostWaitsUnlessItIsReleased) {
  Calls calls;
  {
    PendingTransfer transfer(std::make_shared<Counted>(calls));
    transfer.wait_issued();
    transfer.release();
    EXPECT_FALSE(transfer.pending());
  }
  EXPECT_EQ(calls.issued, 1);
  EXPECT_EQ(calls.waits, 0);
  { const PendingTransfer transfer(std::make_shared<Counted>(calls)); }
  EXPECT_EQ(calls.waits, 1);
}

TEST(PendingTransfer, IsReleasedWhenItIsIssued) {
  Calls calls;
  PendingTransfer transfer(std::make_shared<Counted>(calls));
  transfer.release_issued();
  EXPECT_FALSE(transfer.pending());
  EXPECT_EQ(calls.issued, 1);
  EXPECT_EQ(calls.waits, 0);
}

TEST(PendingTransfer, OfSeveralTheFirstErrorIsThrown) {
  class Failing : public PendingTransfer::Work {
   public:
    void wait_issued() override {}
    void wait() override {
      TESSERA_FAIL("lost");
    }
  };
  Calls calls;
  std::vector<PendingTransfer> transfers;
  for (int i = 0; i < 2; ++i) {
    transfers.emplace_back(std::make_shared<Counted>(calls));
  }
  wait_all(transfers);
  EXPECT_EQ(calls.waits, 2);
  EXPECT_TRUE(transfers.empty());
  transfers.emplace_back(std::make_shared<Failing>());
  transfers.emplace_back(std::make_shared<Counted>(calls));
  EXPECT_THROW(wait_all(transfers), Error);
  EXPECT_EQ(calls.waits, 2);
  wait_all(transfers);
  EXPECT_EQ(calls.waits, 3);
}

} // namespace tessera::runtime::pending_transfer_test
