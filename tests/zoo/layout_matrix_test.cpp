// SPDX-License-Identifier: Apache-2.0
// Models of the zoo trained under every layout of ranks, held against one rank
// that sees all batches: losses, norms and weights, with dropout.
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/expert_engines.h"
#include "tessera/sharding/parallel/parallel_module.h"
#include "tessera/sharding/parallel/random_key.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/models/moco_model.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "zoo/layout_subjects.h"
#include "zoo/layouts.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace tessera::zoo::layout_matrix_test {
namespace {

constexpr int kSteps = 2;
constexpr uint64_t kSeed = 17;

EngineOptions engine_options(const Layout& layout) {
  EngineOptions options;
  options.sharding.groups.min_group_numel = 0;
  options.sharding.zero_stage = layout.zero_stage;
  options.sharding.precision.parameters = layout.compute;
  options.optimizer.placement = layout.placement;
  options.optimizer.lr = 1e-2;
  options.log_memory = false;
  return options;
}

struct Seen {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, at::Tensor> parameters;
};

/// Ranks that divide sequences draw masks of their own tokens.
bool has_dropout(const Layout& layout) {
  return layout.parallel.sizes.context == 1;
}

/// What divides experts is for models that have some.
bool takes(const Subject& subject, const Layout& layout) {
  const ParallelSizes& sizes = layout.parallel.sizes;
  return (sizes.expert > 1) == subject.has_experts &&
         (subject.takes_sequence || !layout.parallel.sequence) &&
         (subject.takes_context || sizes.context == 1) &&
         (subject.takes_lower_precision || !layout.compute) &&
         (subject.takes_recomputation || layout.recomputed == 0);
}

std::shared_ptr<Model> load(
    const std::filesystem::path& folder,
    const LayerContext& context,
    const Subject& subject,
    const Layout& layout) {
  auto model =
      from_pretrained(folder, {.context = context, .dtype = at::kDouble});
  if (subject.has_adapters) {
    LoraConfig config{.r = 3, .alpha = 6, .dropout = 0.2};
    config.target_modules.names = {
        "c_attn", "c_proj", "c_fc", "q_proj", "v_proj"};
    config.init = LoraInit::kRandom;
    apply_lora(*model, config, kSeed);
  }
  model->train(has_dropout(layout));
  return model;
}

/// MoCo's second encoder, after a step.
void follow(Engine& engine, Model& model) {
  if (const auto* moco = dynamic_cast<MocoModel*>(&model)) {
    update_momentum(engine, *moco, 0.7);
  }
}

void follow(ExpertEngines& /*engines*/, Model& /*model*/) {} // none have one

Seen train_alone(
    const std::filesystem::path& folder,
    const Subject& subject,
    const Layout& layout) {
  World world(0, 1, 0, nullptr, {});
  const auto model = load(folder, {}, subject, layout);
  Engine engine(
      world, model, engine_options({"alone", {}, 3, 0, {}, layout.compute}));
  Seen seen;
  for (int step = 0; step < kSteps; ++step) {
    double sum = 0;
    for (int i = 0; i < layout.batches; ++i) {
      const ModelInput input = batch_of(subject, step, i);
      const RandomKeyScope random({kSeed, step, i}, at::kCPU);
      const at::Tensor loss = model->forward(input).loss / layout.batches;
      engine.backward(loss);
      sum += loss.item<double>();
    }
    seen.losses.push_back(sum);
    seen.norms.push_back(engine.clip_grad_norm(0.5));
    engine.step();
    follow(engine, *model);
  }
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        seen.parameters[name] = value.clone();
      });
  return seen;
}

/// One step of this rank's batches. @return the sum of their losses, where
/// this rank tells it.
template <typename AnyEngine>
double run_step(
    AnyEngine& engine,
    Model& model,
    ParallelRun& parallel,
    const Subject& subject,
    const Layout& layout,
    int step) {
  const BatchShare share = parallel.batches();
  std::vector<ModelInput> inputs;
  std::vector<int> numbers;
  for (int i = share.index; i < layout.batches; i += share.count) {
    inputs.push_back(batch_of(subject, step, i));
    numbers.push_back(i);
  }
  double sum = 0;
  if (parallel.pipeline() == nullptr) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const RandomKeyScope random({kSeed, step, numbers[i]}, at::kCPU);
      const at::Tensor loss =
          model.forward(inputs[i]).loss / static_cast<double>(inputs.size());
      engine.backward(loss);
      sum += loss.item<double>() * static_cast<double>(inputs.size());
    }
    return parallel.tells_loss() ? sum : 0;
  }
  const PipelineForward forward =
      pipeline_forward(model, [&](int number) -> const ModelInput& {
        return inputs.at(static_cast<size_t>(number));
      });
  PipelineCallbacks callbacks;
  callbacks.forward =
      [&](int chunk, int number, const std::vector<at::Tensor>& received) {
        const RandomKeyScope random(
            {kSeed, step, numbers.at(static_cast<size_t>(number))}, at::kCPU);
        return forward(chunk, number, received);
      };
  for (const at::Tensor& loss :
       engine.run_pipeline(*parallel.pipeline(), callbacks)) {
    sum += loss.item<double>();
  }
  return parallel.tells_loss() ? sum : 0;
}

template <typename AnyEngine>
void check_layout(
    World& world,
    const std::filesystem::path& folder,
    const Subject& subject,
    const Layout& layout) {
  SCOPED_TRACE(subject.name);
  const Seen alone = train_alone(folder, subject, layout);
  const int batches = layout.parallel.sizes.data * layout.parallel.sizes.shard;
  ParallelRun parallel(world, layout.parallel, layout.batches / batches);
  const auto model = load(folder, layer_context(parallel), subject, layout);
  model->set_recomputed_layers(layout.recomputed);
  EXPECT_EQ(
      layer_context(parallel).context() != nullptr,
      layout.parallel.sizes.context > 1);
  const auto parts = parts_in(*model);
  const auto parameters = model->named_parameters();
  EngineOptions options = engine_options(layout);
  options.parallel = &parallel.mesh();
  AnyEngine engine(world, model, options);
  for (int step = 0; step < kSteps; ++step) {
    const double own =
        run_step(engine, *model, parallel, subject, layout, step);
    const at::Tensor sum = torch::full({1}, own, torch::kDouble);
    engine.sum_over_ranks(sum);
    const auto at = static_cast<size_t>(step);
    // Float64 in another order, through AdamW's division by small moments; in
    // lower precision, roundings of each layer's sums.
    const double relative = layout.compute ? 3e-2 : 1e-9;
    const double norm = engine.clip_grad_norm(0.5);
    EXPECT_NEAR(
        sum.item<double>() / layout.batches,
        alone.losses[at],
        relative * alone.losses[at]);
    EXPECT_NEAR(norm, alone.norms[at], 10 * relative * alone.norms[at]);
    engine.step();
    follow(engine, *model);
  }
  if (layout.compute) {
    return; // AdamW makes a step of a rounding error
  }
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        at::Tensor expected = alone.parameters.at(name);
        const auto part = parts.find(parameters[name].unsafeGetTensorImpl());
        if (part != parts.end()) {
          const int index =
              parallel.mesh().index(ParallelGroup::kTensor, world.rank());
          expected = expected.narrow(
              part->second.dim,
              part->second.split.begin(index),
              part->second.split.length(index));
        }
        EXPECT_TRUE(value.allclose(expected, 1e-6, 1e-7))
            << name << " is off by " << (value - expected).abs().max();
      });
}

class LayoutMatrix : public ::testing::TestWithParam<Layout> {};

} // namespace

TEST_P(LayoutMatrix, IsThatOfOneRank) {
  const Layout& layout = GetParam();
  for (const Subject& subject : kSubjects) {
    if (!takes(subject, layout)) {
      continue;
    }
    const TemporaryFolder folder;
    torch::manual_seed(3);
    auto config = nlohmann::json::parse(subject.config);
    config["initializer_range"] = 0.3; // every term matters
    const auto model =
        from_config(config, {.architecture = subject.architecture});
    save_pretrained(*model, folder.path() / "model");
    tests::run_ranks(ranks_of(layout.parallel.sizes), [&](World& world) {
      const auto path = folder.path() / "model";
      subject.has_experts
          ? check_layout<ExpertEngines>(world, path, subject, layout)
          : check_layout<Engine>(world, path, subject, layout);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    LayoutMatrix,
    ::testing::ValuesIn(layouts()),
    [](const auto& info) { return info.param.name; });

} // namespace tessera::zoo::layout_matrix_test
