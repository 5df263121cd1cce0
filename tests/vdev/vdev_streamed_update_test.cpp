// SPDX-License-Identifier: Apache-2.0
// Memory that streamed updates take and give back.
#include "support/vdev/vdev.h"
#include "tessera/offload/updates/streamed_update.h"
#include "tessera/runtime/memory/memory_ledger.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace tessera::tests::vdev::vdev_streamed_update_test {

namespace {

constexpr int64_t kNumel = 5000;
constexpr int64_t kStateBytes = kNumel * 4;
constexpr int64_t kLimit = int64_t{1} << 20;

/// A master on the host, to which the update adds the gradient.
class Sum {
 public:
  explicit Sum(c10::Device device) : streamed_(device, kLimit) {
    streamed_.need(kStateBytes, 1);
    streamed_.allocate(ledger_);
  }

  void add(const at::Tensor& gradient) {
    offload::StreamedSegment segment;
    segment.tensors.master = master_;
    segment.tensors.grad = gradient;
    segment.master_on_host = true;
    streamed_.run(
        {segment}, [](const std::vector<offload::StreamedChunk>& chunks) {
          for (const offload::StreamedChunk& chunk : chunks) {
            chunk.tensors.master.add_(chunk.tensors.grad);
          }
        });
  }

  /// Of every element.
  float value() {
    streamed_.wait();
    EXPECT_EQ(master_.min().item<float>(), master_.max().item<float>());
    return master_[0].item<float>();
  }

 private:
  MemoryLedger ledger_;
  at::Tensor master_ = at::zeros({kNumel}).pin_memory();
  offload::StreamedUpdate streamed_;
};

class StreamedUpdates : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(StreamedUpdates, TakeMemoryAfterItsLastUse) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    const auto bytes = at::TensorOptions(at::kByte).device(world.device());
    const int64_t buffer =
        offload::StreamedUpdate::bytes_for(kStateBytes, 1, kLimit) /
        offload::StreamedUpdate::kBuffers;
    const at::Tensor gradient = torch::ones({kNumel}).to(world.device());
    {
      std::vector<at::Tensor> used;
      for (int i = 0; i < offload::StreamedUpdate::kBuffers; ++i) {
        used.push_back(torch::ones({buffer}, bytes));
      }
    }
    Sum sum(world.device());
    sum.add(gradient);
    EXPECT_EQ(sum.value(), 1);
  });
}

TEST_P(StreamedUpdates, KeepGradientsUntilTheyHaveRead) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    Sum sum(world.device());
    for (int i = 0; i < 3; ++i) {
      sum.add(torch::ones({kNumel}, world.device()) * 2);
      for (int k = 0; k < 4; ++k) {
        torch::zeros({kNumel}, world.device());
      }
      EXPECT_EQ(sum.value(), 2 * (i + 1));
    }
  });
}

// The host frees the state when the object is gone.
TEST_P(StreamedUpdates, EndWhenTheirCopiesHaveEnded) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    for (int i = 0; i < 2; ++i) {
      Sum sum(world.device());
      sum.add(torch::ones({kNumel}, world.device()));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    StreamedUpdates,
    ::testing::ValuesIn(policies(
        {{Policy::Order::kEager},
         {Policy::Order::kLazy},
         {Policy::Order::kRandom, 1}})),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_streamed_update_test
