// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/activations/host_activation_pool.h"

#include <gtest/gtest.h>

namespace tessera::offload::host_activation_pool_test {

namespace {

constexpr int64_t kSlab = HostActivationPool::kSlabBytes;

} // namespace

TEST(HostActivationPool, PiecesDoNotOverlapAndAreUsedAgain) {
  HostActivationPool pool({});
  HostBlock a = pool.take(1000);
  HostBlock b = pool.take(1);
  HostBlock c = pool.take(500);
  ASSERT_TRUE(a.defined() && b.defined() && c.defined());
  EXPECT_EQ(a.bytes.numel(), 1000);
  a.bytes.fill_(1);
  b.bytes.fill_(2);
  c.bytes.fill_(3);
  EXPECT_EQ(a.bytes.sum().item<int64_t>(), 1000);
  EXPECT_EQ(b.bytes.sum().item<int64_t>(), 2);
  EXPECT_EQ(c.bytes.sum().item<int64_t>(), 1500);
  const void* place = a.bytes.data_ptr();
  pool.give_back(a);
  EXPECT_FALSE(a.defined());
  EXPECT_EQ(pool.take(900).bytes.data_ptr(), place);
  EXPECT_EQ(pool.slab_bytes(), kSlab);
}

TEST(HostActivationPool, GrowsByWhatIsNeeded) {
  HostActivationPool pool({});
  const HostBlock large = pool.take(kSlab + 1);
  EXPECT_EQ(large.bytes.numel(), kSlab + 1);
  EXPECT_EQ(pool.slab_bytes(), kSlab + HostMemory::kPage);
  EXPECT_TRUE(pool.take(kSlab / 2).defined());
  EXPECT_TRUE(pool.take(kSlab / 2).defined());
  EXPECT_EQ(pool.slab_bytes(), 2 * kSlab + HostMemory::kPage);
}

TEST(HostActivationPool, TheLimitIsHard) {
  HostActivationPool pool({.limit_bytes = 2 * HostMemory::kPage + 100});
  HostBlock all = pool.take(2 * HostMemory::kPage);
  EXPECT_TRUE(all.defined());
  EXPECT_FALSE(pool.take(1).defined());
  EXPECT_EQ(pool.slab_bytes(), 2 * HostMemory::kPage);
  pool.give_back(all);
  EXPECT_TRUE(pool.take(1).defined());
  EXPECT_FALSE(HostActivationPool({.limit_bytes = 100}).take(1).defined());
}

} // namespace tessera::offload::host_activation_pool_test
