// SPDX-License-Identifier: Apache-2.0
// Models that never existed whole are trained like any other.
#include "engine/parity_subjects.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"

#include "tessera/runtime/io/safetensors.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/paging/pager.h"

#include <chrono>
#include <filesystem>
#include <thread>

namespace tessera::engine::lazy_training_test {

namespace {

using namespace tests;

/// A lazy copy of the subject, from the same numbers each time.
template <typename Model>
Model make_lazy(const Subject<Model>& subject) {
  LazyOptions options;
  options.min_numel = 0;
  options.seed = 9;
  return lazy(subject.make, options);
}

template <typename Model>
void expect_trains_as_if_undivided(
    const Subject<Model>& subject,
    const std::string& label) {
  run_ranks(2, [&](World& world) {
    auto options = parity_options(world, 0);
    options.engine.optimizer = adamw_options(options);
    PlainRanks<Model> plain(
        [&] {
          Model made = make_lazy(subject);
          materialize(*made);
          return made;
        },
        world.size());
    auto adamw = plain_adamw(*plain.model(), options);
    const Weights start = weights_of(*plain.model());
    Model wrapped = make_lazy(subject);
    auto engine = wrap(wrapped, options.engine);
    expect_same_parameters(
        engine, *plain.model(), start, 0, label + " after wrap");
    for (int step = 0; step < 3; ++step) {
      const auto loss_of = [&](Model& model, int rank) {
        return subject.loss(model, rank, world.size());
      };
      plain.backward(step, world.rank(), loss_of);
      torch::manual_seed(step);
      engine.backward(loss_of(wrapped, world.rank()));
      plain.finish_gradients();
      adamw.step();
      plain.follow();
      engine.step();
    }
    expect_same_after_unwrap(
        engine,
        *wrapped,
        *plain.model(),
        *plain.of(world.rank()),
        start,
        0,
        label);
  });
}

constexpr int64_t kGroupBytes = (2048 * 2048 + 2048) * 4;

/// Layers of kGroupBytes each.
struct StackOfLayersImpl : torch::nn::Module {
  explicit StackOfLayersImpl(int64_t layers) {
    for (int64_t i = 0; i < layers; ++i) {
      stack->push_back(torch::nn::Linear(2048, 2048));
    }
    register_module("stack", stack);
  }
  torch::nn::Sequential stack;
};
TORCH_MODULE(StackOfLayers);

} // namespace

TEST(LazyTraining, AsIfTheModelHadBeenWhole) {
  expect_trains_as_if_undivided(kGpt, "gpt");
  expect_trains_as_if_undivided(kResNet, "resnet");
  expect_trains_as_if_undivided(kBiLstm, "lstm");
  expect_trains_as_if_undivided(kTransformer, "transformer");
  expect_trains_as_if_undivided(kOddSizes, "odd sizes");
  expect_trains_as_if_undivided(kMixed, "mixed precision");
}

TEST(LazyTraining, NeverMoreThanShardsAndOneGroup) {
  // 24 groups of 16 MiB, 400 MB in all.
  run_ranks(4, [](World& /*world*/) {
    runtime::install_cpu_memory_counter();
    constexpr int64_t kSlack = int64_t{2} << 20;
    const int64_t before = runtime::cpu_bytes_live();
    runtime::reset_cpu_bytes_peak();
    StackOfLayers model = lazy([] { return StackOfLayers(24); });
    EXPECT_LE(runtime::cpu_bytes_peak() - before, kSlack);
    EngineOptions options;
    options.log_memory = false;
    const auto engine = wrap(model, options);
    const int64_t engine_bytes = total_bytes(engine.measured_memory());
    EXPECT_LE(
        engine
            .measured_memory()[static_cast<size_t>(MemoryPurpose::kParameters)],
        24 * kGroupBytes / 4 + kSlack);
    EXPECT_LE(
        runtime::cpu_bytes_peak() - before,
        engine_bytes + kGroupBytes + kSlack);
  });
}

TEST(LazyTraining, StreamedWeightsNeedNoMoreMemory) {
  const TemporaryFolder folder;
  static constexpr int64_t kLayers = 8;
  const auto path = folder / "model.safetensors";
  run_ranks(4, [&](World& world) {
    if (world.rank() == 0) {
      std::vector<runtime::SafetensorsSpec> specs;
      const StackOfLayers shapes = lazy([] { return StackOfLayers(kLayers); });
      for (const auto& item : shapes->named_parameters()) {
        specs.push_back(
            {item.key(),
             runtime::SafetensorsDtype::kF16,
             item.value().sizes().vec()});
      }
      runtime::SafetensorsWriter writer(path, specs);
      for (const auto& spec : specs) {
        const at::Tensor value = torch::full(
            spec.shape, static_cast<double>(spec.name.size()), torch::kHalf);
        writer.write(
            spec.name,
            {static_cast<const std::byte*>(value.const_data_ptr()),
             value.nbytes()});
      }
      writer.commit();
    }
    while (!std::filesystem::exists(path)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    runtime::install_cpu_memory_counter();
    constexpr int64_t kSlack = int64_t{3} << 20; // read in pieces of 2^19
    const int64_t before = runtime::cpu_bytes_live();
    runtime::reset_cpu_bytes_peak();
    StackOfLayers model = lazy([] { return StackOfLayers(kLayers); });
    load_weights(*model, path);
    EngineOptions options;
    options.log_memory = false;
    auto engine = wrap(model, options);
    EXPECT_LE(
        runtime::cpu_bytes_peak() - before,
        total_bytes(engine.measured_memory()) + kGroupBytes + kSlack);
    // And once more, into the shards.
    const int64_t live = runtime::cpu_bytes_live();
    runtime::reset_cpu_bytes_peak();
    engine.load_weights(path);
    EXPECT_LE(runtime::cpu_bytes_peak() - live, kSlack);
    engine.for_each_parameter(
        [](const std::string& name, const at::Tensor& value) {
          EXPECT_EQ(value.min().item<float>(), name.size()) << name;
          EXPECT_EQ(value.max().item<float>(), name.size()) << name;
        });
  });
}

TEST(LazyTraining, WeightsAreLoadedBetweenSteps) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    for (const bool low_precision : {false, true}) {
      auto options = parity_options(world, 0);
      if (low_precision) {
        options.engine.precision.parameters = at::kBFloat16;
      }
      torch::manual_seed(1);
      strangers::SharedBlock model;
      auto engine = wrap(model, options.engine);
      const auto train = [&] {
        engine.backward(kSharedSubject.loss(model, world.rank(), world.size()));
        engine.step();
      };
      train();
      train();
      // Every rank writes a file of its own, of the same numbers.
      std::map<std::string, at::Tensor> values;
      std::vector<runtime::SafetensorsSpec> specs;
      torch::manual_seed(4);
      for (const auto& item : model->named_parameters()) {
        values[item.key()] = torch::randn(item.value().sizes());
        specs.push_back(
            {item.key(),
             runtime::SafetensorsDtype::kF32,
             item.value().sizes().vec()});
      }
      const auto path =
          folder / ("rank" + std::to_string(world.rank()) + ".safetensors");
      runtime::SafetensorsWriter writer(path, specs);
      for (const auto& [name, value] : values) {
        writer.write(
            name,
            {static_cast<const std::byte*>(value.const_data_ptr()),
             value.nbytes()});
      }
      writer.commit();
      engine.load_weights(path);
      engine.for_each_parameter(
          [&](const std::string& name, const at::Tensor& value) {
            EXPECT_TRUE(
                torch::equal(value, values.at(name).to(value.scalar_type())))
                << name;
          });
      // Master weights are as the file has them, not rounded.
      for (const auto& group : engine.pager().pages()) {
        EXPECT_EQ(group->master().dtype(), at::kFloat);
        EXPECT_EQ(group->has_separate_master(), low_precision);
      }
      train(); // the plan goes on
      engine.unwrap();
    }
  });
}

} // namespace tessera::engine::lazy_training_test
