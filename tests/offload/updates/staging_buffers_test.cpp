// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/staging_buffers.h"

#include "tessera/runtime/memory/memory_ledger.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace tessera::offload::staging_buffers_test {

namespace {

constexpr int64_t kBytes = 4096;

/// A copy from a buffer that ends when somebody waits for it.
class Leaving : public runtime::PendingTransfer::Work {
 public:
  explicit Leaving(bool& ended) : ended_(ended) {}
  void wait_issued() override {}
  void wait() override {
    ended_ = true;
  }

 private:
  bool& ended_;
};

} // namespace

TEST(StagingBuffers, ABufferIsFreeWhenWhatItHeldHasLeft) {
  MemoryLedger ledger;
  HostMemory memory({}, ledger);
  StagingBuffers stage;
  for (int64_t i = 0; i < StagingBuffers::kBuffers; ++i) {
    stage.need(kBytes);
  }
  stage.allocate(memory);
  bool ended = false;
  std::vector<runtime::PendingTransfer> leaving;
  leaving.emplace_back(std::make_shared<Leaving>(ended));
  auto buffer = stage.take(kBytes);
  const void* const first = buffer.get();
  stage.give_back(std::move(buffer), std::move(leaving));
  // The longest idle comes first.
  for (int64_t i = 1; i < StagingBuffers::kBuffers; ++i) {
    stage.give_back(stage.take(kBytes), {});
    EXPECT_FALSE(ended);
  }
  const auto again = stage.take(kBytes);
  EXPECT_EQ(again.get(), first);
  EXPECT_TRUE(ended);
}

} // namespace tessera::offload::staging_buffers_test
