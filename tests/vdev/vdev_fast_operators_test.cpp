// SPDX-License-Identifier: Apache-2.0
// Sums over rows and copies of rows in place of LibTorch's, on the virtual
// device.
#include "runtime/kernels/fast_operators_cases.h"
#include "support/vdev/vdev.h"

namespace tessera::tests::vdev::vdev_fast_operators_test {

TEST(FastOperatorsOnVdev, SumOverRows) {
  run_ranks_on_vdev(1, {}, [](World& world) {
    fast_operators_cases::check_sums(world.device(), 1031);
  });
}

TEST(FastOperatorsOnVdev, CopyPartsOfRows) {
  run_ranks_on_vdev(1, {}, [](World& world) {
    fast_operators_cases::check_copies(world.device());
  });
}

} // namespace tessera::tests::vdev::vdev_fast_operators_test
