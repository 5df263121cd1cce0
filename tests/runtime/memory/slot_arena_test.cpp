// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/slot_arena.h"

#include "support/expect_error.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tessera::runtime::slot_arena_test {

TEST(OffsetAllocator, LowestFreeRangeFirst) {
  OffsetAllocator allocator(64 * 10);
  EXPECT_EQ(allocator.allocate(1), 0);
  EXPECT_EQ(allocator.allocate(65), 64);
  EXPECT_EQ(allocator.allocate(64), 192);
  allocator.release(64);
  EXPECT_EQ(allocator.allocate(129), 256); // the gap is 128
  EXPECT_EQ(allocator.allocate(64), 64);
  EXPECT_EQ(allocator.allocate(64), 128);
  EXPECT_EQ(allocator.allocate(64 * 4), std::nullopt);
  EXPECT_EQ(allocator.allocate(64 * 3), 448);
  EXPECT_EQ(allocator.allocate(1), std::nullopt);
}

TEST(OffsetAllocator, WrongReleaseIsAnError) {
  OffsetAllocator allocator(640);
  allocator.allocate(100);
  expect_error([&] { allocator.release(64); }, {"byte 64"});
  allocator.release(0);
  expect_error([&] { allocator.release(0); }, {"byte 0"});
}

TEST(OffsetAllocator, RangesNeverOverlapAndNoneIsLost) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 50; ++trial) {
    const auto capacity = static_cast<int64_t>(random() % 6400);
    OffsetAllocator allocator(capacity);
    OffsetAllocator same(capacity);
    std::map<int64_t, int64_t> live;
    for (int i = 0; i < 200; ++i) {
      if (random() % 3 == 0 && !live.empty()) {
        auto victim = live.begin();
        std::advance(victim, random() % live.size());
        allocator.release(victim->first);
        same.release(victim->first);
        live.erase(victim);
        continue;
      }
      const auto bytes = 1 + static_cast<int64_t>(random() % 900);
      const auto offset = allocator.allocate(bytes);
      EXPECT_EQ(offset, same.allocate(bytes)); // deterministic
      const int64_t needed = (bytes + 63) / 64 * 64;
      if (!offset) {
        int64_t end = 0;
        for (const auto& [begin, size] : live) {
          EXPECT_LT(begin - end, needed) << "there was room";
          end = begin + size;
        }
        EXPECT_LT(capacity - end, needed) << "there was room at the end";
        continue;
      }
      EXPECT_EQ(*offset % OffsetAllocator::kAlignment, 0);
      EXPECT_LE(*offset + needed, capacity);
      const auto next = live.lower_bound(*offset);
      if (next != live.end()) {
        EXPECT_LE(*offset + needed, next->first);
      }
      if (next != live.begin()) {
        EXPECT_LE(std::prev(next)->first + std::prev(next)->second, *offset);
      }
      live[*offset] = needed;
    }
  }
}

TEST(SlotArena, SlotsLieInOneBuffer) {
  MemoryLedger ledger;
  SlotArena arena(ledger, MemoryPurpose::kGatherSlots, at::kCPU);
  EXPECT_FALSE(arena.try_allocate(1, at::kFloat).defined());
  arena.resize(1024);
  Slot a = arena.try_allocate(16, at::kFloat);
  Slot b = arena.try_allocate(20, at::kBFloat16);
  ASSERT_TRUE(a.defined() && b.defined());
  EXPECT_EQ(
      static_cast<std::byte*>(b.tensor.data_ptr()) -
          static_cast<std::byte*>(a.tensor.data_ptr()),
      64);
  EXPECT_EQ(b.tensor.numel(), 20);
  EXPECT_EQ(b.tensor.scalar_type(), at::kBFloat16);
  EXPECT_FALSE(arena.try_allocate(1024, at::kByte).defined());
  expect_error([&] { arena.resize(2048); }, {"2 slots in use"});
  arena.release(a);
  EXPECT_FALSE(a.defined());
  arena.release(b);
  arena.resize(2048);
  EXPECT_EQ(arena.capacity_bytes(), 2048);
  EXPECT_TRUE(arena.try_allocate(2048, at::kByte).defined());
}

TEST(SlotArena, SlotsMayHaveMemoryOfTheirOwn) {
  MemoryLedger ledger;
  const auto live = [&] { return total_bytes(ledger.live_bytes()); };
  SlotArena arena(
      ledger,
      MemoryPurpose::kReduceSlots,
      at::kCPU,
      SlotArena::Memory::kEachSlot);
  arena.resize(4096);
  EXPECT_EQ(arena.capacity_bytes(), 4096);
  EXPECT_EQ(live(), 0);
  Slot a = arena.try_allocate(512, at::kFloat);
  Slot b = arena.try_allocate(256, at::kFloat);
  ASSERT_TRUE(a.defined() && b.defined());
  EXPECT_EQ(live(), 3072);
  EXPECT_EQ(arena.allocated_bytes(), 3072);
  EXPECT_FALSE(arena.try_allocate(512, at::kFloat).defined()); // no room
  a.tensor.fill_(1);
  b.tensor.fill_(2);
  EXPECT_EQ(a.tensor.sum().item<float>(), 512);
  arena.release(a);
  EXPECT_EQ(live(), 1024);
  EXPECT_EQ(arena.allocated_bytes(), 1024);
  a = arena.try_allocate(512, at::kFloat);
  EXPECT_TRUE(a.defined());
  arena.release(a);
  arena.release(b);
  EXPECT_EQ(live(), 0);
}

TEST(SlotArena, BytesAreCountedByPurpose) {
  MemoryLedger ledger;
  const auto live = [&](MemoryPurpose purpose) {
    return ledger.live_bytes()[static_cast<size_t>(purpose)];
  };
  SlotArena arena(ledger, MemoryPurpose::kReduceSlots, at::kCPU);
  arena.resize(4096);
  EXPECT_EQ(live(MemoryPurpose::kReduceSlots), 4096);
  arena.resize(1024);
  EXPECT_EQ(live(MemoryPurpose::kReduceSlots), 1024);
  Slot outside = arena.allocate_outside(100, at::kDouble);
  EXPECT_EQ(outside.offset, -1);
  EXPECT_EQ(live(MemoryPurpose::kReduceSlots), 1024 + 800);
  arena.release(outside);
  EXPECT_EQ(live(MemoryPurpose::kReduceSlots), 1024);
  EXPECT_EQ(live(MemoryPurpose::kGatherSlots), 0);
}

TEST(MemoryLedger, BuffersAreAlignedCountedAndMayOutliveIt) {
  at::Tensor kept;
  {
    MemoryLedger ledger;
    kept = ledger.allocate_zeros(
        MemoryPurpose::kParameters, 33, at::kFloat, at::kCPU);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(kept.data_ptr()) % 64, 0);
    const at::Tensor view = kept.narrow(0, 3, 2);
    const at::Tensor other =
        ledger.allocate(MemoryPurpose::kGradients, 0, at::kFloat, at::kCPU);
    EXPECT_EQ(other.numel(), 0);
    EXPECT_EQ(total_bytes(ledger.live_bytes()), 33 * 4);
    EXPECT_EQ(ledger.live_bytes()[0], 33 * 4);
  }
  EXPECT_EQ(kept.sum().item<float>(), 0);
  kept.add_(1);
  EXPECT_EQ(kept.sum().item<float>(), 33);
}

TEST(MemoryLedger, TableNamesEveryPurposeAndTheTotal) {
  MemoryBytes bytes{};
  bytes[0] = 3 * 1024 * 1024;
  bytes[2] = 1024 * 1024 / 2;
  const std::string table = memory_table("memory", bytes);
  for (const char* part :
       {"memory",
        "parameters",
        "gradients",
        "optimizer state",
        "gather slots",
        "reduce slots",
        "total",
        "3.00 MiB",
        "0.50 MiB",
        "3.50 MiB"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
}

} // namespace tessera::runtime::slot_arena_test
