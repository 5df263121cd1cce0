// SPDX-License-Identifier: Apache-2.0
// Groups that are updated during backward: the same bits as with an update by
// step(), whatever the model does, and an error where that can not be.
#include "engine/matrix/matrix_net.h"
#include "engine/optim/every_rule.h"
#include "engine/twin.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"

#include "tessera/sharding/paging/pager.h"

#include <functional>

namespace tessera::tests::update_in_backward_test {

namespace {

struct Case {
  const char* name;
  EngineOptions options = group_per_layer();
  MatrixOptions net = {};
  /// Backward passes of step `step`.
  std::function<int(int step)> backwards = [](int) { return 1; };
};

at::Tensor tokens_of(int step, int backward, int rank) {
  torch::manual_seed(100 * step + 10 * backward + rank);
  return torch::randint(kVocabulary, {2, 5}, torch::kLong);
}

at::Tensor loss_of(MatrixNetImpl& net, const at::Tensor& tokens) {
  return torch::nn::functional::cross_entropy(
      net.forward(tokens), tokens.reshape(-1));
}

std::vector<at::Tensor> values_of(Engine& engine) {
  std::vector<at::Tensor> values;
  engine.for_each_parameter(
      [&](const std::string& /*name*/, const at::Tensor& value) {
        values.push_back(value.clone());
      });
  return values;
}

/// The parameters after every step of a run.
std::vector<std::vector<at::Tensor>> run(const Case& test, bool in_backward) {
  torch::manual_seed(5);
  auto net = std::make_shared<MatrixNetImpl>(test.net);
  EngineOptions options = test.options;
  options.update_in_backward = in_backward;
  Engine engine = wrap(net, options);
  std::vector<std::vector<at::Tensor>> history;
  for (int step = 0; step < 5; ++step) {
    engine.set_learning_rate(0.01 / (1 + step));
    for (int b = 0; b < test.backwards(step); ++b) {
      engine.backward(loss_of(*net, tokens_of(step, b, world().rank())));
    }
    // A plan is followed from the second step on, unless a step is shorter.
    EXPECT_EQ(
        engine.pager().pages().updated_in_backward(),
        in_backward && step > 0 && test.backwards(step) == test.backwards(0))
        << "step " << step;
    EXPECT_TRUE(engine.step());
    history.push_back(values_of(engine));
  }
  return history;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"plain"});
  all.push_back({"tied", group_per_layer(), {.variant = "tied"}});
  all.push_back({"frozen", group_per_layer(), {.variant = "frozen"}});
  all.push_back({"low_rank", group_per_layer(), {.variant = "low-rank"}});
  all.push_back({"unused", group_per_layer(), {.variant = "unused"}});
  all.push_back({"checkpointed", group_per_layer(), {.checkpointed = true}});
  all.push_back(
      {"checkpointed_and_tied",
       group_per_layer(),
       {.variant = "tied", .checkpointed = true}});
  all.push_back({"accumulated", group_per_layer(), {}, [](int) { return 3; }});
  all.push_back({"fewer_at_times", group_per_layer(), {}, [](int step) {
                   return step == 2 ? 1 : 2;
                 }});
  Case bfloat16{"bfloat16"};
  bfloat16.options.precision.parameters = at::kBFloat16;
  all.push_back(bfloat16);
  Case no_masters{"no_masters"};
  no_masters.options.precision.parameters = at::kBFloat16;
  no_masters.options.precision.master_weights = false;
  all.push_back(no_masters);
  Case stage2{"stage2"};
  stage2.options.sharding.zero_stage = 2;
  all.push_back(stage2);
  Case one_group{"one_group"};
  one_group.options.sharding.groups.min_group_numel = 1 << 20;
  all.push_back(one_group);
  Case hybrid{"hybrid"};
  hybrid.options.sharding.shard_ranks = 2;
  all.push_back(hybrid);
  for (const UpdateRule& rule : elementwise_rules()) {
    Case with_rule{name_of(rule)};
    with_rule.options.optimizer.rule = rule;
    all.push_back(with_rule);
  }
  return all;
}

/// A trained engine whose plan is known.
struct Trained {
  explicit Trained(EngineOptions options = group_per_layer())
      : twin([&options] {
          options.update_in_backward = true;
          return options;
        }()) {
    twin.train(0);
    twin.train(1);
  }
  void backward(int step) {
    twin.wrapped_backward(step, [](StackImpl& net, const at::Tensor& x) {
      return net.forward(x).square().mean();
    });
  }
  Twin<StackImpl> twin;
};

} // namespace

class UpdateInBackward : public ::testing::TestWithParam<int> {};

TEST_P(UpdateInBackward, GivesTheSameBits) {
  run_ranks(GetParam(), [](World& world) {
    for (const Case& test : cases()) {
      SCOPED_TRACE(test.name);
      const int copies = test.options.sharding.shard_ranks;
      if (copies > 0 && world.size() % copies != 0) {
        continue;
      }
      const auto expected = run(test, /*in_backward=*/false);
      const auto got = run(test, /*in_backward=*/true);
      for (size_t step = 0; step < expected.size(); ++step) {
        for (size_t i = 0; i < expected[step].size(); ++i) {
          EXPECT_TRUE(got[step][i].equal(expected[step][i]))
              << "parameter " << i << " after step " << step;
        }
      }
    }
  });
}

TEST_P(UpdateInBackward, AgreesWithPlainLibTorch) {
  run_ranks(GetParam(), [](World&) {
    EngineOptions options = group_per_layer();
    options.update_in_backward = true;
    Twin<StackImpl> twin(options);
    for (int step = 0; step < 4; ++step) {
      twin.train(step);
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

// What one rank has no gradient for, another one has: the step applies it where
// it was missed.
TEST_P(UpdateInBackward, RanksMayMissGradients) {
  run_ranks(GetParam(), [](World& world) {
    EngineOptions options = group_per_layer();
    options.update_in_backward = true;
    Twin<StackImpl> twin(options);
    const auto loss = [](StackImpl& net, int step, int rank) {
      at::Tensor x = net.first(batch_of(step, rank));
      for (auto& block : net.blocks) {
        x = block(x);
      }
      // The same reads on all ranks, but not the same gradients.
      const at::Tensor bias =
          (step + rank) % 2 == 1 ? net.last->bias.detach() : net.last->bias;
      return torch::linear(x, net.last->weight, bias).square().mean();
    };
    for (int step = 0; step < 5; ++step) {
      for (int r = 0; r < world.size(); ++r) {
        (loss(*twin.plain, step, r) / world.size()).backward();
      }
      twin.engine.backward(loss(*twin.wrapped, step, twin.rank()));
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(UpdateInBackward, GradientsNeedNoMemoryFromTheSecondStepOn) {
  run_ranks(GetParam(), [](World&) {
    Trained trained;
    Engine& engine = trained.twin.engine;
    const auto gradients = [&] {
      return engine
          .measured_memory()[static_cast<size_t>(MemoryPurpose::kGradients)];
    };
    const auto planned = engine.planned_memory();
    EXPECT_EQ(planned[static_cast<size_t>(MemoryPurpose::kGradients)], 0);
    EXPECT_EQ(gradients(), 0);
    trained.backward(2);
    EXPECT_EQ(gradients(), 0);
    EXPECT_EQ(total_bytes(engine.measured_memory()), total_bytes(planned));
    engine.step();
  });
}

// It collects the gradients that later steps apply at once.
TEST_P(UpdateInBackward, TheFirstStepStaysWithinTheBudget) {
  run_ranks(GetParam(), [](World& world) {
    EngineOptions options = group_per_layer();
    options.update_in_backward = true;
    {
      const Engine unlimited = wrap(make_net<StackImpl>(), options);
      int64_t bytes = total_bytes(unlimited.planned_memory());
      for (const auto& page : unlimited.pager().pages()) {
        bytes += page->spec().first_gradient_bytes();
      }
      options.memory.device_bytes = bytes;
    }
    const auto net = make_net<StackImpl>();
    Engine engine = wrap(net, options);
    EXPECT_LT(
        total_bytes(engine.planned_memory()), *options.memory.device_bytes);
    engine.backward(mean_square(*net, batch_of(0, world.rank())));
    const MemoryBytes measured = engine.measured_memory();
    EXPECT_GT(measured[static_cast<size_t>(MemoryPurpose::kGradients)], 0);
    EXPECT_LE(total_bytes(measured), *options.memory.device_bytes);
    engine.step();
  });
}

TEST_P(UpdateInBackward, WhatComesTooLateIsAnError) {
  run_ranks(GetParam(), [](World&) {
    Trained trained;
    trained.backward(2);
    expect_error(
        [&] { trained.backward(3); },
        {"group '", "after it was updated in backward", "engine.step()"});
  });
}

// It is in the weights already.
TEST_P(UpdateInBackward, WhatWasAppliedCannotBeDropped) {
  run_ranks(GetParam(), [](World&) {
    Trained trained;
    Engine& engine = trained.twin.engine;
    trained.backward(2);
    expect_error(
        [&] { engine.zero_grad(); },
        {"Engine::zero_grad", "update_in_backward", "engine.step()"});
    expect_error(
        [&] { engine.for_each_parameter([](auto&, auto&) {}, true); },
        {"Engine::for_each_parameter", "update_in_backward", "engine.step()"});
    EXPECT_TRUE(engine.step());
    engine.for_each_parameter([](auto&, auto&) {}, true);
    trained.backward(3);
    trained.twin.wrapped->zero_grad(); // without the engine's knowledge
    expect_error(
        [&] { trained.backward(4); }, {"after it was updated in backward"});
    expect_error([&] { engine.step(); }, {"dropped", "update_in_backward"});
  });
}

TEST_P(UpdateInBackward, WhatWasAppliedCannotBeSetToZero) {
  run_ranks(GetParam(), [](World&) {
    Trained trained;
    trained.backward(2);
    expect_error(
        [&] { trained.twin.wrapped->zero_grad(/*set_to_none=*/false); },
        {"after it was updated in backward"});
  });
}

// One that is not the engine's collects, so that its gradients can be dropped.
TEST_P(UpdateInBackward, IsOnlyThatOfTheEngine) {
  run_ranks(GetParam(), [](World&) {
    Trained trained;
    auto& twin = trained.twin;
    const auto before = values_of(twin.engine);
    mean_square(*twin.wrapped, batch_of(7, twin.rank())).backward();
    EXPECT_FALSE(twin.engine.pager().pages().updated_in_backward());
    twin.engine.zero_grad();
    const auto after = values_of(twin.engine);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(after[i].equal(before[i])) << i;
    }
    for (int step = 2; step < 5; ++step) {
      twin.train(step);
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
    // Without zero_grad() it is a part of the step.
    twin.plain_backward(5, mean_square);
    mean_square(*twin.wrapped, batch_of(5, twin.rank())).backward();
    twin.train(6);
    twin.expect_same_parameters("of two backwards");
  });
}

// What the engine's backward leaves then waits for the step.
TEST_P(UpdateInBackward, AnotherBackwardMayFollowThatOfTheEngine) {
  run_ranks(GetParam(), [](World&) {
    EngineOptions options = group_per_layer();
    options.update_in_backward = true;
    Twin<StackImpl> twin(options);
    const auto loss = [](StackImpl& net, const at::Tensor& x) {
      return mean_square(net, x);
    };
    for (int step = 0; step < 4; ++step) {
      for (const int batch : {2 * step, 2 * step + 1}) {
        twin.plain_backward(batch, loss);
      }
      twin.wrapped_backward(2 * step, loss);
      loss(*twin.wrapped, batch_of(2 * step + 1, twin.rank())).backward();
      EXPECT_FALSE(twin.engine.pager().pages().updated_in_backward()) << step;
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(UpdateInBackward, CallsThatNeedGradientsAreRefused) {
  run_ranks(GetParam(), [](World&) {
    Trained trained;
    Engine& engine = trained.twin.engine;
    const at::Tensor& weight = trained.twin.wrapped->last->weight;
    trained.backward(2);
    for (const std::function<void()>& call : std::vector<std::function<void()>>{
             [&] { engine.clip_grad_norm(1.0); },
             [&] { engine.clip_grad_value(1.0); },
             [&] { engine.grad(weight); },
             [&] {
               engine.reduce(weight, at::zeros({2, kWidth}));
             }}) {
      expect_error(call, {"Engine::", "update_in_backward", "false"});
    }
    expect_error([&] { engine.save("nowhere"); }, {"Engine::save", "step()"});
    expect_error(
        [&] { engine.set_learning_rate(0.5); }, {"before the first backward"});
    engine.step();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    UpdateInBackward,
    ::testing::Values(1, 2, 3, 4));

// Without a plan the gradients of a step are counted.
TEST(UpdateInBackwardAlone, GoesOnAfterWeightsAreLoadedWithinAStep) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World&) {
    Trained trained;
    Engine& engine = trained.twin.engine;
    const auto path = folder.path() / "weights";
    engine.save_weights(path);
    trained.backward(2);
    engine.load_weights(path);
    for (int step = 3; step < 5; ++step) {
      trained.backward(step);
      EXPECT_TRUE(engine.pager().pages().updated_in_backward()) << step;
      engine.step();
    }
  });
}

TEST(UpdateInBackwardOptions, WhatDoesNotGoTogetherIsRefused) {
  run_ranks(1, [](World&) {
    const auto refused = [](const std::function<void(EngineOptions&)>& change,
                            const char* label) {
      EngineOptions options = group_per_layer();
      options.update_in_backward = true;
      change(options);
      expect_error(
          [&] { wrap(make_net<StackImpl>(), options); },
          {"update_in_backward cannot be combined with", label});
    };
    refused(
        [](auto& options) { options.optimizer.rule = LambOptions{}; },
        "use AdamW, Adam, SGD, Lion or Adan, or");
    refused(
        [](auto& options) { options.sharding.zero_stage = 1; }, "zero_stage 2");
    refused(
        [](auto& options) { options.precision.parameters = at::kHalf; },
        "loss scaling");
  });
}

} // namespace tessera::tests::update_in_backward_test
