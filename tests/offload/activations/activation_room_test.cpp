// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/activations/activation_room.h"

#include <gtest/gtest.h>

namespace tessera::offload::activation_room_test {

namespace {

constexpr int64_t kSlab = ActivationRoom::kSlabBytes;

} // namespace

TEST(ActivationRoom, PiecesDoNotOverlapAndAreUsedAgain) {
  ActivationRoom room({});
  HostBlock a = room.take(1000);
  HostBlock b = room.take(1);
  HostBlock c = room.take(500);
  ASSERT_TRUE(a.defined() && b.defined() && c.defined());
  EXPECT_EQ(a.bytes.numel(), 1000);
  a.bytes.fill_(1);
  b.bytes.fill_(2);
  c.bytes.fill_(3);
  EXPECT_EQ(a.bytes.sum().item<int64_t>(), 1000);
  EXPECT_EQ(b.bytes.sum().item<int64_t>(), 2);
  EXPECT_EQ(c.bytes.sum().item<int64_t>(), 1500);
  const void* place = a.bytes.data_ptr();
  room.give_back(a);
  EXPECT_FALSE(a.defined());
  EXPECT_EQ(room.take(900).bytes.data_ptr(), place);
  EXPECT_EQ(room.slab_bytes(), kSlab);
}

TEST(ActivationRoom, GrowsByWhatIsNeeded) {
  ActivationRoom room({});
  const HostBlock large = room.take(kSlab + 1);
  EXPECT_EQ(large.bytes.numel(), kSlab + 1);
  EXPECT_EQ(room.slab_bytes(), kSlab + HostMemory::kPage);
  EXPECT_TRUE(room.take(kSlab / 2).defined());
  EXPECT_TRUE(room.take(kSlab / 2).defined());
  EXPECT_EQ(room.slab_bytes(), 2 * kSlab + HostMemory::kPage);
}

TEST(ActivationRoom, TheLimitIsHard) {
  ActivationRoom room({.limit_bytes = 2 * HostMemory::kPage + 100});
  HostBlock all = room.take(2 * HostMemory::kPage);
  EXPECT_TRUE(all.defined());
  EXPECT_FALSE(room.take(1).defined());
  EXPECT_EQ(room.slab_bytes(), 2 * HostMemory::kPage);
  room.give_back(all);
  EXPECT_TRUE(room.take(1).defined());
  EXPECT_FALSE(ActivationRoom({.limit_bytes = 100}).take(1).defined());
}

} // namespace tessera::offload::activation_room_test
