// SPDX-License-Identifier: Apache-2.0
#include "engine/optim/device_placement.h"
#include "engine/optim/every_rule.h"
#include "support/cuda_ranks_test.h"
#include "support/temporary_folder.h"

namespace tessera::engine::placement_gpu_test {

namespace {

using namespace tests;

class PlacementGpu : public CudaRanksTest {};

/// All of them on CUDA. In a rank.
std::vector<UpdateRule> rules() {
  const std::vector<UpdateRule> all = elementwise_rules();
  const auto numel = static_cast<int64_t>(all.size());
  return {all.begin(), all.begin() + gpu_size(numel, 1)};
}

} // namespace

TEST_F(PlacementGpu, OverlappedUpdatesGiveTheBitsOfSerialOnes) {
  const TemporaryFolder folder;
  run_ranks(
      1,
      [&](World& world) {
        device_placement::expect_bits_of_overlapped_updates(
            world, device_placement::precisions(), folder.path());
      },
      kLimits);
}

TEST_F(PlacementGpu, HostStateGivesTheBitsOfDeviceState) {
  const TemporaryFolder folder;
  run_ranks(
      1,
      [&](World& world) {
        device_placement::expect_bits_of_host_state(
            world, rules(), folder.path(), /*saves=*/true);
      },
      kLimits);
}

TEST_F(PlacementGpu, StreamedStateGivesTheBitsOfDeviceState) {
  const TemporaryFolder folder;
  run_ranks(
      1,
      [&](World& world) {
        device_placement::expect_bits_of_streamed_state(
            world,
            rules(),
            {0.0, 0.5, std::nullopt},
            folder.path(),
            /*saves=*/true);
      },
      kLimits);
}

} // namespace tessera::engine::placement_gpu_test
