// SPDX-License-Identifier: Apache-2.0
// How gradients of other people's training loops can go wrong without a word.
#include "engine/twin.h"
#include "support/ranks.h"
#include "tessera/sharding/paging/pager.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::tests::gradient_traps_test {

namespace {

/// Layers of which a step may leave out some.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl()
      : trunk(register_module("trunk", torch::nn::Linear(kWidth, kWidth))),
        left(register_module("left", torch::nn::Linear(kWidth, 3))),
        right(register_module("right", torch::nn::Linear(kWidth, 3))),
        unused(register_module("unused", torch::nn::Linear(kWidth, 3))) {}
  at::Tensor forward(const at::Tensor& x, bool use_left) {
    const auto y = torch::tanh(trunk(x));
    return use_left ? left(y) : right(y);
  }
  torch::nn::Linear trunk;
  torch::nn::Linear left;
  torch::nn::Linear right;
  torch::nn::Linear unused;
};

/// Checkpointing as people write it: forward again, backward in backward.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      BlockImpl* block) {
    context->save_for_backward({x});
    context->saved_data["block"] = reinterpret_cast<int64_t>(block);
    return block->forward(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    auto* block =
        reinterpret_cast<BlockImpl*>(context->saved_data["block"].toInt());
    const at::AutoGradMode enable(true);
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({block->forward(x)}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

at::Tensor checkpointed_loss(StackImpl& net, const at::Tensor& x) {
  auto y = net.first(x);
  for (auto& block : net.blocks) {
    y = Recompute::apply(y, block.get());
  }
  return net.last(y).square().mean();
}

/// Records the norm of each gradient it is shown.
class RecordingHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit RecordingHook(std::vector<double>& norms) : norms_(norms) {}
  void operator()(const torch::autograd::Variable& tensor) override {
    norms_.push_back(tensor.grad().norm().item<double>());
  }

 private:
  std::vector<double>& norms_;
};

/// Throws once, in the middle of backward.
struct ThrowInBackward : torch::autograd::Function<ThrowInBackward> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* /*context*/,
      const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      const torch::autograd::variable_list& /*gradients*/) {
    throw std::runtime_error("backward was interrupted");
  }
};

} // namespace

class GradientTraps : public ::testing::TestWithParam<int> {};

TEST_P(GradientTraps, ParametersThatSomeStepsDoNotUse) {
  run_ranks(GetParam(), [](World&) {
    Twin<BranchesImpl> twin;
    for (int step = 0; step < 6; ++step) {
      const bool use_left = step % 3 != 1;
      twin.train(step, [&](BranchesImpl& net, const at::Tensor& x) {
        return net.forward(x, use_left).square().mean();
      });
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTraps, RanksThatUseDifferentParametersOfOneGroup) {
  run_ranks(GetParam(), [](World& world) {
    auto options = group_per_layer();
    options.sharding.groups.min_group_numel = 1 << 20; // one group
    Twin<BranchesImpl> twin(options);
    ASSERT_EQ(twin.engine.pager().pages().size(), 1);
    for (int step = 0; step < 5; ++step) {
      const auto loss_of = [&](int rank) {
        return [&, rank](BranchesImpl& net, const at::Tensor& x) {
          return net.forward(x, (rank + step) % 2 == 0).square().mean();
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

// What zero_grad() has dropped of a step does not count: the step begins again,
// also where a rank then uses other layers than others.
TEST_P(GradientTraps, StepsThatBeginAgainMayLackALayerOnOneRank) {
  for (const int stage : {1, 2, 3}) {
    for (const bool one_group : {false, true}) {
      for (const int dropped : {1, 2}) {
        SCOPED_TRACE(
            std::to_string(stage) + (one_group ? " one group " : " groups ") +
            std::to_string(dropped));
        run_ranks(GetParam(), [&](World& world) {
          auto options = group_per_layer();
          options.sharding.zero_stage = stage;
          options.sharding.groups.min_group_numel = one_group ? 1 << 20 : 0;
          Twin<BranchesImpl> twin(options);
          const auto both = [](BranchesImpl& net, const at::Tensor& x) {
            return net.forward(x, true).square().mean() +
                   net.forward(x, false).square().mean();
          };
          for (int step = 0; step < 8; ++step) {
            const auto loss_of = [&](int rank) {
              return [&, rank](BranchesImpl& net, const at::Tensor& x) {
                return step < 2 ? both(net, x)
                                : net.forward(x, (rank + step) % 2 == 0)
                                      .square()
                                      .mean();
              };
            };
            for (int i = 0; step % 3 == 1 && i < dropped; ++i) {
              twin.wrapped_backward(50 + step + i, both);
            }
            if (step % 3 == 1) {
              twin.engine.zero_grad();
            }
            for (int r = 0; r < world.size(); ++r) {
              (loss_of(r)(*twin.plain, batch_of(step, r)) / world.size())
                  .backward();
            }
            twin.wrapped_backward(step, loss_of(world.rank()));
            twin.step();
            twin.expect_same_parameters("after step " + std::to_string(step));
          }
        });
      }
    }
  }
}

TEST_P(GradientTraps, GroupUsedThreeTimes) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 4; ++step) {
      twin.train(step, [](StackImpl& net, const at::Tensor& x) {
        auto y = net.blocks[0](net.blocks[1](net.blocks[0](net.first(x))));
        return net.last(net.blocks[0](net.blocks[2](y))).square().mean();
      });
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTraps, BackwardInsideBackward) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 4; ++step) {
      twin.train(step, checkpointed_loss);
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTraps, BackwardInsideBackwardFromTheFirstOperatorOn) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 4; ++step) {
      twin.train(step, [](StackImpl& net, const at::Tensor& x) {
        const auto input = x.clone().requires_grad_();
        const auto y = Recompute::apply(input, net.blocks[0].get());
        return net.last(Recompute::apply(y, net.blocks[0].get()))
            .square()
            .mean();
      });
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTraps, AccumulationOverMicroBatches) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 5; ++step) {
      const int micro_batches = step == 3 ? 1 : 3;
      for (int m = 0; m < micro_batches; ++m) {
        twin.plain_backward(10 * step + m, mean_square);
        twin.wrapped_backward(10 * step + m, mean_square);
      }
      twin.expect_same_gradients("in step " + std::to_string(step));
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTraps, TwoLossesWithOneGraph) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 3; ++step) {
      const auto two = [&](StackImpl& net, const at::Tensor& x, double scale) {
        const auto y = net.forward(x);
        (y.square().mean() * scale).backward({}, /*retain_graph=*/true);
        (y.abs().mean() * scale).backward();
      };
      for (int r = 0; r < world.size(); ++r) {
        two(*twin.plain, batch_of(step, r), 1.0 / world.size());
      }
      two(*twin.wrapped, batch_of(step, world.rank()), 1.0);
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTraps, GraphKeptOverAStepIsRefused) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    twin.train(0);
    const auto kept = mean_square(*twin.wrapped, batch_of(1, world.rank()));
    kept.backward({}, /*retain_graph=*/true);
    twin.engine.step();
    // Autograd's own words for a value that has changed since it was saved.
    expect_throws(
        [&] { twin.engine.backward(kept); },
        {"modified by an inplace operation"});
  });
}

TEST_P(GradientTraps, ExceptionInMidForward) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 6; ++step) {
      if (step % 2 == 1) {
        expect_throws(
            [&] {
              auto y = twin.wrapped->first(batch_of(step, world.rank()));
              y = twin.wrapped->blocks[0](y);
              // A shape that does not fit: thrown by an operator that takes
              // a sharded parameter.
              twin.wrapped->blocks[1](torch::zeros({2, 3}, torch::kDouble));
            },
            {"mat1 and mat2 shapes cannot be multiplied"});
      }
      twin.train(step);
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTraps, ExceptionOfTheUserBetweenOperators) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 6; ++step) {
      if (step == 0 || step == 3) {
        expect_throws(
            [&] {
              twin.wrapped->first(batch_of(step, world.rank()));
              throw std::runtime_error("no more data");
            },
            {"no more data"});
      }
      twin.train(step);
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTraps, ExceptionInMidBackward) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    const auto broken = [&](StackImpl& net, const at::Tensor& x) {
      auto y = net.blocks[0](net.first(x));
      y = net.blocks[1](ThrowInBackward::apply(y));
      return net.last(net.blocks[2](y)).square().mean();
    };
    for (int step = 0; step < 7; ++step) {
      if (step == 0 || step == 3 || step == 4) {
        // What arrived before the exception stays, in both.
        for (int r = 0; r < world.size(); ++r) {
          expect_throws(
              [&] {
                (broken(*twin.plain, batch_of(100 + step, r)) / world.size())
                    .backward();
              },
              {"interrupted"});
        }
        expect_throws(
            [&] {
              twin.engine.backward(
                  broken(*twin.wrapped, batch_of(100 + step, world.rank())));
            },
            {"interrupted"});
        if (step == 4) {
          twin.plain->zero_grad();
          twin.wrapped->zero_grad();
        }
      }
      twin.train(step);
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
    // The plan is found again: no gather on demand in an undisturbed step.
    const auto before = twin.engine.stats().paging.on_demand_unshards;
    twin.train(8);
    twin.train(9);
    const auto middle = twin.engine.stats().paging.on_demand_unshards;
    twin.train(10);
    EXPECT_EQ(twin.engine.stats().paging.on_demand_unshards, middle)
        << "before: " << before;
  });
}

TEST_P(GradientTraps, HookOfTheUserSeesTheLocalGradient) {
  run_ranks(GetParam(), [](World& world) {
    std::vector<double> plain_norms;
    std::vector<double> norms;
    auto plain = make_net<StackImpl>();
    auto net = make_net<StackImpl>();
    torch::autograd::impl::set_post_acc_grad_hooks(
        plain->last->weight, std::make_unique<RecordingHook>(plain_norms));
    auto hook = std::make_unique<RecordingHook>(norms);
    const auto* address = hook.get();
    torch::autograd::impl::set_post_acc_grad_hooks(
        net->last->weight, std::move(hook));
    Twin<StackImpl> twin(plain, net);
    for (int step = 0; step < 2; ++step) {
      mean_square(*plain, batch_of(step, world.rank())).backward();
      plain->zero_grad();
      twin.train(step);
    }
    // The plain model saw its own batch of this rank first, then those of all
    // ranks for the comparison.
    const size_t stride = 1 + static_cast<size_t>(world.size());
    ASSERT_EQ(norms.size(), 2);
    ASSERT_EQ(plain_norms.size(), 2 * stride);
    EXPECT_NEAR(norms[0], plain_norms[0], 1e-9);
    EXPECT_NEAR(norms[1], plain_norms[stride], 1e-9);
    twin.expect_same_parameters();
    twin.engine.unwrap();
    EXPECT_EQ(
        torch::autograd::impl::post_acc_grad_hooks(net->last->weight).get(),
        address);
    EXPECT_EQ(
        torch::autograd::impl::post_acc_grad_hooks(net->first->weight).get(),
        nullptr);
  });
}

TEST_P(GradientTraps, HookThatTheUserPutsInPlaceOfOurs) {
  run_ranks(GetParam(), [](World&) {
    std::vector<double> norms;
    Twin<StackImpl> twin;
    twin.train(0);
    torch::autograd::impl::set_post_acc_grad_hooks(
        twin.wrapped->blocks[0]->up->weight,
        std::make_unique<RecordingHook>(norms));
    for (int step = 1; step < 4; ++step) {
      twin.train(step);
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
    EXPECT_EQ(norms.size(), 3);
  });
}

TEST_P(GradientTraps, GradientsSetByHand) {
  run_ranks(GetParam(), [](World& world) {
    Twin<BranchesImpl> twin;
    const auto loss = [](BranchesImpl& net, const at::Tensor& x) {
      return net.forward(x, true).square().mean();
    };
    for (int step = 0; step < 4; ++step) {
      // `unused` gets no gradient from backward, `left` gets one more.
      twin.plain->unused->weight.mutable_grad() =
          torch::full({3, kWidth}, 0.5, torch::kDouble);
      twin.plain->left->bias.mutable_grad() =
          torch::full({3}, 0.25, torch::kDouble);
      twin.wrapped->unused->weight.mutable_grad() =
          torch::full({3, kWidth}, 0.5, torch::kDouble);
      twin.wrapped->left->bias.mutable_grad() =
          torch::full({3}, 0.25, torch::kDouble);
      twin.plain_backward(step, loss);
      twin.wrapped_backward(step, loss);
      twin.expect_same_gradients("in step " + std::to_string(step));
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
    (void)world;
  });
}

// A step divides every gradient by the loss scale, those too.
TEST_P(GradientTraps, GradientsSetByHandUnderALossScaleAreRefused) {
  run_ranks(GetParam(), [](World&) {
    auto options = group_per_layer();
    options.loss_scale.fixed = 256;
    auto net = make_net<BranchesImpl>();
    auto engine = wrap(net, options);
    const auto loss = [&] {
      return net->forward(batch_of(0, 0), true).square().mean();
    };
    const at::Tensor ones = torch::ones({3, kWidth}, torch::kDouble);
    const at::Tensor weight = net->left->weight;
    const auto expect_refused = [&](const char* name) {
      expect_error(
          [&] { engine.step(); },
          {"the loss scale of 256, but those of '",
           name,
           "set by hand",
           "engine.reduce()"});
      engine.zero_grad();
    };
    for (int step = 0; step < 3; ++step) {
      engine.backward(loss());
      weight.mutable_grad() = ones; // after it
      expect_refused("left.weight");
      weight.mutable_grad() = ones; // before it
      engine.backward(loss());
      expect_refused("left.weight");
      engine.backward(loss());
      weight.mutable_grad().add_(ones); // to it
      expect_refused("left.weight");
      engine.backward(loss()); // where it gives none
      net->unused->weight.mutable_grad() = ones;
      expect_refused("unused.weight");

      engine.backward(loss());
      engine.backward(loss());
      engine.reduce(net->unused->weight, ones);
      EXPECT_TRUE(engine.step());
    }
    // Autograd calls this hook in place of the engine's.
    std::vector<double> norms;
    torch::autograd::impl::set_post_acc_grad_hooks(
        weight, std::make_unique<RecordingHook>(norms));
    for (int step = 0; step < 3; ++step) {
      engine.backward(loss());
      EXPECT_TRUE(engine.step());
    }
    EXPECT_EQ(norms.size(), 3);
  });
}

TEST_P(GradientTraps, GradientSetByHandInAGroupThatBackwardReduces) {
  run_ranks(GetParam(), [](World&) {
    auto options = group_per_layer();
    options.sharding.groups.min_group_numel = 1 << 20; // one group
    Twin<BranchesImpl> twin(options);
    const auto loss = [](BranchesImpl& net, const at::Tensor& x) {
      return net.forward(x, true).square().mean();
    };
    for (int step = 0; step < 3; ++step) {
      for (auto* net : {twin.plain.get(), twin.wrapped.get()}) {
        net->unused->weight.mutable_grad() =
            torch::full({3, kWidth}, 0.5, torch::kDouble);
      }
      twin.plain_backward(step, loss);
      twin.wrapped_backward(step, loss);
      twin.expect_same_gradients("in step " + std::to_string(step));
      twin.step();
    }
    twin.expect_same_parameters();
  });
}

TEST_P(GradientTraps, ParameterWithGapsInItsStorage) {
  run_ranks(GetParam(), [](World&) {
    struct Columns : torch::nn::Module {
      Columns() {
        weight = register_parameter(
            "weight",
            torch::randn({kWidth, 2 * kWidth}).narrow(1, 0, 3).detach());
        bias = register_parameter("bias", torch::zeros({3}));
      }
      at::Tensor forward(const at::Tensor& x) {
        return torch::matmul(x, weight) + bias;
      }
      at::Tensor weight;
      at::Tensor bias;
    };
    const auto make = [] {
      torch::manual_seed(5);
      auto net = std::make_shared<Columns>();
      // Module::to would make the weight contiguous.
      net->weight.set_data(
          torch::randn({kWidth, 2 * kWidth}, torch::kDouble).narrow(1, 0, 3));
      net->bias.set_data(torch::zeros({3}, torch::kDouble));
      return net;
    };
    Twin<Columns> twin(make(), make());
    ASSERT_FALSE(twin.wrapped->weight.is_contiguous());
    const auto loss = [](Columns& net, const at::Tensor& x) {
      return net.forward(x).square().mean();
    };
    for (int step = 0; step < 4; ++step) {
      twin.plain_backward(step, loss);
      twin.wrapped_backward(step, loss);
      const double expected =
          torch::nn::utils::clip_grad_norm_(twin.plain->parameters(), 0.1);
      EXPECT_NEAR(twin.engine.clip_grad_norm(0.1), expected, 1e-9);
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(GradientTraps, LossesThatShareAForwardAreAdded) {
  run_ranks(GetParam(), [](World& world) {
    auto net = std::make_shared<BranchesImpl>();
    net->to(torch::kDouble);
    auto engine = wrap(net, group_per_layer());
    const auto y = net->forward(batch_of(0, world.rank()), true);
    const auto first = y.square().mean();
    const auto second = y.abs().mean();
    engine.backward(first);
    expect_throws(
        [&] { engine.backward(second); },
        {"Engine::backward", "engine.backward(first + second)"});
  });
}

// A loop of plain LibTorch resets them at the start of its step.
TEST_P(GradientTraps, GradientsFromBeforeWrapAreTold) {
  run_ranks(GetParam(), [](World& world) {
    for (const bool is_reset : {false, true}) {
      auto net = std::make_shared<BranchesImpl>();
      net->forward(torch::randn({2, kWidth}), true).sum().backward();
      if (is_reset) {
        net->zero_grad();
      }
      ::testing::internal::CaptureStderr();
      auto engine = wrap(net, group_per_layer());
      const std::string log = ::testing::internal::GetCapturedStderr();
      EXPECT_EQ(
          log.find("4 parameters have gradients, the first of them "
                   "'trunk.weight'") != std::string::npos,
          !is_reset && world.rank() == 0)
          << log;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, GradientTraps, ::testing::Range(1, 4));

} // namespace tessera::tests::gradient_traps_test
