// SPDX-License-Identifier: Apache-2.0
// The memory that a dry run plans, against what LibTorch's allocator on the CPU
// counts in a real run of the same training.
#include "tessera/engine/plan/step_plan.h"

#include "tessera/runtime/memory/cpu_memory_counter.h"
#include "tessera/zoo/models/registry.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

namespace tessera::zoo::step_plan_test {

namespace {

/// A training that is planned and run.
struct Case {
  std::string name;
  nlohmann::json config; ///< of the model
  std::string architecture;
  int64_t rows = 4;
  int64_t length = 128;
  int64_t checkpointed = 0;
  EngineOptions options;
  PlannedJob job;
};

ModelInput batch_of(const Case& subject) {
  ModelInput input;
  input.input_ids = torch::randint(100, {subject.rows, subject.length});
  input.attention_mask = torch::ones_like(input.input_ids);
  input.labels = input.input_ids;
  return input;
}

PlannedTraining training_of(const Case& subject, const ModelInput& input) {
  return {
      [&subject](World& /*world*/, ParallelRun& /*parallel*/)
          -> std::shared_ptr<torch::nn::Module> {
        const auto model =
            from_config(subject.config, {.architecture = subject.architecture});
        model->train();
        model->set_recomputed_layers(subject.checkpointed);
        return model;
      },
      [&input](torch::nn::Module& module) {
        return dynamic_cast<Model&>(module).forward(input).loss;
      }};
}

int64_t measured_peak(const Case& subject) {
  runtime::install_cpu_memory_counter();
  const ModelInput input = batch_of(subject);
  const PlannedTraining training = training_of(subject, input);
  const int64_t before = runtime::cpu_bytes_live();
  World& world = init({.use_cuda = false});
  ParallelRun parallel(world, subject.job.parallel, subject.job.accumulate);
  const auto module = training.make(world, parallel);
  Engine engine(world, module, subject.options);
  runtime::reset_cpu_bytes_peak();
  for (int step = 0; step < subject.job.steps; ++step) {
    for (int micro = 0; micro < subject.job.accumulate; ++micro) {
      const at::Tensor loss = training.loss(*module);
      engine.backward(
          subject.job.accumulate == 1 ? loss : loss / subject.job.accumulate);
    }
    engine.step();
  }
  return runtime::cpu_bytes_peak() - before;
}

StepMemoryPlan planned(const Case& subject) {
  const ModelInput input = batch_of(subject);
  return plan(training_of(subject, input), subject.options, subject.job);
}

Case gpt2() {
  Case subject;
  subject.name = "gpt2";
  subject.config = {
      {"model_type", "gpt2"},
      {"architectures", {"GPT2LMHeadModel"}},
      {"vocab_size", 2000},
      {"n_positions", 256},
      {"n_embd", 256},
      {"n_layer", 4},
      {"n_head", 4}};
  subject.options.log_memory = false;
  return subject;
}

void expect_within_3_percent(const Case& subject) {
  const StepMemoryPlan plan = planned(subject);
  const auto measured = static_cast<double>(measured_peak(subject));
  const auto said = static_cast<double>(plan.peak_bytes);
  std::printf(
      "%-24s measured %9.3f MB, planned %9.3f MB, %+.2f %%; %.3f GFLOP; peak in %s %s\n",
      subject.name.c_str(),
      measured / 1e6,
      said / 1e6,
      100 * (said / measured - 1),
      plan.flops() / 1e9,
      plan.peak.module.c_str(),
      plan.peak.operation.c_str());
  for (const std::string& each : plan.assumptions) {
    std::printf("  %s\n", each.c_str());
  }
  EXPECT_NEAR(said / measured, 1, 0.03);
}

} // namespace

TEST(StepPlan, Gpt2) {
  expect_within_3_percent(gpt2());
}

} // namespace tessera::zoo::step_plan_test
