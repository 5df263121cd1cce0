// SPDX-License-Identifier: Apache-2.0
// Adapters over two ranks: of divided layers, and under ZeRO.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "support/tensor_parts.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "zoo/divided_models.h"
#include "zoo/lora_fixture.h"

namespace tessera::zoo::lora_parallel_test {
namespace {

using tests::run_ranks;

/// @param saved a folder that all ranks know.
void check_tensor_parallel(
    World& world,
    const char* name,
    bool sequence,
    const TemporaryFolder& saved) {
  SCOPED_TRACE(name);
  ParallelGroups groups(
      world,
      ParallelMesh({.shard = 1, .tensor = 2}, 2, 2),
      torch::Device(torch::kCPU));
  const TensorParallel tp{&groups[ParallelGroup::kTensor], sequence};
  const LoraFixture reference(name);
  const auto model =
      from_pretrained(reference.base().folder(), {.context = LayerContext(tp)});
  load_lora(*model, reference.folder());
  const ModelOutput output = model->forward(reference.input());
  expect_outputs(reference, output);
  output.loss.backward();
  expect_gradients(reference, *model, FullGradients(*model, *tp.group));
  const auto folder = saved / name;
  save_lora(*model, folder / "adapter");
  save_merged(*model, folder / "merged");
  check_saved(world, reference, folder);
  merge_lora(*model);
  expect_outputs(reference, model->forward(reference.input()));
}

/// Elements of those that are trained.
int64_t trained_numel(const Model& model) {
  int64_t count = 0;
  for (const torch::Tensor& parameter : model.parameters()) {
    count += parameter.requires_grad() ? parameter.numel() : 0;
  }
  return count;
}

void check_engine(
    World& world,
    const char* name,
    int zero_stage,
    const TemporaryFolder& saved) {
  SCOPED_TRACE(name);
  const LoraFixture reference(name);
  const auto model = from_pretrained(reference.base().folder(), {.lazy = true});
  load_lora(*model, reference.folder());
  EngineOptions options;
  options.log_memory = false;
  options.sharding.zero_stage = zero_stage;
  options.sharding.groups.min_group_numel = 1000;
  const int64_t trained = trained_numel(*model);
  Engine engine(world, model, options);
  // Two moments of float32, divided over two ranks, with some padding.
  const torch::Tensor state = torch::full(
      {1},
      static_cast<double>(engine.measured_memory()[static_cast<size_t>(
          MemoryPurpose::kOptimizerState)]),
      torch::kDouble);
  engine.sum_over_ranks(state);
  EXPECT_GE(state.item<double>(), static_cast<double>(trained * 8));
  EXPECT_LE(state.item<double>(), static_cast<double>(trained * 8 + 4096));
  ModelOutput output = model->forward(reference.input());
  expect_outputs(reference, output);
  engine.backward(output.loss);
  expect_gradients(reference, *model, [&](const torch::Tensor& parameter) {
    return engine.grad(parameter);
  });
  output = {};
  engine.step(); // something else, and the folder's again
  load_lora(engine, *model, reference.folder());
  const auto folder = saved / (name + std::to_string(zero_stage));
  save_lora(engine, *model, folder / "adapter");
  save_merged(engine, *model, folder / "merged");
  check_saved(world, reference, folder);
}

} // namespace

TEST(LoraParallel, EqualsPeftWithLayersDivided) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for (const char* name : kAdapters) {
      check_tensor_parallel(world, name, false, saved);
    }
  });
}

TEST(LoraParallel, EqualsPeftWithSequencesDivided) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for (const char* name : kAdapters) {
      check_tensor_parallel(world, name, true, saved);
    }
  });
}

TEST(LoraParallel, EqualsPeftUnderZero) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for (const int zero_stage : {1, 2, 3}) {
      for (const char* name : kAdapters) {
        check_engine(world, name, zero_stage, saved);
      }
    }
  });
}

// Fresh adapters do not depend on the layout.
TEST(LoraParallel, StartsWithTheSameNumbersOnAnyNumberOfRanks) {
  run_ranks(2, [](World& world) {
    ParallelGroups groups(
        world,
        ParallelMesh({.shard = 1, .tensor = 2}, 2, 2),
        torch::Device(torch::kCPU));
    const TensorParallel tp{&groups[ParallelGroup::kTensor]};
    LoraConfig config;
    config.r = 3;
    config.init = LoraInit::kRandom;
    config.target_modules.pattern = "all-linear";
    const auto folder = fixture("models") / "gpt2";
    for (const bool use_dora : {false, true}) {
      config.use_dora = use_dora;
      config.init = use_dora ? LoraInit::kGaussian : LoraInit::kRandom;
      const auto plain = from_pretrained(folder);
      apply_lora(*plain, config, 7);
      for (const bool is_lazy : {false, true}) {
        const auto divided = from_pretrained(
            folder, {.context = LayerContext(tp), .lazy = is_lazy});
        apply_lora(*divided, config, 7);
        materialize(*divided);
        const auto expected = plain->named_parameters();
        const TensorSpecs specs = specs_in(*divided);
        const torch::NoGradGuard no_grad;
        for (const auto& item : divided->named_parameters()) {
          SCOPED_TRACE(item.key());
          const torch::Tensor full = tests::gather_full(
              item.value(),
              specs.at(item.value().unsafeGetTensorImpl()),
              *tp.group);
          if (item.key().ends_with(".lora_magnitude")) {
            expect_near(full, expected[item.key()]); // sums in another order
          } else {
            EXPECT_TRUE(full.equal(expected[item.key()]));
          }
        }
      }
    }
    config = {};
    config.init = LoraInit::kPissa;
    config.target_modules.pattern = "all-linear";
    const auto divided = from_pretrained(folder, {.context = LayerContext(tp)});
    expect_error(
        [&] { apply_lora(*divided, config); },
        {"init=pissa", "tensor-parallel", "parallel.tensor=1"});
    EXPECT_FALSE(has_lora(*divided));
  });
}

// Each rank reads the rows of which it has the lengths, and the weights that
// have lost their principal part.
TEST(LoraParallel, StartsFromTheWeightsUnderZero) {
  const TemporaryFolder saved;
  const auto base = saved / "base";
  run_ranks(1, [&](World& /*world*/) { write_large_bert(base); });
  run_ranks(2, [&](World& world) {
    const LoraFixture reference("bert_dora");
    const auto plain = from_pretrained(base);
    const torch::Tensor expected = plain->forward(reference.input()).logits;
    for (const bool use_dora : {false, true}) {
      for (const int zero_stage : {1, 2, 3}) {
        const auto model = from_pretrained(base, {.lazy = true});
        LoraConfig config;
        config.r = 2;
        config.use_dora = use_dora;
        config.init = use_dora ? LoraInit::kDefault : LoraInit::kPissa;
        config.target_modules.names = {"query", "output.dense"};
        apply_lora(*model, config);
        EngineOptions options;
        options.log_memory = false;
        options.sharding.zero_stage = zero_stage;
        options.sharding.groups.min_group_numel = 1000;
        Engine engine(world, model, options);
        expect_near(model->forward(reference.input()).logits, expected);
        const auto folder =
            saved / (std::to_string(zero_stage) + (use_dora ? "d" : "p"));
        save_lora(engine, *model, folder);
        if (world.rank() == 0) { // B is 0: lengths alone, or all of it
          const auto again = from_pretrained(base);
          load_lora(*again, folder);
          expect_near(again->forward(reference.input()).logits, expected);
        }
      }
    }
  });
}

} // namespace tessera::zoo::lora_parallel_test
