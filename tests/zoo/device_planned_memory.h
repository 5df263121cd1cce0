// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory that plan() says a training takes, against the peak that the
// device's allocator counts in a real run of it.

#include "tessera/planner/step_plan.h"
#include "tessera/runtime/memory/device_memory.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/zoo/models/registry.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo::device_planned_memory {

/// Most of the peak is activations of layers, logits, or state of the
/// optimizer. Matrices of queries x keys, which only fused kernels do without,
/// are small beside them.
struct Case {
  const char* name;
  nlohmann::json config;
  int64_t rows;
  int64_t length;
  int64_t recomputed = 0; ///< layers
  std::optional<at::ScalarType> dtype = {};
};

/// @param scale of all sizes.
inline std::vector<Case> cases(int64_t scale) {
  const nlohmann::json gpt{
      {"model_type", "gpt2"},
      {"architectures", {"GPT2LMHeadModel"}},
      {"vocab_size", 500 * scale},
      {"n_embd", 64 * scale},
      {"n_head", 2},
      {"n_layer", 4},
      {"n_positions", 16 * scale},
      {"resid_pdrop", 0.0},
      {"embd_pdrop", 0.0},
      {"attn_pdrop", 0.0}};
  nlohmann::json words = gpt;
  words["vocab_size"] = 10000 * scale;
  nlohmann::json wide = gpt;
  wide["n_embd"] = 256 * scale;
  return {
      {"layers", gpt, 32, 16 * scale},
      {"recomputed", gpt, 64, 16 * scale, 4},
      {"logits", words, 32, 16 * scale},
      {"state", wide, 1, 16 * scale},
      {"bfloat16", gpt, 32, 16 * scale, 0, at::kBFloat16}};
}

inline ModelInput batch_of(const Case& planned) {
  ModelInput input;
  input.input_ids = torch::arange(planned.rows * planned.length, torch::kLong)
                        .remainder(97)
                        .view({planned.rows, planned.length});
  input.labels = input.input_ids;
  input.loss_only = true;
  return input;
}

inline std::shared_ptr<Model> make_model(const Case& planned) {
  auto model = lazy([&] { return from_config(planned.config); });
  init_parameters(*model, 5);
  model->train();
  model->recompute({.layers = planned.recomputed});
  return model;
}

inline EngineOptions engine_options(const Case& planned) {
  EngineOptions options;
  options.log_memory = false;
  options.precision.parameters = planned.dtype;
  return options;
}

/// The peak of the training's steps, without what was there before.
inline int64_t measured_peak(World& world, const Case& planned, int steps) {
  const c10::Device device = world.device();
  const ModelInput batch = batch_of(planned).with_tensors(
      [&](const at::Tensor& tensor) { return tensor.to(device); });
  const int64_t before = runtime::live_bytes(device);
  const auto model = make_model(planned);
  move_module(*model, device);
  Engine engine(world, model, engine_options(planned));
  runtime::reset_peak_bytes(device);
  for (int step = 0; step < steps; ++step) {
    engine.backward(model->forward(batch).loss);
    engine.step();
  }
  return runtime::peak_bytes(device) - before;
}

/// The plan is for CUDA.
/// @param least, most measured bytes for each planned one.
inline void expect_planned(
    World& world,
    const Case& planned,
    double least,
    double most) {
  SCOPED_TRACE(planned.name);
  const ModelInput batch = batch_of(planned);
  PlannedJob job;
  job.device = at::kCUDA;
  const StepMemoryPlan plan = tessera::plan(
      {.make = [&](World& /*world*/, ParallelRun& /*parallel*/)
           -> std::shared_ptr<torch::nn::Module> {
         return make_model(planned);
       },
       .loss =
           [&](torch::nn::Module& module) {
             return dynamic_cast<Model&>(module).forward(batch).loss;
           }},
      engine_options(planned),
      job);
  // Workspaces of libraries stay; the plan does not have them.
  measured_peak(world, planned, 1);
  const auto measured =
      static_cast<double>(measured_peak(world, planned, job.steps));
  const double ratio = measured / static_cast<double>(plan.peak_bytes);
  std::fprintf(
      stderr,
      "%-12s measured %8.2f MB, planned %8.2f MB, ratio %.4f\n",
      planned.name,
      measured / 1e6,
      static_cast<double>(plan.peak_bytes) / 1e6,
      ratio);
  EXPECT_GE(ratio, least);
  EXPECT_LE(ratio, most);
}

/// All cases, on the device of `world`: CUDA, or the virtual one in small.
inline void expect_all_planned(World& world) {
  const bool is_cuda = world.device().is_cuda();
  for (const Case& planned : cases(is_cuda ? 8 : 1)) {
    if (is_cuda) {
      // LibTorch's allocator does not divide what is left of a block if it has
      // less than a mebibyte, and tensors have some each.
      expect_planned(world, planned, 0.97, 1.10);
    } else {
      // What another stream still reads when it is freed is freed later.
      // Attention is matrix products there, of float32 copies in bfloat16.
      expect_planned(world, planned, 0.99, planned.dtype ? 1.12 : 1.05);
    }
  }
}

} // namespace tessera::zoo::device_planned_memory
