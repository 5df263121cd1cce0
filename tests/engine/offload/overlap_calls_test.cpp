// SPDX-License-Identifier: Apache-2.0
// What a user may do between backward and step, and around them, while updates
// are made beside: the same numbers as without, errors that say what is wrong,
// and an end at any time.
#include "engine/checkpoint/checkpoint_support.h"
#include "engine/offload/overlap.h"
#include "support/ranks.h"
#include "tessera/sharding/paging/pager.h"

#include <unistd.h>

namespace tessera::tests::overlap_calls_test {

namespace {

/// What happens in a step between two calls of backward() and step().
using Between =
    std::function<void(Engine& engine, RestingNet& net, SeenRun& run)>;

SeenRun train(
    const EngineOptions& options,
    const Between& between,
    int rank,
    int micros = 1) {
  RestingNet net = make_resting_net();
  auto engine = wrap(net, options);
  SeenRun run;
  for (int step = 0; step < 4; ++step) {
    for (int micro = 0; micro < micros; ++micro) {
      engine.backward(resting_loss(net, step, micro, rank));
    }
    between(engine, net, run);
    engine.step();
    run.parameters.push_back(parameters_of(engine));
  }
  run.updates = engine.stats().updates;
  return run;
}

struct Call {
  const char* name;
  Between between;
  bool taken = false; ///< whether what was speculated is right nevertheless
};

std::vector<Call> calls(int rank) {
  const auto see = [](SeenRun& run, const at::Tensor& values) {
    run.numbers.push_back(values.sum().to(at::kDouble));
  };
  return {
      {"nothing", [](Engine&, RestingNet&, SeenRun&) {}, true},
      {"reading gradients",
       [=](Engine& engine, RestingNet& net, SeenRun& run) {
         see(run, engine.grad(net->first->weight));
         see(run, engine.grad(net->last->bias));
       },
       true},
      {"reading weights",
       [=](Engine& engine, RestingNet& net, SeenRun& run) {
         for (const auto& [name, value] : parameters_of(engine)) {
           see(run, value);
         }
         const c10::NoGradGuard no_grad;
         see(run, net->forward(torch::ones({2, 7}), true));
       },
       true},
      {"gathering",
       [=](Engine& engine, RestingNet& net, SeenRun& run) {
         const auto scope = engine.gather({net->first->weight});
         see(run, net->first->weight);
       },
       true},
      {"another backward",
       [=](Engine& engine, RestingNet& net, SeenRun&) {
         // Sometimes, so that it is not what was planned.
         if (engine.pager().statistics().steps % 2 == 1) {
           engine.backward(resting_loss(net, 50, 0, rank));
         }
       },
       true},
      {"dropping all gradients",
       [=](Engine& engine, RestingNet& net, SeenRun&) {
         // What is speculated on the second backward is right.
         engine.zero_grad();
         engine.backward(resting_loss(net, 60, 0, rank));
       },
       true},
      {"dropping all gradients at times",
       [=](Engine& engine, RestingNet& net, SeenRun&) {
         if (engine.pager().statistics().steps == 2) {
           engine.zero_grad();
           engine.backward(resting_loss(net, 60, 0, rank));
         }
       },
       true},
      {"dropping one gradient",
       [](Engine&, RestingNet& net, SeenRun&) {
         net->first->weight.mutable_grad() = at::Tensor();
       },
       true},
      {"zeroing gradients",
       [](Engine&, RestingNet& net, SeenRun&) {
         net->zero_grad(/*set_to_none=*/false);
       }},
      {"clipping values",
       [](Engine& engine, RestingNet&, SeenRun&) {
         engine.clip_grad_value(1e-3);
       }},
      {"clipping twice",
       [=](Engine& engine, RestingNet&, SeenRun& run) {
         for (const double p : {2.0, 1.0, 2.0}) {
           see(run, torch::tensor(engine.clip_grad_norm(0.05, p).value()));
         }
       }},
      {"clipping by the largest",
       [=](Engine& engine, RestingNet&, SeenRun& run) {
         see(run, torch::tensor(engine.clip_grad_norm(1e-3, HUGE_VAL).value()));
       }},
      {"adding a gradient",
       [](Engine& engine, RestingNet& net, SeenRun&) {
         engine.reduce(net->last->bias, torch::ones({3}));
       },
       true},
      {"setting the rate",
       [](Engine& engine, RestingNet&, SeenRun&) {
         engine.set_learning_rate(0.5 * engine.learning_rate());
       }},
  };
}

EngineOptions overlapped(
    EngineOptions options,
    UpdateOverlap overlap,
    const TemporaryFolder& folder) {
  options.optimizer.overlap = overlap;
  options.placement.optimizer = MemoryTier::kNvme;
  options.memory.nvme_path = folder.path();
  return options;
}

/// The descriptor of this process's file of the NVMe tier.
int nvme_file() {
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const auto target = std::filesystem::read_symlink(entry.path(), ignored);
    if (target.filename().string().rfind("tessera-", 0) == 0 &&
        target.extension() != ".shm" &&
        target.string().find("tessera-test-") != std::string::npos) {
      return std::stoi(entry.path().filename().string());
    }
  }
  return -1;
}

} // namespace

class OverlapCalls : public ::testing::TestWithParam<int> {};

TEST_P(OverlapCalls, BetweenBackwardAndStepMeanTheSame) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    const EngineOptions options = resting_options(at::kBFloat16);
    for (const Call& call : calls(world.rank())) {
      const SeenRun serial = train(options, call.between, world.rank());
      for (const UpdateOverlap overlap : kOverlaps) {
        const std::string label =
            std::string(call.name) + ", " + text_of(overlap);
        const SeenRun got = train(
            overlapped(options, overlap, folder), call.between, world.rank());
        expect_same_run(got, serial, label);
        if (overlap == UpdateOverlap::kSpeculate) {
          EXPECT_GT(got.updates.speculated, 0) << label;
          EXPECT_EQ(got.updates.taken > 0, call.taken) << label;
        }
      }
    }
  });
}

TEST_P(OverlapCalls, ACheckpointInBetweenIsOfTheOldState) {
  const TemporaryFolder folder; // one for all ranks
  run_ranks(GetParam(), [&folder](World& world) {
    const EngineOptions options = resting_options(at::kBFloat16);
    for (const UpdateOverlap overlap : kOverlaps) {
      const EngineOptions changed = overlapped(options, overlap, folder);
      const auto checkpoints = folder.path() / text_of(overlap);
      RestingNet net = make_resting_net();
      auto engine = wrap(net, changed);
      const auto train = [&](Engine& trained, RestingNet& of, int first) {
        for (int step = first; step < first + 3; ++step) {
          trained.backward(resting_loss(of, step, 0, world.rank()));
          trained.step();
        }
      };
      train(engine, net, 0);
      engine.save(checkpoints);
      train(engine, net, 3);
      const auto went_on = parameters_of(engine);
      // Back to the checkpoint, with an update under way.
      engine.backward(resting_loss(net, 70, 0, world.rank()));
      engine.load(checkpoints);
      train(engine, net, 3);
      expect_same_bits(parameters_of(engine), went_on, "went back");
      RestingNet other = make_resting_net();
      auto resumed = wrap(other, options);
      resumed.load(checkpoints);
      train(resumed, other, 3);
      expect_same_bits(parameters_of(resumed), went_on, "resumed");
      engine.unwrap();
    }
  });
}

TEST_P(OverlapCalls, AnEngineMayEndInMidStep) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    for (const bool in_backward : {false, true}) {
      for (const UpdateOverlap overlap : kOverlaps) {
        if (in_backward && overlap == UpdateOverlap::kSpeculate) {
          continue;
        }
        for (const bool after_step : {false, true}) {
          EngineOptions options =
              overlapped(resting_options(at::kBFloat16), overlap, folder);
          options.update_in_backward = in_backward;
          RestingNet net = make_resting_net();
          auto engine = std::make_unique<Engine>(wrap(net, options));
          for (int step = 0; step < 3; ++step) {
            engine->backward(resting_loss(net, step, 0, world.rank()));
            if (step < 2 || after_step) {
              engine->step();
            }
          }
          engine.reset();
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, OverlapCalls, ::testing::Range(1, 4));

TEST(OverlapFaults, AFileThatIsTruncatedEndsTheRunOnEveryRank) {
  struct Way {
    UpdateOverlap overlap;
    bool in_backward;
  };
  for (const Way& way :
       {Way{UpdateOverlap::kWait, false},
        Way{UpdateOverlap::kSpeculate, false},
        Way{UpdateOverlap::kWait, true}}) {
    const auto results = run_ranks_expecting(2, [&way](World& world) {
      const TemporaryFolder folder;
      EngineOptions options =
          overlapped(resting_options(at::kBFloat16), way.overlap, folder);
      options.update_in_backward = way.in_backward;
      RestingNet net = make_resting_net();
      auto engine = wrap(net, options);
      const auto train = [&](int first) {
        for (int step = first; step < first + 3; ++step) {
          engine.backward(resting_loss(net, step, 0, world.rank()));
          engine.step();
        }
      };
      train(0);
      parameters_of(engine); // all updates have ended
      if (world.rank() == 1) {
        const int file = nvme_file();
        ASSERT_GE(file, 0);
        ASSERT_EQ(::ftruncate(file, 4096), 0);
      }
      const std::string message = error_of([&] { train(3); });
      EXPECT_TRUE(
          message.find("truncated to 4096") != std::string::npos ||
          message.find("checksum differs") != std::string::npos)
          << message;
      EXPECT_NE(
          message.find("resume from the last checkpoint"), std::string::npos)
          << message;
      if (world.rank() == 1) {
        expect_throws(
            [&] { engine.step(); },
            {"optimizer state is incomplete", "load the last"});
        expect_throws(
            [&] { engine.save(folder / "c"); },
            {"optimizer state is incomplete"});
      }
    });
    for (const RankResult& result : results) {
      EXPECT_EQ(result.exit_code, 0) << result.output;
    }
  }
}

TEST(OverlapOptions, ThatDoNotFitAreRefused) {
  run_ranks(1, [](World&) {
    EngineOptions options = resting_options(at::kBFloat16);
    options.placement.optimizer = MemoryTier::kHost;
    const auto bytes_on_host = [&](UpdateOverlap overlap) {
      options.optimizer.overlap = overlap;
      RestingNet net = make_resting_net();
      auto engine = wrap(net, options);
      return total_bytes(engine.planned_memory(MemoryTier::kHost));
    };
    const int64_t serial = bytes_on_host(UpdateOverlap::kOff);
    EXPECT_EQ(bytes_on_host(UpdateOverlap::kWait), serial);
    const int64_t doubled = bytes_on_host(UpdateOverlap::kSpeculate);
    EXPECT_GT(doubled, 2 * serial);
    options.memory.host_bytes = doubled - 1;
    expect_throws(
        [&] { bytes_on_host(UpdateOverlap::kSpeculate); },
        {"optimizer.overlap speculate", "memory.host_bytes", "Raise"});
    options.memory.host_bytes = doubled;
    EXPECT_EQ(bytes_on_host(UpdateOverlap::kSpeculate), doubled);
    options.update_in_backward = true;
    expect_throws(
        [&] { bytes_on_host(UpdateOverlap::kSpeculate); },
        {"update_in_backward cannot be combined with",
         "speculate",
         "use wait"});
  });
}

} // namespace tessera::tests::overlap_calls_test
