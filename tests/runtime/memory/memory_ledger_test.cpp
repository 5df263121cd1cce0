// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/memory_ledger.h"

#include <gtest/gtest.h>

namespace tessera::runtime::memory_ledger_test {

// Of all devices but the CPU, the address of an empty tensor says nothing.
TEST(MemoryLedger, AllocatesNothingOnAnyDevice) {
  MemoryLedger ledger;
  for (const at::Device device : {at::Device(at::kCPU), at::Device("meta")}) {
    const at::Tensor empty =
        ledger.allocate(MemoryPurpose::kOptimizerState, 0, at::kFloat, device);
    EXPECT_EQ(empty.device(), device);
    EXPECT_EQ(empty.numel(), 0);
  }
  EXPECT_EQ(total_bytes(ledger.live_bytes()), 0);
}

TEST(MemoryLedger, CountsUntilTheLastCopyIsFreed) {
  MemoryLedger ledger;
  at::Tensor buffer =
      ledger.allocate(MemoryPurpose::kGradients, 16, at::kFloat, at::kCPU);
  const at::Tensor copy = buffer.narrow(0, 0, 4);
  buffer.reset();
  EXPECT_EQ(total_bytes(ledger.live_bytes()), 64);
}

TEST(MemoryLedger, TheTableHasARowForLibrariesWhereTheyTakeMemory) {
  MemoryBytes bytes{};
  EXPECT_EQ(memory_table("memory", bytes).find("libraries"), std::string::npos);
  bytes[static_cast<size_t>(MemoryPurpose::kLibraries)] = 3 << 20;
  const std::string table = memory_table("memory", bytes);
  EXPECT_NE(table.find("CUDA, libraries"), std::string::npos) << table;
  EXPECT_EQ(total_bytes(bytes), 3 << 20);
}

} // namespace tessera::runtime::memory_ledger_test
