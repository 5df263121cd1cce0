// SPDX-License-Identifier: Apache-2.0
#pragma once
// Trains models of the zoo under a layout of ranks, held against plain LibTorch
// that sees all batches: losses, norms and weights, with dropout.

#include "support/average_over_ranks.h"
#include "support/motion.h"
#include "support/plain_adamw.h"
#include "support/temporary_folder.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/memory/memory_plan.h"
#include "tessera/engine/memory/tier_needs.h"
#include "tessera/runtime/random/random_key.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "tessera/zoo/vision/moco_model.h"
#include "zoo/layout_subjects.h"
#include "zoo/layouts.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace tessera::zoo::layout_comparison {

inline constexpr int kSteps = 2;
inline constexpr uint64_t kSeed = 17;
inline constexpr double kLearningRate = 1e-2;
inline constexpr double kMaxNorm = 0.5;
inline constexpr double kMomentum = 0.7; ///< of MoCo's second encoder
inline constexpr double kLossScale = 1024; ///< of float16

/// [Note: tolerances of layouts] In float64 a sum in another order shows in the
/// 16th digit, and AdamW, which divides a gradient by its own size, makes 1e-5
/// of a step of it at most. In lower precision every layer's sums round, to
/// 2^-8 of themselves in bfloat16 and to 2^-11 in float16, in another way in
/// every layout; ReLU and softmax make more of that. There AdamW has an eps
/// above all gradients, so that its steps are in proportion to them and a
/// gradient of nothing but roundings makes no whole step.
struct Tolerances {
  double loss;
  double norm;
  double motion; ///< see expect_close_by_motion()
  double eps; ///< of AdamW
};

inline Tolerances tolerances_of(const Layout& layout) {
  if (!layout.compute) {
    return {1e-9, 1e-8, 1e-5, 1e-8};
  }
  return layout.compute == at::kHalf ? Tolerances{1e-2, 1e-2, 2e-2, 1}
                                     : Tolerances{1e-2, 3e-2, 6e-2, 1};
}

inline EngineOptions engine_options(const Layout& layout) {
  EngineOptions options;
  options.sharding.groups.min_group_numel = 0;
  options.sharding.zero_stage = layout.zero_stage;
  options.precision.parameters = layout.compute;
  options.placement.optimizer = layout.placement;
  options.optimizer.lr = kLearningRate;
  options.optimizer.rule = AdamWOptions{.eps = tolerances_of(layout).eps};
  options.loss_scale.initial = kLossScale;
  options.recompute_operators = layout.recomputed > 0;
  options.log_memory = false;
  return options;
}

/// What a training comes to; tensors on the CPU.
struct Seen {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, at::Tensor> start;
  std::map<std::string, at::Tensor> parameters;
};

/// Ranks that divide sequences draw masks of their own tokens, and on a device
/// those that divide layers masks of their own parts.
inline bool has_dropout(const Layout& layout) {
  return layout.parallel.sizes.context == 1 &&
         (layout.device.is_cpu() || layout.parallel.sizes.tensor == 1);
}

/// Rings take no texts of different lengths.
inline bool has_ring(const Layout& layout) {
  return layout.parallel.sizes.context > 1 &&
         layout.parallel.context_attention == ContextKind::kRing;
}

inline ModelInput batch_of(
    const Subject& subject,
    const Layout& layout,
    int step,
    int number) {
  return input_on(
      zoo::batch_of(subject, step, number, /*is_padded=*/!has_ring(layout)),
      layout.device);
}

/// What divides experts is for models that have some.
inline bool takes(const Subject& subject, const Layout& layout) {
  const ParallelSizes& sizes = layout.parallel.sizes;
  return (sizes.expert > 1) == subject.has_experts &&
         (subject.takes_sequence || !layout.parallel.sequence) &&
         (subject.takes_context || sizes.context == 1) &&
         (subject.takes_ring || !has_ring(layout)) &&
         (subject.takes_lower_precision || !layout.compute) &&
         (subject.takes_recomputation || layout.recomputed == 0);
}

inline std::shared_ptr<Model> load(
    const std::filesystem::path& folder,
    const LayerContext& context,
    const Subject& subject,
    const Layout& layout,
    at::ScalarType dtype = at::kDouble) {
  auto model = from_pretrained(folder, {.context = context, .dtype = dtype});
  if (subject.has_adapters) {
    LoraConfig config{
        .r = 3, .alpha = layout.compute ? 1.5 : 6.0, .dropout = 0.2};
    config.target_modules.names = {
        "c_attn", "c_proj", "c_fc", "q_proj", "v_proj"};
    config.init = LoraInit::kRandom;
    apply_lora(*model, config, kSeed);
  }
  move_module(*model, layout.device);
  model->train(has_dropout(layout));
  if (subject.drops) {
    // All layers in the first step, then the later ones in few.
    model->drop_layers({.theta = 0, .gamma = 50});
    model->drop_tokens({.min_tokens = 3, .steps = 4, .multiple = 1});
  }
  return model;
}

/// MoCo's second encoder, after a step.
inline void follow(Engine& engine, Model& model) {
  if (const auto* moco = dynamic_cast<MocoModel*>(&model)) {
    update_momentum(engine, *moco, kMomentum);
  }
}

/// An optimizer's weight, and where operators see it.
struct MasterWeight {
  std::string name;
  at::Tensor value;
  at::Tensor used; ///< value, or a copy in lower precision
};

/// Gives `model` what the optimizer made of its weights.
inline void refresh_copies(const std::vector<MasterWeight>& weights) {
  const c10::NoGradGuard no_grad;
  for (const MasterWeight& weight : weights) {
    if (!weight.used.is_same(weight.value)) {
      weight.used.copy_(weight.value);
    }
  }
}

/// Moves the gradients of what operators saw to the masters and undoes `scale`.
inline void collect_gradients(
    const std::vector<MasterWeight>& weights,
    double scale) {
  const c10::NoGradGuard no_grad;
  for (const MasterWeight& weight : weights) {
    if (weight.used.is_same(weight.value) || !weight.used.grad().defined()) {
      continue;
    }
    const at::Tensor gradient =
        weight.used.grad().to(weight.value.scalar_type()) / scale;
    at::Tensor& sum = weight.value.mutable_grad();
    sum = sum.defined() ? sum + gradient : gradient;
    weight.used.mutable_grad() = at::Tensor();
  }
}

/// Plain LibTorch on all batches. In lower precision the model computes with
/// copies of float32 master weights.
inline Seen train_plain(
    const std::filesystem::path& folder,
    const Subject& subject,
    const Layout& layout) {
  const auto full = load(folder, {}, subject, layout);
  const auto model = layout.compute
                         ? load(folder, {}, subject, layout, *layout.compute)
                         : full;
  std::vector<MasterWeight> weights;
  std::vector<at::Tensor> trained;
  Seen seen;
  const auto used = model->named_parameters();
  for (const auto& item : full->named_parameters()) {
    const bool trains = item.value().requires_grad();
    MasterWeight weight{item.key(), item.value(), used[item.key()]};
    if (layout.compute) {
      weight.value =
          item.value().detach().to(at::kFloat).requires_grad_(trains);
    }
    if (trains) {
      trained.push_back(weight.value);
    }
    seen.start[weight.name] = weight.value.detach().clone();
    weights.push_back(std::move(weight));
  }
  refresh_copies(weights);
  tests::PlainAdamW adamw(
      trained, {.lr = kLearningRate, .eps = tolerances_of(layout).eps});
  const double scale = layout.compute == at::kHalf ? kLossScale : 1;
  for (int step = 0; step < kSteps; ++step) {
    adamw.zero_grad();
    double sum = 0;
    for (int i = 0; i < layout.batches; ++i) {
      ModelInput input = batch_of(subject, layout, step, i);
      if (layout.compute && input.pixel_values.defined()) {
        input.pixel_values = input.pixel_values.to(*layout.compute);
      }
      const RandomKeyScope random({kSeed, step, i}, layout.device);
      const at::Tensor loss = model->forward(input).loss / layout.batches;
      (loss * scale).backward();
      collect_gradients(weights, scale);
      sum += loss.item<double>();
    }
    seen.losses.push_back(sum);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : trained) {
      if (parameter.grad().defined()) { // not of a layer that was left out
        gradients.push_back(parameter.grad());
      }
    }
    seen.norms.push_back(tests::clip_plain_gradients(gradients, kMaxNorm));
    adamw.step();
    refresh_copies(weights);
    if (auto* moco = dynamic_cast<MocoModel*>(model.get())) {
      moco->update_momentum(kMomentum);
    }
  }
  for (const MasterWeight& weight : weights) {
    // Of what is frozen the engine keeps no more than operators see.
    const bool is_rounded = layout.compute && !weight.value.requires_grad() &&
                            weight.name.find("norm") == std::string::npos;
    seen.parameters[weight.name] =
        is_rounded
            ? weight.value.to(*layout.compute).to(weight.value.scalar_type())
            : weight.value.detach();
    if (is_rounded) {
      seen.start[weight.name] = seen.parameters[weight.name];
    }
  }
  return seen;
}

inline void write_seen(const std::filesystem::path& path, const Seen& seen) {
  c10::Dict<std::string, at::Tensor> tensors;
  tensors.insert("losses", torch::tensor(seen.losses, torch::kDouble));
  tensors.insert("norms", torch::tensor(seen.norms, torch::kDouble));
  for (const auto& [name, value] : seen.start) {
    tensors.insert("start/" + name, value.cpu());
    tensors.insert("parameters/" + name, seen.parameters.at(name).cpu());
  }
  const std::vector<char> bytes = torch::pickle_save(tensors);
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline Seen read_seen(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Seen seen;
  const auto numbers = [](const at::Tensor& values) {
    const auto* first = values.const_data_ptr<double>();
    return std::vector<double>(first, first + values.numel());
  };
  for (const auto& entry : torch::pickle_load(bytes).toGenericDict()) {
    const std::string key = entry.key().toStringRef();
    const at::Tensor value = entry.value().toTensor();
    const size_t slash = key.find('/');
    if (slash == std::string::npos) {
      (key == "losses" ? seen.losses : seen.norms) = numbers(value);
    } else {
      (key.starts_with("start/") ? seen.start
                                 : seen.parameters)[key.substr(slash + 1)] =
          value;
    }
  }
  return seen;
}

/// train_plain() on rank 0, for all ranks; it takes longer than all else.
inline Seen train_plain_once(
    World& world,
    const std::filesystem::path& folder,
    const Subject& subject,
    const Layout& layout) {
  const std::filesystem::path path = folder.string() + ".plain";
  const auto ranks = world.new_communicator("plain");
  if (world.rank() == 0) {
    write_seen(path, train_plain(folder, subject, layout));
  }
  ranks->barrier();
  return read_seen(path);
}

/// One step of this rank's batches. @return the sum of their losses, where
/// this rank tells it.
inline double run_step(
    Engine& engine,
    Model& model,
    ParallelRun& parallel,
    const Subject& subject,
    const Layout& layout,
    int step) {
  const BatchShare share = parallel.batches();
  std::vector<ModelInput> inputs;
  std::vector<int> numbers;
  for (int i = share.index; i < layout.batches; i += share.count) {
    inputs.push_back(batch_of(subject, layout, step, i));
    numbers.push_back(i);
  }
  double sum = 0;
  if (parallel.pipeline() == nullptr) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const RandomKeyScope random({kSeed, step, numbers[i]}, layout.device);
      const at::Tensor loss =
          model.forward(inputs[i]).loss / static_cast<double>(inputs.size());
      engine.backward(loss);
      sum += loss.item<double>() * static_cast<double>(inputs.size());
    }
    return parallel.reports_loss() ? sum : 0;
  }
  const PipelineForward forward =
      pipeline_forward(model, [&](int number) -> const ModelInput& {
        return inputs.at(static_cast<size_t>(number));
      });
  PipelineCallbacks callbacks;
  callbacks.forward = [&](int chunk,
                          int number,
                          const std::vector<at::Tensor>& received) {
    const RandomKeyScope random(
        {kSeed, step, numbers.at(static_cast<size_t>(number))}, layout.device);
    return forward(chunk, number, received);
  };
  for (const at::Tensor& loss :
       engine.run_pipeline(*parallel.pipeline(), callbacks)) {
    sum += loss.item<double>();
  }
  return parallel.reports_loss() ? sum : 0;
}

/// Trains the model in `folder` on the world's ranks and on one.
inline void expect_that_of_one_rank(
    World& world,
    const std::filesystem::path& folder,
    const Subject& subject,
    const Layout& layout) {
  SCOPED_TRACE(subject.name);
  const Seen plain = train_plain_once(world, folder, subject, layout);
  const int batches = layout.parallel.sizes.data * layout.parallel.sizes.shard;
  ParallelRun parallel(world, layout.parallel, layout.batches / batches);
  const auto model = load(folder, layer_context(parallel), subject, layout);
  model->recompute(
      {.layers = layout.recomputed,
       .attention = layout.recomputed > 0,
       .divide_inputs = layout.recomputed > 0});
  EXPECT_EQ(
      layer_context(parallel).context() != nullptr,
      layout.parallel.sizes.context > 1);
  EngineOptions options = engine_options(layout);
  options.parallel = &parallel.mesh();
  if (layout.has_budget) {
    options.memory.device_bytes = engine::device_needs(
        sharding::plan_pages(
            *model,
            engine::pager_options(options),
            sharding::page_meshes(world, parallel.mesh(), *model)),
        engine::pager_options(options));
    options.memory.host_bytes = int64_t{1} << 26;
  }
  Engine engine(world, model, options);
  EXPECT_EQ(
      engine.planned_memory(MemoryTier::kHost)[static_cast<size_t>(
          MemoryPurpose::kOptimizerState)] > 0,
      layout.has_budget || layout.placement == MemoryTier::kHost);
  const Tolerances tolerances = tolerances_of(layout);
  for (int step = 0; step < kSteps; ++step) {
    const double own =
        run_step(engine, *model, parallel, subject, layout, step);
    const at::Tensor sum = torch::full({1}, own, torch::kDouble);
    engine.sum_over_ranks(sum);
    const auto at = static_cast<size_t>(step);
    const double norm = engine.clip_grad_norm(kMaxNorm);
    EXPECT_NEAR(
        sum.item<double>() / layout.batches,
        plain.losses[at],
        tolerances.loss * plain.losses[at]);
    EXPECT_NEAR(norm, plain.norms[at], tolerances.norm * plain.norms[at]);
    EXPECT_TRUE(engine.step());
    follow(engine, *model);
  }
  double largest_motion = 0;
  for (const auto& [name, value] : plain.parameters) {
    largest_motion = std::max(
        largest_motion, tests::distance_of(value, plain.start.at(name)));
  }
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        tests::expect_close_by_motion(
            plain.start.at(name),
            plain.parameters.at(name),
            (layout.compute ? value.to(at::kFloat) : value).cpu(),
            tolerances.motion,
            name,
            1e-2 * largest_motion);
      });
}

/// Writes a new model of `subject` to `folder`.
inline void save_subject(
    const Subject& subject,
    const Layout& layout,
    const std::filesystem::path& folder) {
  torch::manual_seed(3);
  auto config = nlohmann::json::parse(subject.config);
  // Every term matters.
  config["initializer_range"] =
      layout.compute ? subject.lower_precision_range : 0.3;
  if (layout.compute) {
    config["initializer_factor"] = 0.25; // of T5
  }
  const auto model =
      from_config(config, {.architecture = subject.architecture});
  save_pretrained(*model, folder);
}

/// Trains each of the subjects that `wants` selects and the layout takes.
/// @param run calls its argument on each of the ranks, with the device where
///   the rank computes.
inline void expect_those_of_one_rank(
    const Layout& layout,
    const std::function<bool(const Subject&)>& wants,
    const std::function<void(const std::function<void(World&, at::Device)>&)>&
        run) {
  const TemporaryFolder folder;
  const auto each = [&](const std::function<void(const Subject&)>& visit) {
    for (const Subject& subject : kSubjects) {
      if (takes(subject, layout) && wants(subject)) {
        visit(subject);
      }
    }
  };
  each([&](const Subject& subject) {
    save_subject(subject, layout, folder.path() / subject.name);
  });
  run([&](World& world, at::Device device) {
    Layout here = layout;
    here.device = device;
    each([&](const Subject& subject) {
      expect_that_of_one_rank(
          world, folder.path() / subject.name, subject, here);
    });
  });
}

} // namespace tessera::zoo::layout_comparison
