// SPDX-License-Identifier: Apache-2.0
// Control flow that changes from step to step, the same on all ranks: the plain
// run's numbers all the same.
#include "engine/twin.h"
#include "support/ranks.h"

namespace tessera::tests::control_flow_test {

namespace {

at::Tensor through(
    StackImpl& net,
    at::Tensor x,
    const std::vector<size_t>& blocks) {
  x = net.first(x);
  for (const size_t i : blocks) {
    x = net.blocks[i](x);
  }
  return net.last(x).square().mean();
}

/// Trains with the given blocks in each step.
void expect_plain_numbers(
    int world_size,
    const std::function<std::vector<size_t>(int)>& blocks_of_step) {
  run_ranks(world_size, [&](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 9; ++step) {
      const auto blocks = blocks_of_step(step);
      twin.train(step, [&](StackImpl& net, const at::Tensor& x) {
        return through(net, x, blocks);
      });
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

} // namespace

class ControlFlow : public ::testing::TestWithParam<int> {};

TEST_P(ControlFlow, LayerLeftOutEveryOtherStep) {
  expect_plain_numbers(GetParam(), [](int step) -> std::vector<size_t> {
    return step % 2 == 0 ? std::vector<size_t>{0, 1, 2}
                         : std::vector<size_t>{0, 2};
  });
}

TEST_P(ControlFlow, OrderOfLayersChanges) {
  expect_plain_numbers(GetParam(), [](int step) -> std::vector<size_t> {
    const size_t s = static_cast<size_t>(step / 2);
    return {s % 3, (s + 2) % 3, (s + 1) % 3};
  });
}

TEST_P(ControlFlow, LengthOfALoopChanges) {
  expect_plain_numbers(GetParam(), [](int step) {
    std::vector<size_t> blocks{0};
    for (int i = 0; i < (step * step) % 5; ++i) {
      blocks.push_back(1);
      blocks.push_back(2);
    }
    return blocks;
  });
}

TEST_P(ControlFlow, NumberOfMicroBatchesChanges) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 8; ++step) {
      for (int m = 0; m < 1 + (step / 2) % 3; ++m) {
        const auto loss = [&](StackImpl& net, const at::Tensor& x) {
          return through(net, x, {0, 1, 2});
        };
        twin.plain_backward(10 * step + m, loss);
        twin.wrapped_backward(10 * step + m, loss);
      }
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(ControlFlow, LayersThatSomeRanksLeaveOut) {
  // With a plan, the other ranks gather and reduce in their stead; what a rank
  // did not compute counts as zero.
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    const auto all = [](StackImpl& net, const at::Tensor& x) {
      return through(net, x, {0, 1, 2});
    };
    twin.train(0, all);
    twin.train(1, all);
    for (int step = 2; step < 7; ++step) {
      const auto loss_of = [&](int rank) {
        const bool leaves_out = (rank + step) % 2 == 0;
        return [leaves_out](StackImpl& net, const at::Tensor& x) {
          return leaves_out ? through(net, x, {0, 2})
                            : through(net, x, {0, 1, 2});
        };
      };
      for (int r = 0; r < world.size(); ++r) {
        (loss_of(r)(*twin.plain, batch_of(step, r)) / world.size()).backward();
      }
      twin.wrapped_backward(step, loss_of(world.rank()));
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(ControlFlow, RanksEvaluateOtherNumbersOfBatchesInAScope) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    const auto loss_of = [](StackImpl& net, const at::Tensor& x) {
      return through(net, x, {0, 1, 2});
    };
    for (int step = 0; step < 4; ++step) {
      twin.train(step, loss_of);
      const at::Tensor sum = torch::zeros({1}, torch::kDouble);
      {
        const auto scope = twin.engine.gather();
        const torch::NoGradGuard no_grad;
        for (int i = 0; i < 2 * world.rank(); ++i) { // none on rank 0
          const at::Tensor x = batch_of(100 + i, 0);
          const at::Tensor loss = loss_of(*twin.wrapped, x);
          EXPECT_NEAR(
              loss.item<double>(),
              loss_of(*twin.plain, x).item<double>(),
              1e-9);
          sum.add_(1);
        }
      }
      twin.engine.sum_over_ranks(sum);
      EXPECT_EQ(sum.item<double>(), world.size() * (world.size() - 1));
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(ControlFlow, OneOperatorOverSeveralGroups) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 5; ++step) {
      twin.train(step, [](StackImpl& net, const at::Tensor& x) {
        const auto weights = torch::cat(
            {net.blocks[0]->up->weight,
             net.blocks[1]->up->weight,
             net.blocks[2]->up->weight,
             net.first->weight});
        return torch::matmul(net.last(x).sum() * x, weights.t())
            .square()
            .mean();
      });
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(ControlFlow, StaticFlowGathersNothingOnDemand) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    twin.train(0);
    const auto first = twin.engine.stats().paging.on_demand_unshards;
    EXPECT_EQ(first > 0, world.size() > 1);
    for (int step = 1; step < 4; ++step) {
      twin.train(step);
    }
    EXPECT_EQ(twin.engine.stats().paging.on_demand_unshards, first);
  });
}

TEST_P(ControlFlow, StaticFlowIsFoundAgainAfterADisturbance) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 3; ++step) {
      twin.train(step);
    }
    const auto other = [](StackImpl& net, const at::Tensor& x) {
      return through(net, x, {2, 0, 0, 1});
    };
    twin.train(3, other);
    twin.train(4);
    twin.train(5);
    const auto settled = twin.engine.stats().paging;
    for (int step = 6; step < 9; ++step) {
      twin.train(step);
    }
    EXPECT_EQ(
        twin.engine.stats().paging.on_demand_unshards,
        settled.on_demand_unshards);
    twin.expect_same_parameters();
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ControlFlow, ::testing::Range(1, 4));

} // namespace tessera::tests::control_flow_test
