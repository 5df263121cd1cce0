// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/memory_ledger.h"

#include "tessera/runtime/memory/out_of_memory.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

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

TEST(MemoryLedger, SaysWhatDidNotFitUnderALimit) {
  MemoryLedger ledger;
  constexpr int64_t kLimit = 4 << 20;
  limit_cpu_bytes(cpu_bytes_live() + kLimit);
  const int64_t before = cpu_bytes_live();
  const at::Tensor fits = ledger.allocate(
      MemoryPurpose::kGradients, kLimit / 2, at::kByte, at::kCPU);
  try {
    ledger.allocate(
        MemoryPurpose::kOptimizerState, kLimit / 4, at::kFloat, at::kCPU);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_TRUE(is_out_of_memory(error));
    const std::string text = error.what_without_backtrace();
    for (const char* part :
         {"4.00 MiB of optimizer state on the device", "the limit of"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_EQ(cpu_bytes_live() - before, kLimit / 2 + 64); // and its header
  limit_cpu_bytes(std::nullopt);
  EXPECT_EQ(
      ledger
          .allocate(
              MemoryPurpose::kOptimizerState, kLimit / 4, at::kFloat, at::kCPU)
          .nbytes(),
      kLimit);
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
