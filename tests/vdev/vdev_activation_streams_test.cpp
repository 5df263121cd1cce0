// SPDX-License-Identifier: Apache-2.0
// A saved tensor whose memory is of another stream than those that use it.
#include "support/vdev/vdev.h"
#include "tessera/offload/activations/host_activation_sink.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"
#include "tessera/runtime/streams/stream_marks.h"

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

namespace tessera::tests::vdev::vdev_activation_streams_test {

namespace {

/// @param room for activations on the device, in bytes.
std::shared_ptr<offload::HostActivationSink> make_sink(
    c10::Device device,
    int64_t room) {
  offload::HostActivationSinkOptions options;
  options.device = device;
  options.device_bytes = room;
  options.min_tensor_bytes = 0;
  return std::make_shared<offload::HostActivationSink>(options);
}

} // namespace

class ActivationStreams : public ::testing::TestWithParam<Policy> {};

// The stream that allocated it may use the memory again only when the stream
// that saved it, and the copy to the host, have used it.
TEST_P(ActivationStreams, MemoryReturnsToItsStreamAfterItsUsers) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    const c10::Device device = world.device();
    const c10::Stream side = new_stream(device);
    const auto sink = make_sink(device, 0);
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

// The piece of host memory from which one stream's activations came back is
// free for another stream's, which wait for nothing else.
TEST_P(ActivationStreams, HostMemoryIsUsedAgainAfterItsLastCopy) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    const c10::Device device = world.device();
    const c10::Stream side = new_stream(device);
    const auto sink = make_sink(device, 0);
    const auto gradient_at = [&](double value, const at::Tensor& weight) {
      at::Tensor y;
      {
        const runtime::SavedTensorScope scope(sink);
        y = weight * (torch::full({64, 32}, value, device) * 1.5);
      }
      y.sum().backward();
      return weight.grad();
    };
    const at::Tensor first = torch::ones({64, 32}).to(device).requires_grad_();
    const at::Tensor second = torch::ones({64, 32}).to(device).requires_grad_();
    runtime::mark_current(device).block(side);
    const at::Tensor on_first = gradient_at(2, first);
    at::Tensor on_second;
    runtime::StreamMarks done;
    {
      const c10::StreamGuard guard(side);
      on_second = gradient_at(4, second);
      done = runtime::mark_current(device);
    }
    done.block_current(device);
    EXPECT_TRUE(torch::equal(on_first.cpu(), torch::full({64, 32}, 3.0)));
    EXPECT_TRUE(torch::equal(on_second.cpu(), torch::full({64, 32}, 6.0)));
    EXPECT_EQ(sink->statistics().peak_host_bytes, 64 * 32 * 4);
  });
}

// A stream that fetches ahead what another one saved has not waited for its
// copy to the host.
TEST_P(ActivationStreams, WhatIsFetchedAheadHasArrivedOnTheHost) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    const c10::Device device = world.device();
    const auto main = *runtime::current_stream(device);
    const c10::Stream side = new_stream(device);
    constexpr int64_t kBytes = 64 * 32 * 4;
    const auto sink = make_sink(device, 2 * kBytes);
    const auto saved_on = [&](const c10::Stream& stream, double value) {
      const c10::StreamGuard guard(stream);
      return sink->take(torch::full({64, 32}, value, device), false);
    };
    const auto first = saved_on(side, 1);
    const auto second = saved_on(main, 2);
    auto third = saved_on(side, 3); // the first leaves
    auto fourth = saved_on(side, 4); // the second leaves
    runtime::StreamMarks done;
    {
      const c10::StreamGuard guard(side);
      fourth->give();
      fourth.reset();
      third->give(); // and the second is fetched ahead
      third.reset();
      done = runtime::mark_current(device);
    }
    done.block_current(device);
    EXPECT_EQ(sink->statistics().bytes_prefetched, kBytes);
    EXPECT_TRUE(torch::equal(second->give().cpu(), torch::full({64, 32}, 2.0)));
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
