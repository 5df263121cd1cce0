// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/update_site.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>

#include <optional>

namespace tessera::offload::update_site_test {

namespace {

constexpr int64_t kNumel = 4096; // a multiple of a page in every type

/// Of a device that is not the CPU, and need not be there.
UpdatedShard bfloat16_on_a_device() {
  return {
      .page = "page",
      .device = c10::Device(at::kCUDA, 0),
      .numel = kNumel,
      .types = {at::kBFloat16, at::kBFloat16, std::nullopt},
      .has_separate_master = true};
}

} // namespace

TEST(UpdateTypes, AreFloat32OfNarrowerOnes) {
  for (const auto weight : {at::kBFloat16, at::kHalf}) {
    const UpdateTypes types(weight, at::kFloat, std::nullopt);
    EXPECT_EQ(types.master, at::kFloat);
    EXPECT_EQ(types.moment, at::kFloat);
    EXPECT_TRUE(types.rounds());
  }
  for (const auto weight : {at::kFloat, at::kDouble}) {
    const UpdateTypes types(weight, weight, at::kBFloat16);
    EXPECT_EQ(types.master, weight);
    EXPECT_EQ(types.moment, at::kBFloat16);
    EXPECT_FALSE(types.rounds());
  }
}

TEST(UpdateTypes, WidenOnlyGradientsThatAreNotNarrow) {
  const UpdateTypes types(at::kDouble, at::kFloat, std::nullopt);
  EXPECT_EQ(types.gradient, at::kDouble);
  EXPECT_EQ(types.gradient_from(at::kBFloat16), at::kBFloat16);
  EXPECT_EQ(types.gradient_from(at::kHalf), at::kHalf);
}

TEST(UpdateSite, StagesWhatTheCpuDoesNotFindInItsMemory) {
  const auto bytes = [](const runtime::ShardTiers& tiers) {
    const UpdateSite site(bfloat16_on_a_device(), tiers, /*streams=*/false);
    EXPECT_TRUE(site.device().is_cpu());
    return site.staging_bytes();
  };
  constexpr auto kDevice = MemoryTier::kDevice;
  constexpr auto kHost = MemoryTier::kHost;
  constexpr auto kNvme = MemoryTier::kNvme;
  EXPECT_EQ(bytes({kHost, kHost, kHost}), 0);
  EXPECT_EQ(bytes({kDevice, kHost, kHost}), 2 * kNumel); // rounded weights
  EXPECT_EQ(bytes({kDevice, kDevice, kHost}), 4 * kNumel); // and gradients
  EXPECT_EQ(bytes({kNvme, kNvme, kNvme}), 8 * kNumel); // and the master
}

TEST(UpdateSite, StagesAStreamedMasterFromAFileOnly) {
  for (const auto tier : {MemoryTier::kHost, MemoryTier::kNvme}) {
    const UpdateSite site(
        bfloat16_on_a_device(), {.state = tier}, /*streams=*/true);
    EXPECT_TRUE(site.device().is_cuda());
    EXPECT_TRUE(site.streams_master());
    EXPECT_EQ(site.staging_bytes(), tier == MemoryTier::kNvme ? 4 * kNumel : 0);
  }
}

TEST(UpdateSite, RefusesIntegers) {
  UpdatedShard shard = bfloat16_on_a_device();
  shard.types = {at::kLong, at::kLong, std::nullopt};
  expect_error(
      [&] { const UpdateSite site(shard, {}, false); },
      {"Long", "'page'", "requires_grad_(false)"});
}

} // namespace tessera::offload::update_site_test
