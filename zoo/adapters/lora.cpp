// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/adapters/lora.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/kernels/counter_random.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/adapters/lora_layer.h"
#include "tessera/zoo/adapters/lora_record.h"

#include <torch/types.h>

#include <memory>
#include <set>
#include <utility>

namespace tessera::zoo {

namespace {

/// A layer of the checkpoint and the layers here that make it up.
struct Site {
  std::string theirs;
  std::vector<std::string> ours;
  std::vector<LinearLayer*> layers;
};

std::map<std::string, LinearLayer*> linear_layers(Model& model) {
  std::map<std::string, LinearLayer*> layers;
  for (const auto& item : model.named_modules()) {
    if (auto* layer = dynamic_cast<LinearLayer*>(item.value().get())) {
      layers.emplace(item.key(), layer);
    }
  }
  return layers;
}

std::string architecture_of(const Model& model) {
  return model.config().at("architectures").at(0).get<std::string>();
}

bool is_router(const std::string& path) {
  return path.ends_with(".router");
}

void check_adaptable(const Model& model) {
  TESSERA_CHECK(
      model.named_children().find(LoraRecord::kName) == nullptr,
      "apply_lora: the model already has adapters; merge them first with merge_lora()");
  for (const auto& item : model.named_parameters()) {
    TESSERA_CHECK(
        !sharding::has_page_key(item.value()),
        "apply_lora: '{}' is already sharded; add adapters before wrap()",
        item.key());
  }
}

std::vector<Site> sites_of(Model& model, const LoraTargets& targets) {
  const auto layers = linear_layers(model);
  const WeightNames names(model, model.names());
  std::vector<Site> sites;
  std::set<std::string> ends; // of names, for a message
  for (const NamedWeight& weight : names.weights()) {
    if (!weight.name.ends_with(".weight")) {
      continue;
    }
    Site site{module_of(weight.name), {}, {}};
    bool is_linear = true;
    for (const std::string& parameter : weight.ours) {
      const std::string path = module_of(parameter);
      const auto found = layers.find(path);
      is_linear = is_linear && found != layers.end() &&
                  !(targets.is_all_linear() && is_router(path));
      if (is_linear) {
        site.ours.push_back(path);
        site.layers.push_back(found->second);
      }
    }
    if (is_linear) {
      const std::string& name = site.theirs;
      ends.insert(name.substr(name.find_last_of('.') + 1));
    }
    if (!targets.has(site.theirs)) {
      continue;
    }
    TESSERA_CHECK(
        is_linear || targets.is_all_linear(),
        "apply_lora: the target '{}' is not a linear layer; adapters for embeddings, norms and lists of experts are not implemented. Remove it from target_modules, or train all of it with modules_to_save",
        site.theirs);
    if (is_linear) {
      sites.push_back(std::move(site));
    }
  }
  const ModuleNames& asked = targets.config().target_modules;
  const std::vector<std::string> candidates(ends.begin(), ends.end());
  const std::string first =
      asked.pattern.empty() ? asked.names.front() : asked.pattern;
  TESSERA_CHECK(
      !sites.empty() || model.names().is_part,
      "apply_lora: target_modules ('{}', ...) matches no linear layer of the model; use the names in the checkpoint{}",
      first,
      runtime::nearest_names_hint(first, candidates));
  return sites;
}

void add_adapters(const Site& site, const LoraTargets& targets, uint64_t seed) {
  LoraLayerOptions options;
  options.r = targets.rank_of(site.theirs);
  options.scaling = targets.scaling_of(site.theirs);
  options.dropout = targets.config().dropout;
  options.init = targets.config().init;
  const LoraLayer* first = nullptr;
  for (size_t i = 0; i < site.layers.size(); ++i) {
    LinearLayer& layer = *site.layers[i];
    const auto added = LoraLayer::add(layer, options, first);
    first = i == 0 ? added.get() : first;
    // Parameter names are the same in all adapters, so the layer's name varies
    // the seed.
    init_parameters(*added, seed ^ stream_of(site.ours[i]));
    if (!sharding::is_deferred(layer.weight)) {
      materialize(*added);
    }
  }
}

ParameterSizes sizes_of(const Model& model) {
  ParameterSizes sizes;
  for (const auto& item : model.named_parameters()) {
    sizes.emplace(item.key(), item.value().sizes().vec());
  }
  return sizes;
}

} // namespace

std::vector<std::string> apply_lora(
    Model& model,
    const LoraConfig& config,
    uint64_t seed) {
  check_adaptable(model);
  const LoraTargets targets(config, architecture_of(model));
  TESSERA_CHECK(
      targets.named_output().empty(),
      "apply_lora: target_modules contains '{}', the head of a language model: the model uses its weight directly, so an adapter would have no effect. Remove it from target_modules, or train all of it with modules_to_save",
      targets.named_output());
  const std::vector<Site> sites = sites_of(model, targets);
  const auto record = std::make_shared<LoraRecord>(targets);
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) {
      record->were_trainable.insert(item.key());
    }
  }
  std::vector<std::string> names;
  for (const Site& site : sites) {
    add_adapters(site, targets, seed);
    names.push_back(site.theirs);
  }
  model.register_module(LoraRecord::kName, record);
  const WeightNames trained = lora_names(model);
  for (auto& item : model.named_parameters()) {
    item.value().set_requires_grad(trained.has(item.key()));
  }
  return names;
}

const LoraConfig& lora_config(const Model& model) {
  return LoraRecord::of(model).targets.config();
}

WeightNames lora_names(const Model& model) {
  return {
      model, lora_table(model, LoraRecord::of(model).targets, sizes_of(model))};
}

bool has_lora(const Model& model) {
  return model.named_children().contains(LoraRecord::kName);
}

AdaptersOff::AdaptersOff(const Model& model) {
  const LoraConfig& config = lora_config(model);
  TESSERA_CHECK(
      config.bias == LoraBias::kNone && config.modules_to_save.empty(),
      "the adapter also trains {} of the base model, which cannot be switched off; set model.lora.bias=none and no model.lora.modules_to_save",
      config.modules_to_save.empty() ? "biases" : "whole modules");
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* adapter = dynamic_cast<LoraLayer*>(module.get())) {
      adapters_.push_back(adapter);
      adapter->set_active(false);
    }
  }
}

AdaptersOff::~AdaptersOff() {
  for (LoraLayer* adapter : adapters_) {
    adapter->set_active(true);
  }
}

void merge_lora(Model& model) {
  LoraRecord::of(model); // throws if there are none
  for (const auto& item : model.named_parameters()) {
    TESSERA_CHECK(
        !sharding::has_page_key(item.value()) &&
            !sharding::is_deferred(item.value()),
        "merge_lora: '{}' is {}",
        item.key(),
        sharding::has_page_key(item.value())
            ? "sharded; write the merged model with save_merged(), or "
              "call Engine::unwrap() first"
            : "not allocated yet; call materialize(model) first");
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [path, layer] : linear_layers(model)) {
    if (const LoraLayer* adapter = LoraLayer::of(*layer)) {
      at::Tensor weight = layer->weight;
      weight.copy_(weight.to(at::kFloat) + adapter->product());
    }
  }
  remove_lora(model);
}

void remove_lora(Model& model) {
  const LoraRecord& record = LoraRecord::of(model);
  for (const auto& [path, layer] : linear_layers(model)) {
    if (LoraLayer::of(*layer) != nullptr) {
      LoraLayer::remove(*layer);
    }
  }
  for (auto& item : model.named_parameters()) {
    item.value().set_requires_grad(record.were_trainable.contains(item.key()));
  }
  model.unregister_module(LoraRecord::kName);
}

} // namespace tessera::zoo
