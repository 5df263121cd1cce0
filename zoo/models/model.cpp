// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/random/random_key.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/layers/window_layer.h"

#include <set>
#include <utility>

namespace tessera::zoo {

namespace {

/// Calls `visit` if the module is a layer.
template <typename Visit>
void visit_layer(torch::nn::Module& module, const Visit& visit) {
  if (auto* block =
          dynamic_cast<TransformerLayers::Impl::Block::Impl*>(&module)) {
    visit(*block);
  } else if (
      auto* window = dynamic_cast<WindowLayers::Impl::Block::Impl*>(&module)) {
    visit(*window);
  }
}

} // namespace

std::vector<at::Tensor> LayerState::tensors() const {
  std::vector<at::Tensor> all{hidden, bias, memory, routed};
  all.insert(all.end(), entered.begin(), entered.end());
  return all;
}

LayerState LayerState::from_tensors(const std::vector<at::Tensor>& tensors) {
  LayerState state;
  size_t at = 0;
  for (at::Tensor* one :
       {&state.hidden, &state.bias, &state.memory, &state.routed}) {
    *one = tensors.at(at++);
  }
  state.entered.assign(
      tensors.begin() + static_cast<std::ptrdiff_t>(at), tensors.end());
  return state;
}

Model::Model(
    nlohmann::json config,
    NameTable names,
    const pipeline::StageLayers& stage,
    std::vector<std::string> may_be_missing)
    : stage_(stage),
      config_(std::move(config)),
      names_(std::move(names)),
      may_be_missing_(std::move(may_be_missing)) {
  names_.is_part = names_.is_part || !stage_.is_complete();
}

std::unique_ptr<Head> Model::head() {
  return std::make_unique<Head>();
}

std::optional<TiedHead> Model::tied_head() const {
  if (!has_tied_head()) {
    return std::nullopt;
  }
  const auto is_head = [](const NameRule& rule) {
    return rule.native.front() == "head" ||
           rule.native.front() == "head.decoder";
  };
  std::string embedding;
  std::set<std::string> heads;
  for (const auto* rules : {&names_.base, &names_.head}) {
    for (const NameRule& rule : *rules) {
      if (rule.native.front() == "embeddings.tokens") {
        embedding = rule.foreign;
      } else if (is_head(rule)) {
        heads.insert(rule.foreign);
      }
    }
  }
  TiedHead tied{"", names_.prefix + embedding, {}};
  for (const auto& [other, name] : names_.tied) {
    if (name != embedding + ".weight") {
      continue; // a bias that is saved twice
    }
    const std::string module = other.substr(0, other.find_last_of('.'));
    if (heads.contains(module)) {
      tied.head = module;
    } else {
      tied.others.push_back(module);
    }
  }
  return tied.head.empty() ? std::nullopt : std::optional(std::move(tied));
}

std::string Model::architecture() const {
  return config_.at("architectures").at(0).get<std::string>();
}

ModelOutput Model::forward(const ModelInput& input) {
  TESSERA_CHECK(
      stage_.is_complete(),
      "Model::forward: this is a pipeline stage with {} of {} layers; run it with pipeline_forward().",
      stage_.local().size(),
      stage_.count());
  LayerState state;
  for (int chunk = 0; chunk < stage_.chunks(); ++chunk) {
    state = forward_chunk(chunk, input, std::move(state));
  }
  return finish(input, state);
}

void Model::recompute(const Recomputation& recomputation) {
  const std::vector<int> numbers = stage_.local();
  size_t next = 0;
  for (const auto& module : modules()) {
    visit_layer(*module, [&](auto& layer) {
      // Modules come in order of registration, which is the order of the model.
      // A second encoder's layers come last and have no backward.
      if (next < numbers.size()) {
        layer.use_checkpoint = numbers[next++] < recomputation.layers;
        layer.recompute_attention(
            recomputation.attention && !layer.use_checkpoint);
        layer.divide_inputs_over =
            recomputation.divide_inputs ? layer.same_hidden() : nullptr;
      }
    });
  }
}

std::vector<std::string> Model::layer_names() const {
  std::vector<std::string> names;
  for (const auto& item : named_modules()) {
    visit_layer(*item.value(), [&](const auto& /*layer*/) {
      if (names.size() < stage_.local().size()) { // as in recompute()
        names.push_back(item.key());
      }
    });
  }
  return names;
}

void Model::drop_layers(const LayerDropOptions& options) {
  const std::string reason = cannot_drop_layers();
  TESSERA_CHECK(
      reason.empty(),
      "model.layer_drop: {} cannot leave out layers: {}",
      architecture(),
      reason);
  layer_drop_ = options;
}

void Model::drop_tokens(const TokenDropOptions& options) {
  const std::string reason = cannot_drop_tokens();
  TESSERA_CHECK(
      reason.empty(),
      "model.token_drop: layers of {} cannot leave out tokens: {}",
      architecture(),
      reason);
  token_drop_ = options;
}

StepDrops Model::step_drops() const {
  if (!is_training() || (!layer_drop_ && !token_drop_)) {
    return {};
  }
  const auto key = current_random_key();
  TESSERA_CHECK(
      key.has_value(),
      "Model::forward: what a step leaves out depends on its number; run the forward in a RandomKeyScope, or call eval()");
  return {layer_drop_, token_drop_, *key, stage_.count()};
}

LayerState Model::forward_chunk(
    int chunk,
    const ModelInput& input,
    LayerState before) {
  TESSERA_CHECK(
      input.cache == nullptr || (takes_cache() && !is_training()),
      "ModelInput::cache: {}",
      takes_cache()
          ? "the model is training; call eval()"
          : "this model cannot continue sequences in this parallel layout");
  check(input);
  return run_layers(
      input, std::move(before), stage_.begin(chunk), stage_.end(chunk));
}

ModelOutput Model::finish(const ModelInput& input, const LayerState& state) {
  TESSERA_CHECK(
      stage_.has_last(),
      "Model::finish: the model's last layer is on another pipeline stage.");
  // Random numbers do not depend on the pipeline stage: the end of the model is
  // numbered after its layers.
  const at::Tensor& last = state.hidden.defined() ? state.hidden : state.memory;
  const RandomLayerScope random(stage_.count(), last.device());
  return output(input, state);
}

} // namespace tessera::zoo
