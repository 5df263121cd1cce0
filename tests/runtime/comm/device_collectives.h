// SPDX-License-Identifier: Apache-2.0
#pragma once
// The collectives of a communicator on a device.

#include "tessera/runtime/comm/communicator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace tessera::tests {

inline void check_collectives(Communicator& comm, at::Device device) {
  const int n = comm.size();
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    const auto options = at::TensorOptions(device).dtype(dtype);
    const auto self_value = at::full({3}, comm.rank() + 1.0, options);
    const auto all = at::empty({3 * n}, options);
    comm.all_gather(all, self_value, "gather").wait();
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(all[3 * rank].item<float>(), rank + 1.0);
    }
    const auto sum = at::empty({3}, options);
    comm.reduce_scatter_sum(sum, all, "reduce").wait();
    EXPECT_EQ(sum[0].item<float>(), (comm.rank() + 1.0) * n);
    const auto exchanged = at::empty({3 * n}, options);
    const auto rows = at::full({n, 3}, comm.rank() + 1.0, options);
    comm.all_to_all(exchanged, rows, "exchange").wait();
    EXPECT_TRUE(exchanged.equal(all));
    const std::vector<int64_t> taken(static_cast<size_t>(n), comm.rank());
    std::vector<int64_t> sent;
    for (int rank = 0; rank < n; ++rank) {
      sent.push_back(rank); // as many as its number
    }
    const auto uneven = at::empty({n * comm.rank()}, options);
    const auto full = at::full({n * (n - 1) / 2}, comm.rank() + 1.0, options);
    comm.all_to_all(uneven, full, {taken, sent}, "uneven exchange").wait();
    for (int rank = 0; rank < n && comm.rank() > 0; ++rank) {
      EXPECT_EQ(uneven[comm.rank() * rank].item<float>(), rank + 1.0);
    }
    const auto largest = self_value.clone();
    comm.all_reduce_max(largest, "max").wait();
    EXPECT_EQ(largest[0].item<float>(), n);
    comm.broadcast(self_value, 0, "broadcast").wait();
    EXPECT_EQ(self_value[0].item<float>(), 1.0);
  }
  comm.barrier();
}

} // namespace tessera::tests
