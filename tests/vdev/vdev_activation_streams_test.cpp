// SPDX-License-Identifier: Apache-2.0
// A saved tensor whose memory is of another stream than those that use it.
#include "support/vdev/vdev.h"
#include "tessera/offload/host_activation_sink.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"
#include "tessera/runtime/memory/stream_marks.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

namespace tessera::tests::vdev::vdev_activation_streams_test {

class ActivationStreams : public ::testing::TestWithParam<Policy> {};

// The stream that allocated it may use the memory again only when the stream
// that saved it, and the copy to the host, have used it.
TEST_P(ActivationStreams, MemoryReturnsToItsStreamAfterItsUsers) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    const c10::Device device = world.device();
    const auto side = c10::impl::getDeviceGuardImpl(device.type())
                          ->getStreamFromGlobalPool(device, false);
    offload::HostActivationSinkOptions options;
    options.device = device;
    options.device_bytes = 0;
    options.min_tensor_bytes = 0;
    const auto sink = std::make_shared<offload::HostActivationSink>(options);
    const at::Tensor weight = torch::ones({64, 32}).to(device).requires_grad_();
    at::Tensor y;
    runtime::StreamMarks done;
    {
      const runtime::SavedTensorScope scope(sink);
      const at::Tensor x = torch::full({64, 32}, 2.0).to(device) * 1.5;
      runtime::mark_current(device).block(side);
      const c10::StreamGuard guard(side);
      y = weight * x;
      done = runtime::mark_current(device);
    }
    // Only the graph has x now. Memory of its size, of the first stream:
    std::vector<at::Tensor> others;
    for (int i = 0; i < 4; ++i) {
      others.push_back(torch::zeros({64, 32}, device));
    }
    done.block_current(device);
    y.sum().backward();
    EXPECT_TRUE(torch::equal(weight.grad().cpu(), torch::full({64, 32}, 3.0)));
    EXPECT_GT(sink->statistics().bytes_to_device, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    ActivationStreams,
    ::testing::Values(
        Policy{Policy::Order::kEager},
        Policy{Policy::Order::kLazy},
        Policy{Policy::Order::kRandom, 1}),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_activation_streams_test
