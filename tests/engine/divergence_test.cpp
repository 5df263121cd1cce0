// SPDX-License-Identifier: Apache-2.0
// Ranks that do different things: an error on every rank that says who wanted
// what, within seconds; never a hang, never sums of the wrong groups.
//
// The timeout of collectives is far above the time limit of the expectations,
// so that no test passes by running into it.
#include "engine/twin.h"
#include "support/ranks.h"

#include <unistd.h>

#include <chrono>
#include <csignal>

namespace tessera::tests::divergence_test {

namespace {

constexpr std::chrono::seconds kCollectiveTimeout{60};
constexpr std::chrono::seconds kSoon{20};

/// A training loop in which a rank may do something else in one step.
struct Loop {
  std::shared_ptr<StackImpl> net = make_net<StackImpl>();
  Engine engine;
  int rank = world().rank();

  explicit Loop(const EngineOptions& options = group_per_layer())
      : engine(wrap(net, options)) {}

  void train(int step) {
    engine.backward(mean_square(*net, batch_of(step, rank)));
    engine.step();
  }
  void evaluate() {
    const at::NoGradGuard guard;
    net->forward(batch_of(1, rank));
  }
  /// Forward that leaves out or swaps a block of equal size.
  at::Tensor forward_through(std::vector<size_t> blocks) {
    auto x = net->first(batch_of(3, rank));
    for (const size_t i : blocks) {
      x = net->blocks[i](x);
    }
    return net->last(x).square().mean();
  }
};

/// Runs `body` on all ranks after `steps` steps of training, and expects that
/// every rank ends soon.
std::vector<RankResult> results_of(
    int world_size,
    int steps,
    const std::function<void(Loop&)>& body,
    const std::function<void(EngineOptions&)>& change_of_rank_1 = {}) {
  RankOptions options;
  options.limit = std::chrono::seconds(50);
  options.collective_timeout = kCollectiveTimeout;
  const auto start = std::chrono::steady_clock::now();
  auto results = run_ranks_expecting(
      world_size,
      [&](World& world) {
        EngineOptions chosen = group_per_layer();
        if (change_of_rank_1 && world.rank() == 1) {
          change_of_rank_1(chosen);
        }
        Loop loop(chosen);
        for (int step = 0; step < steps; ++step) {
          loop.train(step);
        }
        body(loop);
      },
      options);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
  EXPECT_EQ(results.size(), static_cast<size_t>(world_size));
  return results;
}

/// Expects of every rank an error whose message holds every one of `parts`.
void expect_errors(
    const std::vector<RankResult>& results,
    const std::vector<const char*>& parts) {
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_EQ(results[r].exit_code, 3) << "rank " << r << ":\n"
                                       << results[r].output;
    for (const char* part : parts) {
      EXPECT_NE(results[r].output.find(part), std::string::npos)
          << "expected: " << part << "\nrank " << r << ":\n"
          << results[r].output;
    }
  }
}

} // namespace

class Divergence : public ::testing::TestWithParam<int> {
 protected:
  /// results_of() and expect_errors().
  static void expect_all_fail(
      int steps,
      const std::function<void(Loop&)>& body,
      const std::vector<const char*>& parts) {
    expect_errors(results_of(GetParam(), steps, body), parts);
  }
};

TEST_P(Divergence, OtherGroupsOfEqualSizeInTheFirstStep) {
  expect_all_fail(
      0,
      [](Loop& loop) {
        const auto loss = loop.rank == 0 ? loop.forward_through({0, 1, 2})
                                         : loop.forward_through({1, 0, 2});
        loop.engine.backward(loss);
        loop.engine.step();
      },
      {"different paths",
       "rank 0: reads parameter 'block0.up.",
       "rank 1: reads parameter 'block1.up."});
}

TEST_P(Divergence, OtherGroupsOfEqualSizeInAPlannedStep) {
  expect_all_fail(
      3,
      [](Loop& loop) {
        const auto loss = loop.rank == 0 ? loop.forward_through({0, 1, 2})
                                         : loop.forward_through({2, 0, 1});
        loop.engine.backward(loss);
        loop.engine.step();
        loop.train(4);
      },
      {"different paths", "rank 1", "block"});
}

TEST_P(Divergence, OneSavesWeights) {
  expect_all_fail(
      1,
      [](Loop& loop) {
        if (loop.rank == 0) {
          loop.engine.save_weights("/dev/null/never");
        } else {
          loop.train(1);
        }
      },
      {"different paths", "rank 0: lists the tensors of the model"});
}

TEST_P(Divergence, OneIterationMore) {
  expect_all_fail(
      4,
      [](Loop& loop) {
        if (loop.rank == 0) {
          loop.train(4);
        }
        loop.engine.unwrap();
      },
      {": unwraps the module", "rank 0: "});
}

TEST_P(Divergence, OneForwardMoreBeforeTheStep) {
  expect_all_fail(
      4,
      [](Loop& loop) {
        loop.engine.backward(mean_square(*loop.net, batch_of(4, loop.rank)));
        if (loop.rank == 0) {
          mean_square(*loop.net, batch_of(5, loop.rank));
        }
        loop.engine.step();
      },
      {"rank 0: reads parameter 'first.", "rank 1: applies the gradients"});
}

TEST_P(Divergence, StepWhileOthersRunForward) {
  expect_all_fail(
      4,
      [](Loop& loop) {
        if (loop.rank == 1) {
          loop.engine.step();
        } else {
          loop.train(4);
        }
      },
      {"rank 1", "applies the gradients"});
}

TEST_P(Divergence, StepWhileOthersRunForwardInTheFirstStep) {
  expect_all_fail(
      0,
      [](Loop& loop) {
        if (loop.rank == 1) {
          loop.engine.step();
        } else {
          loop.train(4);
        }
      },
      {"rank 0: reads parameter 'first.", "rank 1: applies the gradients"});
}

TEST_P(Divergence, EvaluationOnOneRank) {
  expect_all_fail(
      0,
      [](Loop& loop) {
        for (int step = 0; step < 4; ++step) {
          loop.evaluate();
          loop.train(step);
        }
        if (loop.rank == 0) {
          loop.evaluate();
        }
        loop.train(5);
      },
      {"rank 0", "without gradients"});
}

TEST_P(Divergence, GatherOnOneRank) {
  expect_all_fail(
      4,
      [](Loop& loop) {
        if (loop.rank == 0) {
          const auto scope = loop.engine.gather();
        }
        loop.train(5);
      },
      {"rank 0", "gathers group"});
}

TEST_P(Divergence, BackwardOnOneRank) {
  expect_all_fail(
      4,
      [](Loop& loop) {
        const auto loss = mean_square(*loop.net, batch_of(4, loop.rank));
        if (loop.rank != 0) {
          loop.engine.backward(loss);
        }
        loop.engine.step();
      },
      {"rank 0", "applies the gradients"});
}

TEST_P(Divergence, MicroBatchMoreOnOneRank) {
  expect_all_fail(
      0,
      [](Loop& loop) {
        for (int step = 0; step < 4; ++step) {
          const int count = step == 3 && loop.rank == 0 ? 3 : 2;
          for (int m = 0; m < count; ++m) {
            loop.engine.backward(
                mean_square(*loop.net, batch_of(m, loop.rank)));
          }
          loop.engine.step();
        }
      },
      {"rank 0: reads parameter 'first.", "rank 1: applies the gradients"});
}

struct OtherOptions {
  std::function<void(EngineOptions&)> change;
  std::vector<const char*> parts;
};

TEST_P(Divergence, OtherOptionsOnOneRank) {
  using Options = EngineOptions;
  const std::vector<OtherOptions> cases = {
      {[](Options& options) { options.optimizer.lr = 0.5; },
       {"wrap: the option optimizer.lr is 0.01 on rank 0 and 0.5 on rank 1"}},
      {[](Options& options) {
         options.optimizer.rule = AdamWOptions{.beta2 = 0.5};
       },
       {"the option optimizer.", "on rank 0 and", "on rank 1"}},
      {[](Options& options) { options.optimizer.rule = SgdOptions{}; },
       {"the option optimizer.", "on rank 0 and", "on rank 1"}},
      {[](Options& options) {
         options.optimizer.parameters = {
             {.pattern = ".*", .weight_decay = 0.25}};
       },
       {"the option optimizer.parameters is 0 elements on rank 0 and 1 element (\".*\") on rank 1"}},
      {[](Options& options) {
         options.sharding.modules = {
             {.path = "first", .options = {.float32 = true}}};
       },
       {"the option sharding.modules is 0 elements on rank 0 and 1 element (\"first\") on rank 1"}},
      {[](Options& options) { options.optimizer.ema_decay = 0.5; },
       {"the option optimizer.ema_decay is"}},
      {[](Options& options) { options.sharding.prefetch_depth = 3; },
       {"the option sharding.prefetch_depth is 1 on rank 0 and 3 on rank 1"}},
      {[](Options& options) { options.on_nonfinite = OnNonfinite::kSkip; },
       {"the option on_nonfinite is \"stop\" on rank 0"}},
      // Of these groups of ranks are made.
      {[](Options& options) { options.sharding.shard_ranks = 1; },
       {"the option sharding.shard_ranks is 0 on rank 0 and 1 on rank 1"}},
      {[](Options& options) {
         options.optimizer.rule = UserOptimizerOptions{[](auto groups) {
           return std::make_unique<torch::optim::SGD>(
               std::move(groups), torch::optim::SGDOptions(0.1));
         }};
       },
       {"the option optimizer.type is \"adamw\" on rank 0 and \"a user-defined"}},
  };
  for (const OtherOptions& other : cases) {
    expect_errors(
        results_of(
            GetParam(), 1, [](Loop& /*loop*/) {}, other.change),
        other.parts);
  }
}

TEST_P(Divergence, WhereThingsRestMayDiffer) {
  run_ranks(GetParam(), [](World& world) {
    EngineOptions options = group_per_layer();
    options.log_memory = world.rank() == 1;
    options.recompute_operators = world.rank() == 1;
    options.memory.host_bytes = (int64_t{1} << 30) * (1 + world.rank());
    Loop loop(options);
    loop.train(0);
  });
}

TEST_P(Divergence, OtherSettingsOfAStep) {
  const std::vector<std::function<void(Loop&)>> changes = {
      [](Loop& loop) { loop.engine.set_learning_rate(0.5); },
      [](Loop& loop) {
        loop.engine.set_parameter_options(
            loop.engine.trained_parameters().front(), {.weight_decay = 0.5});
      },
      [](Loop& loop) {
        loop.engine.set_parameter_options(
            loop.engine.trained_parameters().front(),
            {.rule = AdamWOptions{.beta1 = 0.5}});
      },
      [](Loop& loop) { loop.engine.multiply_gradients(0.5); },
  };
  const std::vector<const char*> differences{
      "The difference: the learning rate: 0.01 on rank 0 and 0.5 on rank 1",
      "weight_decay=0.5",
      "betas=[0.5,0.999]",
      "what clips the gradients: multiply_gradients(0.25) on rank 0 and multiply_gradients(0.5) on rank 1"};
  for (size_t i = 0; i < changes.size(); ++i) {
    expect_all_fail(
        1,
        [&](Loop& loop) {
          loop.engine.backward(mean_square(*loop.net, batch_of(1, loop.rank)));
          if (loop.rank == 1) {
            changes[i](loop);
          } else if (i == 3) {
            loop.engine.multiply_gradients(0.25);
          }
          loop.engine.step();
        },
        {"the ranks have other settings for this step:",
         "rank 0: applies the gradients at the learning rate 0.01",
         i == 0 ? "rank 1: applies the gradients at the learning rate 0.5"
                : "rank 1: applies the gradients at the learning rate 0.01",
         differences[i],
         "mean of the ranks' losses"});
  }
}

TEST_P(Divergence, OtherLimitsOfClipping) {
  for (const bool by_value : {false, true}) {
    expect_all_fail(
        0,
        [&](Loop& loop) {
          for (int step = 0; step < 3; ++step) {
            const double limit = step < 2 ? 1 : 1 + loop.rank;
            loop.engine.backward(
                mean_square(*loop.net, batch_of(1, loop.rank)));
            by_value ? loop.engine.clip_grad_value(limit)
                     : static_cast<void>(loop.engine.clip_grad_norm(limit));
            EXPECT_TRUE(step == 2 || loop.engine.step());
          }
          loop.engine.step();
        },
        {"the ranks have other settings for this step:"});
  }
}

TEST_P(Divergence, OtherNorms) {
  for (const bool clips : {false, true}) {
    expect_all_fail(
        0,
        [&](Loop& loop) {
          loop.engine.backward(mean_square(*loop.net, batch_of(1, loop.rank)));
          const double p = loop.rank == 0 ? 2 : 1;
          clips ? loop.engine.clip_grad_norm(1, p) : loop.engine.grad_norm(p);
          loop.engine.step();
        },
        {"the ranks have other settings for this step:",
         "rank 0: takes the norm of the gradients with p = 2",
         "rank 1: takes the norm of the gradients with p = 1"});
  }
  // The same number as a limit.
  expect_all_fail(
      0,
      [](Loop& loop) {
        loop.engine.backward(mean_square(*loop.net, batch_of(1, loop.rank)));
        if (loop.rank == 0) {
          loop.engine.clip_grad_value(2);
        } else {
          loop.engine.grad_norm(2);
        }
        loop.engine.step();
      },
      {"the ranks have other settings for this step:",
       "rank 0: clamps the gradients to 2",
       "rank 1: takes the norm of the gradients with p = 2"});
}

TEST_P(Divergence, SecondEngineAfterADivergenceOfTheFirst) {
  run_ranks(GetParam(), [](World& world) {
    {
      Loop loop;
      loop.train(0);
      loop.train(1);
      // All ranks leave the plan together.
      loop.engine.backward(loop.forward_through({2, 1, 0}));
      loop.engine.step();
      loop.engine.unwrap();
    }
    // Nothing that the first engine noted concerns the second.
    Loop loop;
    for (int step = 0; step < 3; ++step) {
      if (world.rank() == 0) {
        // Longer than the interval at which waiting ranks look around.
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
      }
      loop.train(step);
    }
  });
}

TEST_P(Divergence, SlowRankIsNotADivergentOne) {
  run_ranks(GetParam(), [](World& world) {
    Loop loop;
    for (int step = 0; step < 4; ++step) {
      const auto blocks = step % 3 == 2 ? std::vector<size_t>{2, 1, 0}
                                        : std::vector<size_t>{0, 1, 2};
      auto loss = loop.forward_through(blocks);
      if (world.rank() == step % world.size()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
      }
      loop.engine.backward(loss);
      if (world.rank() == (step + 1) % world.size()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
      }
      loop.engine.step();
      loop.evaluate();
    }
  });
}

TEST_P(Divergence, ARankThatThrowsAndLeaves) {
  const auto results = results_of(GetParam(), 3, [](Loop& loop) {
    if (loop.rank == 1) {
      throw std::runtime_error("no more data on this rank");
    }
    loop.train(3);
  });
  ASSERT_EQ(results.size(), static_cast<size_t>(GetParam()));
  expect_errors(results, {});
  EXPECT_NE(results[1].output.find("no more data"), std::string::npos);
  EXPECT_NE(results[0].output.find("its own error says why"), std::string::npos)
      << results[0].output;
}

TEST_P(Divergence, ARankThatIsKilled) {
  for (const int step_of_death : {0, 3}) {
    const auto results = results_of(GetParam(), step_of_death, [](Loop& loop) {
      const auto loss = mean_square(*loop.net, batch_of(4, 0));
      if (loop.rank == 1) {
        ::kill(::getpid(), SIGKILL);
      }
      loop.engine.backward(loss);
      loop.engine.step();
    });
    ASSERT_EQ(results.size(), static_cast<size_t>(GetParam()));
    for (size_t r = 0; r < results.size(); ++r) {
      EXPECT_EQ(results[r].exit_code, r == 1 ? 128 + SIGKILL : 3)
          << results[r].output;
    }
    EXPECT_NE(
        results[0].output.find("its own error says why"), std::string::npos)
        << results[0].output;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Divergence, ::testing::Values(2, 3));

} // namespace tessera::tests::divergence_test
