// SPDX-License-Identifier: Apache-2.0
// Observers of operators where autograd executes nodes on two threads at once:
// those of the device on its own, the others on the one that called backward().
#include "support/vdev/vdev.h"
#include "tessera/runtime/profile/flop_counter.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>

namespace tessera::tests::vdev::vdev_observers_test {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The nodes of the device and of the host wait for each other, so that each
/// begins within the other's time and the one that began first ends first.
struct Meeting {
  std::promise<void> device_begun;
  std::promise<void> host_begun;
  std::promise<void> device_ended;
};

Meeting* meeting = nullptr;

/// One product of 4 x 4 matrices in backward.
struct OnDevice : torch::autograd::Function<OnDevice> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static variable_list backward(AutogradContext*, const variable_list& g) {
    meeting->device_begun.set_value();
    meeting->host_begun.get_future().wait();
    return {g[0].mm(g[0])};
  }
};

/// Two of them.
struct OnHost : torch::autograd::Function<OnHost> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static variable_list backward(AutogradContext*, const variable_list& g) {
    meeting->device_begun.get_future().wait();
    meeting->host_begun.set_value();
    meeting->device_ended.get_future().wait();
    return {g[0].mm(g[0]).mm(g[0])};
  }
};

/// Its gradient comes when OnDevice has ended.
struct AfterDevice : torch::autograd::Function<AfterDevice> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static variable_list backward(AutogradContext*, const variable_list& g) {
    meeting->device_ended.set_value();
    return {g[0]};
  }
};

/// From a sum of a tensor of the device and one of the host.
struct Both : torch::autograd::Function<Both> {
  static at::Tensor forward(
      AutogradContext*,
      const at::Tensor& x,
      const at::Tensor& /*y*/) {
    return x.clone();
  }
  static variable_list backward(AutogradContext*, const variable_list& g) {
    return {g[0], torch::ones({4, 4})};
  }
};

class Observers : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(Observers, CountOperationsOfNodesThatRunAtTheSameTime) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    Meeting here;
    meeting = &here;
    const at::Tensor x =
        torch::ones({4, 4}).to(world.device()).requires_grad_();
    const at::Tensor y = torch::ones({4, 4}).requires_grad_();
    const at::Tensor out =
        Both::apply(OnDevice::apply(AfterDevice::apply(x)), OnHost::apply(y));
    const runtime::FlopCounter counter;
    out.backward(torch::ones({4, 4}).to(world.device()));
    EXPECT_EQ(counter.flops(), 3 * 2.0 * 64);
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Observers,
    ::testing::ValuesIn(policies({{Policy::Order::kLazy}})),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_observers_test
