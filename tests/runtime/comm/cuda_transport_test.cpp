// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/cuda_transport.h"

#include <gtest/gtest.h>

namespace tessera::runtime::cuda_transport_test {

TEST(CudaTransport, FindsRanksThatShareADevice) {
  EXPECT_EQ(ranks_on_one_device({}), "");
  EXPECT_EQ(ranks_on_one_device({"GPU-a"}), "");
  EXPECT_EQ(ranks_on_one_device({"GPU-a", "GPU-b", "GPU-c"}), "");
  EXPECT_EQ(
      ranks_on_one_device({"GPU-a", "GPU-b", "GPU-c", "GPU-b"}),
      "ranks 1 and 3");
}

} // namespace tessera::runtime::cuda_transport_test
