// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/host_heap.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

namespace tessera::runtime::host_heap_test {

TEST(HostHeap, UsesAFreedPieceAgain) {
  HostHeap heap;
  void* first = heap.take(100000);
  void* second = heap.take(100000);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(heap.idle_bytes(), 0u);
  heap.give_back(first, 100000);
  EXPECT_EQ(heap.take(100000), first);
  heap.give_back(second, 100000);
}

TEST(HostHeap, JoinsFreeNeighboursOnBothSides) {
  constexpr size_t kBytes = 3 * HostHeap::kGranule;
  for (const auto& order : {std::array{0, 1, 2}, {0, 2, 1}, {2, 1, 0}}) {
    HostHeap heap;
    void* blocks[] = {heap.take(kBytes), heap.take(kBytes), heap.take(kBytes)};
    void* wall = heap.take(1);
    for (const int i : order) {
      heap.give_back(blocks[i], kBytes);
    }
    // Only the three together are large enough before the wall.
    EXPECT_EQ(heap.take(3 * kBytes), blocks[0]);
    heap.give_back(wall, 1);
  }
}

TEST(HostHeap, TakesTheSmallestPieceThatFits) {
  HostHeap heap;
  void* large = heap.take(10 * HostHeap::kGranule);
  heap.take(1);
  void* small = heap.take(2 * HostHeap::kGranule);
  heap.take(1);
  heap.give_back(large, 10 * HostHeap::kGranule);
  heap.give_back(small, 2 * HostHeap::kGranule);
  EXPECT_EQ(heap.take(2 * HostHeap::kGranule), small);
}

TEST(HostHeap, PiecesInUseNeverOverlapAndKeepTheirContents) {
  HostHeap heap;
  std::mt19937 random(1);
  std::map<char*, std::pair<size_t, char>> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.size() < 40 || random() % 2 == 0) {
      const size_t bytes = 1 + random() % 100000;
      auto* block = static_cast<char*>(heap.take(bytes));
      const char mark = static_cast<char>(i);
      std::memset(block, mark, bytes);
      live[block] = {bytes, mark};
      continue;
    }
    const auto victim = std::next(
        live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
    const auto [bytes, mark] = victim->second;
    for (size_t at = 0; at < bytes; ++at) {
      ASSERT_EQ(victim->first[at], mark);
    }
    heap.give_back(victim->first, bytes);
    live.erase(victim);
  }
}

TEST(HostHeap, ReleaseReturnsWhatIsFreeAndNothingElse) {
  HostHeap heap;
  constexpr size_t kBytes = 8 << 20;
  auto* kept = static_cast<char*>(heap.take(kBytes));
  auto* freed = static_cast<char*>(heap.take(kBytes));
  std::memset(kept, 1, kBytes);
  std::memset(freed, 1, kBytes);
  heap.give_back(freed, kBytes);
  EXPECT_EQ(heap.idle_bytes(), kBytes);
  heap.release();
  EXPECT_EQ(heap.idle_bytes(), 0u);
  EXPECT_EQ(kept[kBytes - 1], 1);
  // Pages from the system are zero.
  EXPECT_EQ(static_cast<char*>(heap.take(kBytes))[0], 0);
}

/// Bytes of the process in memory.
size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0;
  size_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(HostHeap, NeverHasMuchMoreThanWasInUse) {
  constexpr size_t kUnit = 4 << 20;
  constexpr size_t kMostLive = 96 * kUnit;
  HostHeap heap;
  std::mt19937 random(2);
  std::map<char*, std::pair<size_t, char>> live;
  size_t in_use = 0;
  size_t peak = 0;
  const size_t before = resident_bytes();
  for (int i = 0; i < 400; ++i) {
    const size_t bytes = kUnit + random() % (15 * kUnit);
    while (in_use + bytes > kMostLive) {
      const auto victim = std::next(
          live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      const auto [freed, mark] = victim->second;
      ASSERT_EQ(victim->first[0], mark);
      ASSERT_EQ(victim->first[freed / 2], mark);
      ASSERT_EQ(victim->first[freed - 1], mark);
      heap.give_back(victim->first, freed);
      in_use -= freed;
      live.erase(victim);
    }
    auto* block = static_cast<char*>(heap.take(bytes));
    std::memset(block, i, bytes);
    live[block] = {bytes, static_cast<char>(i)};
    in_use += bytes;
    peak = std::max(peak, in_use);
    // Two ends of each free block may lie in huge pages that are in use.
    const size_t ends = 2 * (live.size() + 1) * (2 << 20);
    ASSERT_LE(in_use + heap.idle_bytes(), peak + ends);
    ASSERT_LE(resident_bytes() - before, peak + ends + kUnit);
  }
  EXPECT_GT(peak, kMostLive * 9 / 10);
}

size_t memory_now = 0;

TEST(HostHeap, GrowsWithTheMemoryOfTheMachine) {
  constexpr size_t kMiB = 1 << 20;
  memory_now = 64 * kMiB;
  HostHeap heap(+[] { return memory_now; });
  void* first = heap.take(48 * kMiB);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(heap.take(100 * kMiB), nullptr);
  memory_now = 1024 * kMiB;
  void* second = heap.take(100 * kMiB);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(heap.take(1000 * kMiB), nullptr); // beside what is in use
  heap.give_back(second, 100 * kMiB);
  heap.give_back(first, 48 * kMiB);
  EXPECT_NE(heap.take(1000 * kMiB), nullptr);
}

TEST(HostHeap, SaysNoToMoreThanTheMachineHas) {
  HostHeap heap;
  EXPECT_EQ(heap.take(size_t{1} << 60), nullptr);
}

} // namespace tessera::runtime::host_heap_test
