// SPDX-License-Identifier: Apache-2.0
// Paged models whose saved tensors rest on the host: ten steps equal to
// LibTorch's own, bit for bit, with the budget held.
#include "engine/parity_subjects.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/engine_config.h"
#include "tessera/offload/activations/activation_statistics.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"
#include "tessera/sharding/checkpointing/transformer_block_list.h"

#include <nlohmann/json.hpp>

namespace tessera::engine::activation_offload_test {

namespace {

using namespace tests;

using Tier = std::optional<MemoryTier>;

EngineOptions everything_moves(EngineOptions options, Tier activations) {
  options.placement.activations = activations;
  options.offload.min_tensor_bytes = 0;
  options.offload.prefetch_bytes = 2000;
  return options;
}

ParityOptions with_offload(
    const World& world,
    Tier activations,
    int64_t activation_bytes) {
  ParityOptions options = parity_options(world, 0);
  options.steps = 4;
  options.engine = everything_moves(options.engine, activations);
  options.engine.memory.activation_bytes = activation_bytes;
  return options;
}

class ActivationOffloadTest
    : public ::testing::TestWithParam<std::tuple<ParityCase, int>> {};

/// A residual layer with dropout.
struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : up(register_module("up", torch::nn::Linear(16, 32))),
        down(register_module("down", torch::nn::Linear(32, 16))),
        drop(register_module("drop", torch::nn::Dropout(0.2))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x + drop(down(torch::gelu(up(x))));
  }
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
};
TORCH_MODULE(Layer);

struct CheckpointedImpl : torch::nn::Module {
  CheckpointedImpl(const CheckpointOptions& options, size_t per_checkpoint)
      : in(register_module("in", torch::nn::Linear(5, 16))),
        blocks(
            std::vector<Layer>{Layer(), Layer(), Layer(), Layer()},
            options,
            per_checkpoint) {
    register_module("blocks", blocks);
  }
  at::Tensor forward(const at::Tensor& x) {
    return blocks(torch::tanh(in(x)));
  }
  torch::nn::Linear in;
  TransformerBlockList<Layer> blocks;
};
TORCH_MODULE(Checkpointed);

/// The plain copies compute nothing again.
Subject<Checkpointed> checkpointed(
    const CheckpointOptions& options,
    size_t per_checkpoint) {
  return {
      [=] { return Checkpointed(options, per_checkpoint); },
      [](Checkpointed& model, int64_t part, int64_t parts) {
        return model->forward(torch::randn({12, 5}).chunk(parts)[part])
            .square()
            .mean();
      },
      [=] {
        CheckpointOptions plain = options;
        plain.use_checkpoint = false;
        return Checkpointed(plain, per_checkpoint);
      }};
}

/// Three steps. @return the most that was saved on the device at a time.
template <typename Model>
int64_t saved_within(const Subject<Model>& subject, int64_t budget) {
  EngineOptions options;
  options.log_memory = false;
  options = everything_moves(options, std::nullopt);
  options.memory.activation_bytes = budget;
  torch::manual_seed(4);
  Model model = subject.make();
  auto engine = wrap(model, options);
  for (int step = 0; step < 3; ++step) {
    engine.backward(subject.loss(model, 0, 1));
    engine.step();
  }
  const auto statistics = engine.stats().activations;
  EXPECT_EQ(statistics.live_storages, 0);
  const auto rows = engine.saved_activations();
  EXPECT_GT(rows.size(), 3);
  int64_t saved = 0;
  for (const SavedByProducer& row : rows) {
    saved += row.bytes;
    // Weights are not activations: no transposed view of one is among them.
    EXPECT_NE(row.producer, "TBackward0");
  }
  EXPECT_EQ(statistics.peak_host_bytes > 0, saved > budget);
  return statistics.peak_device_bytes;
}

/// Half and a quarter of what is saved without a limit.
template <typename Model>
void expect_budget_held(const Subject<Model>& subject) {
  const int64_t all = saved_within(subject, int64_t{1} << 40);
  // With nothing allowed: the most that one operator needs at once in backward.
  const int64_t least = saved_within(subject, 1);
  EXPECT_GT(all, 10'000);
  EXPECT_LT(least, all / 2);
  EXPECT_LE(saved_within(subject, all / 2), all / 2);
  EXPECT_LE(saved_within(subject, all / 4), std::max(all / 4, least));
}

} // namespace

TEST_P(ActivationOffloadTest, EqualBitForBit) {
  const auto& [subject, ranks] = GetParam();
  run_ranks(ranks, [&subject = subject](World& world) {
    // Nothing fits; a part fits; and all is copied.
    subject.run(world, with_offload(world, std::nullopt, 1));
    subject.run(world, with_offload(world, std::nullopt, 8000));
    subject.run(world, with_offload(world, MemoryTier::kHost, 0));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    ActivationOffloadTest,
    ::testing::Combine(
        ::testing::Values(
            parity_case("Text", kText),
            parity_case("ResNet", kResNet),
            parity_case("BiLstm", kBiLstm),
            parity_case("Transformer", kTransformer),
            parity_case("UNet", kUNet),
            parity_case("Cells", kCells),
            parity_case("MixedPrecision", kMixed),
            parity_case("Bert", kBert)),
        ::testing::Values(1, 2)),
    name_of_case);

TEST(ActivationOffload, WithEveryStageAndAccumulation) {
  run_ranks(2, [](World& world) {
    for (const int stage : {1, 2, 3}) {
      auto options = with_offload(world, std::nullopt, 8000);
      options.engine.sharding.zero_stage = stage;
      options.micro_batches = 2;
      expect_parity(world, kGpt, options, "stage " + std::to_string(stage));
    }
  });
}

TEST(ActivationOffload, CheckpointedBlocksInsideAndTheirInputsOnTheHost) {
  run_ranks(2, [](World& world) {
    for (const bool inputs_on_host : {false, true}) {
      for (const size_t per_checkpoint : {1, 2}) {
        for (const auto activations :
             {Tier(MemoryTier::kDevice), Tier(), Tier(MemoryTier::kHost)}) {
          const CheckpointOptions blocks{.inputs_on_host = inputs_on_host};
          expect_parity(
              world,
              checkpointed(blocks, per_checkpoint),
              with_offload(world, activations, 1500),
              "checkpoint " + std::to_string(inputs_on_host) + " " +
                  std::to_string(per_checkpoint) + " " +
                  (activations ? name_of(*activations) : "auto"));
        }
      }
    }
  });
}

namespace {

int64_t host_bytes_of(const MemoryBytes& bytes) {
  return bytes[static_cast<size_t>(MemoryPurpose::kActivations)];
}

} // namespace

TEST(ActivationOffload, IsPartOfTheTableAndOfTheHostsLimit) {
  run_ranks(1, [](World&) {
    EngineOptions options;
    options.log_memory = false;
    options = everything_moves(options, MemoryTier::kHost);
    const auto train = [&](const std::function<void(Engine&)>& look) {
      Checkpointed model(CheckpointOptions{}, 1);
      auto engine = wrap(model, options);
      EXPECT_EQ(host_bytes_of(engine.measured_memory(MemoryTier::kHost)), 0);
      engine.backward(model->forward(torch::randn({12, 5})).square().mean());
      engine.step();
      look(engine);
    };
    const auto planned = [](const Engine& engine) {
      return host_bytes_of(engine.planned_memory(MemoryTier::kHost));
    };
    const auto measured = [](const Engine& engine) {
      return host_bytes_of(engine.measured_memory(MemoryTier::kHost));
    };
    train([&](const Engine& engine) { // without a limit
      EXPECT_EQ(planned(engine), 0);
      EXPECT_EQ(measured(engine), engine.stats().activations.host_slab_bytes);
      EXPECT_GT(measured(engine), 0);
    });
    options.offload.activation_host_bytes = 100'000;
    train([&](const Engine& engine) {
      EXPECT_EQ(planned(engine), 100'000);
      EXPECT_GT(measured(engine), 0);
      EXPECT_LE(measured(engine), 100'000);
    });
    // What the optimizer has left of the host.
    options.offload.activation_host_bytes.reset();
    options.memory.host_bytes = 1'000'000;
    options.placement.optimizer = MemoryTier::kHost;
    train([&](const Engine& engine) {
      EXPECT_GT(planned(engine), 100'000);
      EXPECT_EQ(
          total_bytes(engine.planned_memory(MemoryTier::kHost)), 1'000'000);
      EXPECT_GT(measured(engine), 0);
      EXPECT_LE(
          total_bytes(engine.measured_memory(MemoryTier::kHost)), 1'000'000);
    });
    Checkpointed model(CheckpointOptions{}, 1);
    options.offload.activation_host_bytes = 1'000'001;
    expect_error(
        [&] { wrap(model, options); },
        {"offload.activation_host_bytes is 1000001, but memory.host_bytes"});
    // What activations were promised, the optimizer does not get.
    options.offload.activation_host_bytes = 999'000;
    expect_error(
        [&] { wrap(model, options); }, {"of memory.host_bytes (1000)"});
  });
}

TEST(ActivationOffload, SaysWhatMovedInTheFirstStep) {
  const auto results = run_ranks_expecting(2, [](World&) {
    EngineOptions options;
    options = everything_moves(options, MemoryTier::kHost);
    Checkpointed model(CheckpointOptions{}, 1);
    auto engine = wrap(model, options);
    for (int step = 0; step < 3; ++step) {
      engine.backward(model->forward(torch::randn({12, 5})).square().mean());
      engine.step();
    }
  });
  const auto count = [](const std::string& text) {
    const std::string label = "activations in the first step: ";
    int times = 0;
    for (size_t at = text.find(label); at != std::string::npos;
         at = text.find(label, at + 1)) {
      ++times;
    }
    return times;
  };
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  EXPECT_EQ(count(results[0].output), 1) << results[0].output;
  EXPECT_EQ(count(results[1].output), 0) << results[1].output;
}

TEST(ActivationOffload, ABlocksInputsLeaveTheDevice) {
  run_ranks(1, [](World&) {
    EngineOptions options;
    options.log_memory = false;
    options = everything_moves(options, MemoryTier::kDevice);
    Checkpointed model(CheckpointOptions{.inputs_on_host = true}, 1);
    auto engine = wrap(model, options);
    auto loss = model->forward(torch::randn({12, 5})).square().mean();
    constexpr int64_t kInput = 12 * 16 * 4;
    const auto statistics = engine.stats().activations;
    EXPECT_EQ(statistics.live_host_bytes, 4 * kInput);
    // One input is on its way; beside them what in(), tanh and square save.
    EXPECT_LE(statistics.live_device_bytes, 3 * kInput + 12 * 5 * 4);
    engine.backward(loss);
    EXPECT_EQ(engine.stats().activations.live_storages, 0);
    EXPECT_EQ(engine.stats().activations.live_host_bytes, 0);
  });
}

TEST(ActivationOffload, OnTheDeviceNothingIsHookedUnlessABlockAsks) {
  run_ranks(1, [](World&) {
    for (const bool asks : {false, true}) {
      Checkpointed model(CheckpointOptions{.inputs_on_host = asks}, 1);
      EngineOptions options;
      options.log_memory = false;
      const auto engine = wrap(model, options);
      EXPECT_EQ(runtime::saved_tensors_have_sink(), asks);
    }
  });
}

TEST(ActivationOffload, TheBudgetIsHeldAndWhatIsSavedIsNamed) {
  run_ranks(2, [](World&) {
    expect_budget_held(kText);
    expect_budget_held(kBert);
  });
}

TEST(ActivationOffload, TwoEnginesTakeTurns) {
  run_ranks(1, [](World& world) {
    EngineOptions options = parity_options(world, 0).engine;
    options = everything_moves(options, std::nullopt);
    options.memory.activation_bytes = 100;
    torch::manual_seed(1);
    auto first = kSharedSubject.make();
    auto second = kSharedSubject.make();
    auto a = std::make_unique<Engine>(wrap(first, options));
    auto b = std::make_unique<Engine>(wrap(second, options));
    a->backward(kSharedSubject.loss(first, 0, 1));
    EXPECT_EQ(a->stats().activations.tensors_saved, 0);
    EXPECT_GT(b->stats().activations.bytes_to_host, 0);
    b.reset();
    a->backward(kSharedSubject.loss(first, 0, 1));
    EXPECT_GT(a->stats().activations.bytes_to_host, 0);
    a.reset();
    EXPECT_FALSE(runtime::saved_tensors_have_sink());
  });
}

TEST(ActivationOffload, BackwardThroughAnOlderGraphIsStillFound) {
  run_ranks(1, [](World& world) {
    EngineOptions options = parity_options(world, 0).engine;
    options = everything_moves(options, std::nullopt);
    options.memory.activation_bytes = 100;
    auto model = kSharedSubject.make();
    auto engine = wrap(model, options);
    auto old = kSharedSubject.loss(model, 0, 1);
    engine.backward(kSharedSubject.loss(model, 0, 1));
    engine.step();
    EXPECT_THROW(engine.backward(old), std::exception);
  });
}

TEST(ActivationOffload, GradientPenaltyThroughDoubleBackward) {
  run_ranks(2, [](World& world) {
    auto options = with_offload(world, std::nullopt, 1000);
    const Subject<strangers::SharedBlock> penalty{
        kSharedSubject.make,
        [](strangers::SharedBlock& model, int64_t part, int64_t parts) {
          const auto x =
              rows(torch::randn({12, 9}), part, parts).clone().requires_grad_();
          const auto y = model->forward(x);
          const auto slope = torch::autograd::grad(
              {y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
          return y.square().mean() + (slope[0].norm() - 1).square();
        }};
    expect_parity(world, penalty, options, "penalty");
  });
}

TEST(ActivationOffload, TrainingGoesOnAfterExceptions) {
  run_ranks(1, [](World& world) {
    EngineOptions options = parity_options(world, 0).engine;
    options = everything_moves(options, std::nullopt);
    options.memory.activation_bytes = 1000;
    torch::manual_seed(1);
    auto model = kSharedSubject.make();
    auto engine = wrap(model, options);
    const auto expect_nothing_left = [&] {
      const auto statistics = engine.stats().activations;
      EXPECT_EQ(statistics.live_storages, 0);
      EXPECT_EQ(statistics.live_device_bytes, 0);
      EXPECT_EQ(statistics.live_host_bytes, 0);
    };
    // The last layer takes 14 features.
    EXPECT_THROW(
        model->out(model->in(torch::ones({12, 9})).tanh().narrow(1, 0, 3)),
        c10::Error);
    expect_nothing_left();
    {
      auto loss = kSharedSubject.loss(model, 0, 1);
      loss.register_hook([](const at::Tensor&) -> at::Tensor {
        TESSERA_FAIL("in mid-backward");
      });
      EXPECT_THROW(engine.backward(loss * 2), std::exception);
    }
    expect_nothing_left();
    engine.backward(kSharedSubject.loss(model, 0, 1));
    engine.step();
    expect_nothing_left();
  });
}

TEST(ActivationOffload, OptionsAreReadAndChecked) {
  const auto read = [](const std::string& text) {
    return read_engine_options({runtime::parse_json(text, "c.json"), "c.json"});
  };
  const auto options = read(
      R"({"memory": {"activation_bytes": 5}, "placement": {"activations": "auto"},
          "offload": {"min_tensor_bytes": 7, "prefetch_bytes": 9,
          "activation_host_bytes": 11}})");
  EXPECT_EQ(options.placement.activations, std::nullopt);
  EXPECT_EQ(read("{}").placement.activations, MemoryTier::kDevice);
  EXPECT_EQ(options.offload.min_tensor_bytes, 7);
  EXPECT_EQ(options.offload.prefetch_bytes, 9);
  EXPECT_EQ(options.offload.activation_host_bytes, 11);
  expect_error(
      [&] { read(R"({"placement": {"activations": "some"}})"); },
      {"activations"});
  expect_error(
      [] { check(everything_moves({}, std::nullopt)); },
      {"placement.activations is auto", "memory.activation_bytes"});
  expect_error(
      [] { check(everything_moves({}, MemoryTier::kNvme)); },
      {"placement.activations is nvme", "use host, or auto"});
}

} // namespace tessera::engine::activation_offload_test
