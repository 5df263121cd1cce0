// SPDX-License-Identifier: Apache-2.0
// Updates beside backward have the bits of serial ones: wherever state rests,
// whether gradients are clipped, scaled, accumulated, missing or shared.
#include "engine/matrix/matrix_net.h"
#include "engine/offload/overlap.h"
#include "engine/optim/every_rule.h"
#include "support/ranks.h"

namespace tessera::tests::overlap_bits_test {

namespace {

constexpr int kSteps = 5;

struct Setting {
  UpdateOverlap overlap = UpdateOverlap::kOff;
  MemoryTier placement = MemoryTier::kDevice;
  /// Of parameters and gradients.
  MemoryTier shards = MemoryTier::kDevice;
};

std::string text_of(const Setting& setting) {
  return std::string(tests::text_of(setting.overlap)) + ", " +
         name_of(setting.placement) + ", " + name_of(setting.shards);
}

/// The clipping limit of a step: none where it is 0.
using Limit = std::function<double(int step)>;

/// Two micro-batches a step; the third step overflows where losses are scaled.
SeenRun train(
    EngineOptions options,
    const Setting& setting,
    const Limit& limit,
    int rank,
    const std::filesystem::path& folder) {
  options.optimizer.overlap = setting.overlap;
  options.placement.optimizer = setting.placement;
  options.memory.nvme_path = folder;
  if (setting.shards != MemoryTier::kDevice) {
    options.placement.parameters = setting.shards;
    options.placement.gradients = setting.shards;
  }
  RestingNet net = make_resting_net();
  auto engine = wrap(net, options);
  expect_planned(engine, text_of(setting));
  SeenRun run;
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      at::Tensor loss =
          resting_loss(net, step, micro, rank, /*all=*/step % 2 == 0);
      run.numbers.push_back(loss.detach().to(torch::kDouble));
      if (step == 2 && engine.loss_scale() != 1) {
        loss = loss * std::numeric_limits<float>::infinity();
      }
      engine.backward(loss);
    }
    if (const double most = limit(step); most > 0) {
      run.numbers.push_back(
          torch::tensor(engine.clip_grad_norm(most).value(), torch::kDouble));
    }
    engine.step();
    run.numbers.push_back(torch::tensor(engine.loss_scale(), torch::kDouble));
    // Only now and then, so that the next forward has something to wait for.
    if (step % 2 == 1 || step == kSteps - 1) {
      run.parameters.push_back(parameters_of(engine));
    }
  }
  expect_planned(engine, text_of(setting) + ", in the end");
  run.updates = engine.stats().updates;
  return run;
}

} // namespace

class Overlap : public ::testing::TestWithParam<int> {};

TEST_P(Overlap, ChangesNoBitWhereverStateRests) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    const Limit limits[] = {
        [](int) { return 0.0; },
        [](int) { return 1e9; },
        [](int) { return 0.05; },
        [](int step) { return step % 2 == 0 ? 0.05 : 1e9; }};
    for (const auto precision :
         {std::optional<at::ScalarType>(),
          std::optional(at::kBFloat16),
          std::optional(at::kHalf)}) {
      const EngineOptions options = resting_options(precision);
      for (size_t l = 0; l < std::size(limits); ++l) {
        const SeenRun serial =
            train(options, {}, limits[l], world.rank(), folder.path());
        for (const UpdateOverlap overlap : kOverlaps) {
          for (const MemoryTier placement :
               {MemoryTier::kDevice, MemoryTier::kHost, MemoryTier::kNvme}) {
            const Setting setting{overlap, placement};
            const std::string label =
                (precision ? c10::toString(*precision) : "float32") +
                (", limit " + std::to_string(l)) + ", " + text_of(setting);
            const SeenRun got =
                train(options, setting, limits[l], world.rank(), folder.path());
            expect_same_run(got, serial, label);
            const bool speculates = overlap == UpdateOverlap::kSpeculate;
            EXPECT_EQ(got.updates.speculated > 0, speculates) << label;
            // Clipped in every step, nothing was as speculated.
            EXPECT_EQ(got.updates.taken > 0, speculates && l != 2) << label;
            EXPECT_GT(got.updates.beside, 0) << label;
          }
        }
      }
    }
  });
}

TEST_P(Overlap, ChangesNoBitWhereverShardsRest) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    const Limit limit = [](int step) { return step % 2 == 0 ? 0.05 : 1e9; };
    for (const auto precision :
         {std::optional<at::ScalarType>(), std::optional(at::kHalf)}) {
      const EngineOptions options = resting_options(precision);
      const SeenRun serial =
          train(options, {}, limit, world.rank(), folder.path());
      for (const UpdateOverlap overlap : kOverlaps) {
        for (const MemoryTier placement :
             {MemoryTier::kHost, MemoryTier::kNvme}) {
          for (const MemoryTier shards :
               {MemoryTier::kHost, MemoryTier::kNvme}) {
            const Setting setting{overlap, placement, shards};
            expect_same_run(
                train(options, setting, limit, world.rank(), folder.path()),
                serial,
                text_of(setting));
          }
        }
      }
    }
  });
}

TEST_P(Overlap, OfOtherOptimizersAndPrecisions) {
  run_ranks(GetParam(), [](World& world) {
    const TemporaryFolder folder;
    std::vector<std::pair<std::string, EngineOptions>> cases;
    for (const UpdateRule& rule : every_rule()) {
      cases.emplace_back(name_of(rule), resting_options(at::kBFloat16, rule));
    }
    EngineOptions options = resting_options(at::kBFloat16);
    options.precision.master_weights = false;
    cases.emplace_back("no masters", options);
    options = resting_options(at::kBFloat16);
    options.optimizer.stochastic_rounding = true;
    options.optimizer.moment_dtype = at::kBFloat16;
    cases.emplace_back("stochastic", options);
    options = resting_options(at::kBFloat16);
    options.optimizer.parameters = {
        {.pattern = ".*bias", .rule = SgdOptions{.momentum = 0.5}}};
    cases.emplace_back("two of one group", options);
    options = resting_options(std::nullopt);
    options.sharding.zero_stage = 1;
    cases.emplace_back("stage 1", options);
    options.sharding.zero_stage = 2;
    cases.emplace_back("stage 2", options);
    const Limit limit = [](int step) { return step % 2 == 0 ? 0.05 : 1e9; };
    for (const auto& [name, changed] : cases) {
      const SeenRun serial =
          train(changed, {}, limit, world.rank(), folder.path());
      for (const UpdateOverlap overlap : kOverlaps) {
        // In memory updates begin from another copy of the state.
        for (const MemoryTier placement :
             {MemoryTier::kDevice, MemoryTier::kNvme}) {
          const Setting setting{overlap, placement};
          expect_same_run(
              train(changed, setting, limit, world.rank(), folder.path()),
              serial,
              name + ", " + text_of(setting));
        }
      }
    }
  });
}

namespace {

/// Every parameter after every step of some odd model.
std::vector<std::map<std::string, at::Tensor>> train_odd(
    const MatrixOptions& net_options,
    const EngineOptions& options,
    int backwards,
    double limit,
    int rank) {
  torch::manual_seed(5);
  auto net = std::make_shared<MatrixNetImpl>(net_options);
  Engine engine = wrap(net, options);
  std::vector<std::map<std::string, at::Tensor>> history;
  for (int step = 0; step < kSteps; ++step) {
    engine.set_learning_rate(0.01 / (1 + step));
    for (int b = 0; b < backwards; ++b) {
      torch::manual_seed(100 * step + 10 * b + rank);
      const at::Tensor tokens =
          torch::randint(kVocabulary, {2, 5}, torch::kLong);
      engine.backward(torch::nn::functional::cross_entropy(
          net->forward(tokens), tokens.reshape(-1)));
    }
    if (limit > 0) {
      engine.clip_grad_norm(step % 2 == 0 ? limit : 1e9);
    }
    EXPECT_TRUE(engine.step());
    if (step >= 2) {
      history.push_back(parameters_of(engine));
    }
  }
  return history;
}

} // namespace

TEST_P(Overlap, OfTiedFrozenUnusedAndCheckpointedParameters) {
  run_ranks(GetParam(), [](World& world) {
    for (const MatrixOptions& net : std::vector<MatrixOptions>{
             {.variant = "tied"},
             {.variant = "frozen"},
             {.variant = "low-rank"},
             {.variant = "unused"},
             {.checkpointed = true},
             {.variant = "tied", .checkpointed = true}}) {
      EngineOptions options = group_per_layer();
      const std::string label =
          net.variant + (net.checkpointed ? ", checkpointed" : "");
      const auto expect_same =
          [&](const auto& got, const auto& want, const std::string& setting) {
            for (size_t step = 0; step < want.size(); ++step) {
              expect_same_bits(got[step], want[step], label + ", " + setting);
            }
          };
      const auto clipped = train_odd(net, options, 2, 0.1, world.rank());
      for (const UpdateOverlap overlap : kOverlaps) {
        options.optimizer.overlap = overlap;
        expect_same(
            train_odd(net, options, 2, 0.1, world.rank()),
            clipped,
            tests::text_of(overlap));
      }
      // In backward there is no clipping.
      options.optimizer.overlap = UpdateOverlap::kOff;
      const auto serial = train_odd(net, options, 1, 0, world.rank());
      options.update_in_backward = true;
      options.optimizer.overlap = UpdateOverlap::kWait;
      for (const MemoryTier placement :
           {MemoryTier::kDevice, MemoryTier::kHost}) {
        options.placement.optimizer = placement;
        expect_same(
            train_odd(net, options, 1, 0, world.rank()), serial, "in backward");
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Overlap, ::testing::Range(1, 4));

} // namespace tessera::tests::overlap_bits_test
