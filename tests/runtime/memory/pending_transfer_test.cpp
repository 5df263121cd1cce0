// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/pending_transfer.h"

#include <gtest/gtest.h>

#include <memory>

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

} // namespace tessera::runtime::pending_transfer_test
