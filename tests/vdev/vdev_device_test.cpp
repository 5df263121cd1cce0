// SPDX-License-Identifier: Apache-2.0
// The virtual device itself: plain LibTorch on it computes what it computes on
// the CPU, in any order of execution, and misuse is found.
#include "support/vdev/vdev.h"
#include "support/vdev/vdev_memory.h"
#include "tessera/sharding/lazy/move_module.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::tests::vdev::vdev_device_test {

namespace {

using Order = Policy::Order;

c10::Stream current_stream() {
  return c10::impl::getDeviceGuardImpl(device().type())->getStream(device());
}

/// Runs `body` in a process of its own, which must note these violations.
void expect_violation(
    const std::string& text,
    const std::function<void()>& body) {
  install();
  run_ranks(1, [&](World&) {
    Runtime::instance().set_policy({Order::kLazy});
    try {
      body();
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
          << error.what();
    }
    const auto violations = Runtime::instance().violations();
    // Others may follow while what was made is freed.
    ASSERT_FALSE(violations.empty());
    EXPECT_NE(violations[0].find(text), std::string::npos) << violations[0];
  });
}

/// Losses of a small net that is trained on `device`.
std::vector<float> train(at::Device on) {
  torch::manual_seed(1);
  torch::nn::Sequential net(
      torch::nn::Linear(5, 7),
      torch::nn::GELU(),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})),
      torch::nn::Linear(7, 3));
  const at::Tensor x = torch::randn({4, 5});
  const at::Tensor y = torch::randint(3, {4});
  move_module(*net, on);
  torch::optim::SGD optimizer(
      net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<float> losses;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(net->forward(x.to(on)), y.to(on));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<float>());
  }
  for (const at::Tensor& parameter : net->parameters()) {
    const at::Tensor values = parameter.detach().cpu().reshape({-1});
    losses.insert(
        losses.end(),
        values.const_data_ptr<float>(),
        values.const_data_ptr<float>() + values.numel());
  }
  return losses;
}

} // namespace

class Policies : public ::testing::TestWithParam<Policy> {};

TEST_P(Policies, OperatorsGiveTheBitsOfTheCpu) {
  using Tensors = std::vector<at::Tensor>;
  using Operator = std::pair<const char*, at::Tensor (*)(const Tensors&)>;
  run_ranks_on_vdev(1, GetParam(), [](World&) {
    const Operator operators[] = {
        {"add", [](const Tensors& t) { return t[0] + t[1]; }},
        {"add alpha", [](const Tensors& t) { return t[0].add(t[1], 0.3); }},
        {"add scalar", [](const Tensors& t) { return t[0] + 0.3; }},
        {"mul scalar", [](const Tensors& t) { return t[0] * 0.3; }},
        {"div scalar", [](const Tensors& t) { return t[0] / 0.3; }},
        {"add_",
         [](const Tensors& t) { return t[0].clone().add_(t[1], -0.1); }},
        {"mul_", [](const Tensors& t) { return t[0].clone().mul_(0.3); }},
        {"addcmul_",
         [](const Tensors& t) {
           return t[0].clone().addcmul_(t[1], t[1], 0.3);
         }},
        {"addcdiv_",
         [](const Tensors& t) {
           return t[0].clone().addcdiv_(t[1], t[1].abs() + 1, 0.3);
         }},
        {"lerp_",
         [](const Tensors& t) { return t[0].clone().lerp_(t[1], 0.1); }},
        {"exp", [](const Tensors& t) { return t[0].exp(); }},
        {"mm", [](const Tensors& t) { return t[0].mm(t[1].t()); }},
        {"mm t", [](const Tensors& t) { return t[0].t().mm(t[1]); }},
        {"linear",
         [](const Tensors& t) { return at::linear(t[0], t[1], t[0].sum(1)); }},
        {"gelu", [](const Tensors& t) { return at::gelu(t[0]); }},
        {"layer_norm",
         [](const Tensors& t) { return at::layer_norm(t[0], {7}); }},
        {"log_softmax", [](const Tensors& t) { return t[0].log_softmax(1); }},
        {"sum", [](const Tensors& t) { return t[0].sum(); }},
        {"sum 0", [](const Tensors& t) { return t[0].sum(0); }},
        {"mean", [](const Tensors& t) { return t[0].mean(); }},
        {"norm", [](const Tensors& t) { return t[0].norm(); }},
        {"to bfloat16",
         [](const Tensors& t) { return t[0].to(at::kBFloat16); }},
        {"where",
         [](const Tensors& t) { return at::where(t[0] > 0, t[0], t[1]); }},
        {"cat",
         [](const Tensors& t) {
           return at::cat({t[0], t[1]}, 1);
         }},
        {"index", [](const Tensors& t) { return t[0].index({t[1] > 0}); }},
        {"embedding",
         [](const Tensors& t) {
           return at::embedding(
               t[0], (t[1].abs() * 2).to(at::kLong).clamp(0, 3));
         }},
    };
    torch::manual_seed(3);
    const Tensors cpu{torch::randn({5, 7}), torch::randn({5, 7})};
    const Tensors here{cpu[0].to(device()), cpu[1].to(device())};
    for (const auto& [name, compute] : operators) {
      const at::Tensor expected = compute(cpu);
      const at::Tensor got = compute(here);
      EXPECT_EQ(got.device(), device()) << name;
      EXPECT_EQ(got.strides(), expected.strides()) << name;
      EXPECT_TRUE(torch::equal(got.cpu(), expected))
          << name << " is off by " << (got.cpu() - expected).abs().max();
    }
  });
}

TEST_P(Policies, TrainsAsOnTheCpu) {
  run_ranks_on_vdev(1, GetParam(), [](World&) {
    EXPECT_EQ(train(device()), train(at::kCPU));
    EXPECT_GT(Runtime::instance().counters().commands, 100);
  });
}

TEST_P(Policies, StreamsThatWaitSeeWhatTheyWaitFor) {
  run_ranks_on_vdev(1, GetParam(), [](World&) {
    const c10::Stream lane = new_stream(device(), /*is_lane=*/true);
    const at::Tensor x = torch::zeros({1000}, device());
    c10::Event event(device().type());
    at::Tensor sum;
    for (int round = 1; round <= 5; ++round) {
      x.add_(1);
      // Recorded again while the lane has not come to the last wait.
      event.record(current_stream());
      event.block(lane);
      {
        const c10::StreamGuard guard(lane);
        sum = x.sum();
      }
      c10::Event back(device().type());
      back.record(lane);
      back.block(current_stream());
      EXPECT_EQ(sum.item<float>(), 1000.0F * static_cast<float>(round));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Policies,
    ::testing::Values(
        Policy{Order::kEager},
        Policy{Order::kLazy},
        Policy{Order::kRandom, 1},
        Policy{Order::kRandom, 2},
        Policy{Order::kStarve, 0, 0},
        Policy{Order::kStarve, 0, 33}),
    [](const auto& which) { return which.param.name(); });

TEST(Races, AMissingWaitIsFoundWithBothOperators) {
  expect_violation(
      "race: aten::mul.out on stream 33 reads memory that aten::fill_.Scalar on stream 0 writes",
      [] {
        const at::Tensor x = torch::empty({100}, device()).fill_(1);
        const c10::StreamGuard guard(new_stream(device(), /*is_lane=*/true));
        x.mul(2);
      });
}

TEST(Races, WritingWhatAnotherStreamReadsIsFound) {
  expect_violation(
      "race: aten::fill_.Scalar on stream 0 writes memory that aten::sum.IntList_out on stream 33 reads",
      [] {
        const at::Tensor x = torch::empty({100}, device());
        const c10::Stream lane = new_stream(device(), /*is_lane=*/true);
        at::Tensor sum;
        {
          const c10::StreamGuard guard(lane);
          sum = x.sum();
        }
        x.fill_(1);
      });
}

TEST(Races, ReadingDisjointPartsIsNone) {
  run_ranks_on_vdev(1, {Order::kLazy}, [](World&) {
    const at::Tensor x = torch::empty({4, 100}, device());
    const c10::Stream lane = new_stream(device(), /*is_lane=*/true);
    x.select(0, 0).fill_(1);
    x.narrow(1, 0, 10).narrow(0, 1, 3).fill_(1);
    const c10::StreamGuard guard(lane);
    x.select(0, 1).narrow(0, 50, 10).fill_(2);
    lane.synchronize();
  });
}

TEST(Memory, FreedMemoryIsNotUsedByAnotherStream) {
  expect_violation(
      "race: the release of memory on stream 0 writes memory that aten::sum.IntList_out on stream 33 reads",
      [] {
        at::Tensor x = torch::empty({100}, device());
        const c10::StreamGuard guard(new_stream(device(), /*is_lane=*/true));
        const at::Tensor sum = x.sum();
        x.reset();
      });
}

TEST(Memory, RecordStreamKeepsMemoryForAnotherStream) {
  run_ranks_on_vdev(1, {Order::kLazy}, [](World&) {
    at::Tensor x = torch::empty({100}, device());
    const void* data = x.const_data_ptr();
    const c10::Stream lane = new_stream(device(), /*is_lane=*/true);
    at::Tensor sum;
    {
      const c10::StreamGuard guard(lane);
      sum = x.sum();
    }
    x.record_stream(lane);
    x.reset();
    EXPECT_NE(torch::empty({100}, device()).const_data_ptr(), data);
    lane.synchronize();
    EXPECT_EQ(torch::empty({100}, device()).const_data_ptr(), data);
  });
}

TEST(Memory, WhatIsNotWrittenIsNan) {
  run_ranks_on_vdev(1, {Order::kEager}, [](World&) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(torch::empty({100}, device()).isnan().all().item<bool>());
    }
  });
}

TEST(Memory, APointerToNothingHasNoDevice) {
  run_ranks_on_vdev(1, {Order::kEager}, [](World&) {
    const auto options = at::TensorOptions().device(device());
    EXPECT_THROW(at::from_blob(nullptr, {0}, options), c10::Error);
    const at::Tensor there = torch::zeros({4}, device());
    EXPECT_EQ(at::from_blob(there.data_ptr(), {4}, options).device(), device());
  });
}

TEST(Copies, OnlyPinnedMemoryIsCopiedWhileTheHostGoesOn) {
  run_ranks_on_vdev(1, {Order::kLazy}, [](World&) {
    const auto synchronizations = [] {
      return Runtime::instance().counters().synchronizations;
    };
    const at::Tensor host = torch::ones({100});
    const at::Tensor pinned = host.pin_memory();
    EXPECT_TRUE(pinned.is_pinned());
    const int64_t before = synchronizations();
    const at::Tensor there = pinned.to(device(), /*non_blocking=*/true);
    const at::Tensor back = torch::empty({100}).pin_memory();
    back.copy_(there, /*non_blocking=*/true);
    EXPECT_EQ(synchronizations(), before);
    EXPECT_TRUE(std::isnan(back[0].item<float>())); // too early
    EXPECT_EQ(Runtime::instance().counters().pageable_copies, 0);
    host.to(device(), /*non_blocking=*/true);
    EXPECT_EQ(synchronizations(), before + 1);
    EXPECT_EQ(Runtime::instance().counters().pageable_copies, 1);
    EXPECT_EQ(back[0].item<float>(), 1.0F);
  });
}

} // namespace tessera::tests::vdev::vdev_device_test
