// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/moco_model.h"

#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/zoo/heads/standard_head.h"
#include "tessera/zoo/inputs/column_checks.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/layer_costs.h"
#include "tessera/zoo/models/layer_stack.h"

#include <torch/types.h>

#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <string_view>

namespace tessera::zoo {

namespace {

constexpr const char* kSecond = "second_pixel_values";
constexpr const char* kMomentum = "momentum.";

/// "layers.7" of "layers.7.attention.query.weight"; else the first word.
std::string component_of(const std::string& name) {
  const size_t first = name.find('.');
  return name.substr(
      0, name.starts_with("layers.") ? name.find('.', first + 1) : first);
}

/// Applies a head to each view separately, because its norms are per view.
at::Tensor by_view(
    ContrastiveHead& head,
    const at::Tensor& x,
    Communicator* batches) {
  const auto views = x.chunk(2);
  return at::cat(
      {head->forward(views[0], batches), head->forward(views[1], batches)});
}

at::Tensor of_length_1(const at::Tensor& x) {
  return x / x.norm(2, -1, /*keepdim=*/true).clamp_min(1e-12);
}

void follow(const MocoModel::Pairs& pairs, double momentum) {
  const at::NoGradGuard no_grad;
  for (const auto& [first, second] : pairs) {
    at::Tensor(second).mul_(momentum).add_(first, 1 - momentum);
  }
}

class TwoViewHead : public StandardHead {
 public:
  TwoViewHead(MocoModel& model, const PatchEmbeddingOptions& images)
      : StandardHead({.images = images}), model_(model) {}

  bool takes_two_views() const override {
    return true;
  }
  void begin_training(ParallelRun& parallel) override {
    if (parallel.batches().count > 1) {
      model_.gather_over(&parallel.groups()[ParallelGroup::kBatches]);
    }
  }
  void after_step(Engine& engine, int64_t step, int64_t steps) override {
    update_momentum(engine, model_, model_.momentum_at(step, steps));
  }
  /// Queries find keys in their own batch only.
  void begin_scoring() override {
    model_.gather_over(nullptr);
  }

 protected:
  std::vector<std::string> targets() const override {
    return {kSecond};
  }
  void check_labels(const ColumnChecks& examples) const override {
    examples.need(kSecond);
  }

 private:
  MocoModel& model_;
};

} // namespace

MocoModel::MocoModel(
    const MocoConfig& config,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : LayeredModel(
          context,
          std::move(json),
          std::move(names),
          layer_costs(config.layers)),
      moco_(config) {
  check_divides_tokens(moco_.patches.tokens());
  encoder_ = make_encoder(*this);
  if (stage().has_last()) {
    const sharding::NumberedInit init(stage().count() + 2);
    prediction_ = register_module(
        "prediction",
        ContrastiveHead(ContrastiveHeadOptions{
            {moco_.head_features, moco_.head_inner, moco_.head_features},
            1e-5,
            moco_.deviation}));
  }
  const auto momentum = register_module(
      "momentum", std::make_shared<torch::nn::Module>("Momentum"));
  momentum_ = make_encoder(*momentum);
  for (const at::Tensor& parameter : momentum->parameters()) {
    parameter.set_requires_grad(false);
  }
}

// Both encoders draw the same initial values.
MocoModel::Encoder MocoModel::make_encoder(torch::nn::Module& owner) {
  Encoder encoder;
  if (stage().has_first()) {
    const sharding::NumberedInit init(stage().count());
    encoder.embeddings =
        owner.register_module("embeddings", PatchEmbedding(moco_.patches));
  }
  encoder.layers = owner.register_module(
      "layers", make_layers(context_, moco_.layers, stage().local()));
  if (stage().has_last()) {
    const sharding::NumberedInit init(stage().count() + 1);
    encoder.norm = owner.register_module("norm", Norm(moco_.norm));
    encoder.projection = owner.register_module(
        "projection",
        ContrastiveHead(ContrastiveHeadOptions{
            {moco_.norm.features,
             moco_.head_inner,
             moco_.head_inner,
             moco_.head_features},
            1e-5,
            moco_.deviation}));
  }
  return encoder;
}

std::unique_ptr<Head> MocoModel::head() {
  return std::make_unique<TwoViewHead>(*this, moco_.patches);
}

double MocoModel::momentum_at(int64_t step, int64_t steps) const {
  TESSERA_CHECK(
      step >= 0 && step <= steps && steps >= 1,
      "MocoModel::momentum_at: step {} of {}; it must be between 0 and the number of steps",
      step,
      steps);
  const double done = static_cast<double>(step) / static_cast<double>(steps);
  return 1 - (1 - moco_.momentum) * (std::cos(std::numbers::pi * done) + 1) / 2;
}

std::vector<MocoModel::Pairs> MocoModel::pairs() const {
  const auto parameters = named_parameters();
  std::map<std::string, Pairs> components;
  for (const auto& item : parameters) {
    const at::Tensor* second = parameters.find(kMomentum + item.key());
    if (second != nullptr && item.value().requires_grad()) {
      components[component_of(item.key())].emplace_back(item.value(), *second);
    }
  }
  std::vector<Pairs> all;
  for (auto& [name, pairs] : components) {
    all.push_back(std::move(pairs));
  }
  return all;
}

void MocoModel::update_momentum(double momentum) {
  for (const Pairs& pairs : pairs()) {
    follow(pairs, momentum);
  }
}

void update_momentum(Engine& engine, const MocoModel& model, double momentum) {
  for (const MocoModel::Pairs& pairs : model.pairs()) {
    std::vector<at::Tensor> first;
    std::vector<at::Tensor> second;
    for (const auto& [one, other] : pairs) {
      first.push_back(one);
      second.push_back(other);
    }
    const GatherScope read = engine.gather(first);
    const GatherScope write = engine.gather(second, {.writable = true});
    follow(pairs, momentum);
  }
}

void MocoModel::check(const ModelInput& input) const {
  constexpr std::array<std::string_view, 2> kTaken = {"pixel_values", kSecond};
  check_not_taken(input, kTaken);
  const auto second = input.others.find(kSecond);
  TESSERA_CHECK(
      second != input.others.end() && input.pixel_values.defined() &&
          second->second.sizes() == input.pixel_values.sizes(),
      "pixel_values and {} are two views of the same images: both are needed, with the same shape",
      kSecond);
  if (stage().has_first()) {
    encoder_.embeddings->check(input.pixel_values, /*interpolate=*/false);
  }
}

at::Tensor MocoModel::embed(Encoder& encoder, const ModelInput& input) {
  return context_.between(encoder.embeddings->forward(
      at::cat({input.pixel_values, input.others.at(kSecond)})));
}

LayerState MocoModel::run_layers(
    const ModelInput& input,
    LayerState state,
    int begin,
    int end) {
  LayerState second;
  {
    const at::NoGradGuard no_grad;
    second.hidden = begin == 0 ? embed(momentum_, input) : state.memory;
    run_range(momentum_.layers, begin, end, {}, /*entered=*/false, second);
  }
  if (begin == 0) {
    state.hidden = embed(encoder_, input);
  }
  run_range(encoder_.layers, begin, end, {}, input.hidden_states, state);
  state.memory = second.hidden;
  return state;
}

at::Tensor MocoModel::projected(Encoder& encoder, const at::Tensor& normed) {
  return by_view(encoder.projection, normed.select(1, 0), batches_);
}

ModelOutput MocoModel::output(
    const ModelInput& input,
    const LayerState& state) {
  ModelOutput output;
  if (input.hidden_states) {
    output.hidden_states =
        hidden_states(state.entered, context_.full(state.hidden));
  }
  at::Tensor keys;
  {
    const at::NoGradGuard no_grad;
    keys = of_length_1(projected(
        momentum_, context_.full(momentum_.norm->forward(state.memory))));
  }
  output.last_hidden_state =
      context_.full(encoder_.norm->forward(state.hidden));
  const at::Tensor queries = of_length_1(by_view(
      prediction_, projected(encoder_, output.last_hidden_state), batches_));
  const auto q = queries.chunk(2);
  const auto k = keys.chunk(2);
  output.loss = contrastive_loss(q[0], k[1], moco_.temperature, batches_) +
                contrastive_loss(q[1], k[0], moco_.temperature, batches_);
  output.others = {{"queries", queries}, {"keys", keys}};
  return output;
}

} // namespace tessera::zoo
