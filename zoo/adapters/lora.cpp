// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/adapters/lora.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/random/counter_random.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/adapters/lora_layer.h"
#include "tessera/zoo/adapters/lora_record.h"
#include "tessera/zoo/adapters/principal_part.h"

#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace tessera::zoo {

namespace {

/// A layer of the checkpoint and the layers here that make it up.
struct Site {
  std::string foreign;
  std::vector<std::string> native;
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

/// Warns about target_modules that name no module of the model, beside others
/// that do; once in a process.
/// @param modules of the whole model.
void warn_about_targets(
    const std::vector<std::string>& asked,
    const std::set<std::string>& modules,
    const std::vector<std::string>& candidates) {
  for (const std::string& name : asked) {
    const bool is_there =
        std::any_of(modules.begin(), modules.end(), [&](const auto& module) {
          return module == name || module.ends_with("." + name);
        });
    if (is_there || !is_log_rank_zero()) {
      continue;
    }
    const std::string text = formatted(
        "target_modules has '{}', which is no module of the model, so that it gets no adapter{}",
        name,
        runtime::nearest_names_hint(name, candidates));
    // A search of plans makes a model many times.
    static std::mutex mutex;
    static std::set<std::string> logged;
    const std::lock_guard lock(mutex);
    if (logged.insert(text).second) {
      log_warning("{}", text);
    }
  }
}

std::vector<Site> sites_of(Model& model, const LoraTargets& targets) {
  const auto layers = linear_layers(model);
  const WeightNames names(model, model.names());
  std::vector<Site> sites;
  std::set<std::string> ends; // of names, for a message
  std::set<std::string> modules;
  for (const NamedWeight& weight : names.weights()) {
    if (!weight.name.ends_with(".weight")) {
      continue;
    }
    Site site{module_of(weight.name), {}, {}};
    modules.insert(site.foreign);
    bool is_linear = true;
    for (const std::string& parameter : weight.native) {
      const std::string path = module_of(parameter);
      const auto found = layers.find(path);
      is_linear = is_linear && found != layers.end() &&
                  !(targets.is_all_linear() && is_router(path));
      if (is_linear) {
        site.native.push_back(path);
        site.layers.push_back(found->second);
      }
    }
    if (is_linear) {
      const std::string& name = site.foreign;
      ends.insert(name.substr(name.find_last_of('.') + 1));
    }
    if (!targets.has(site.foreign)) {
      continue;
    }
    TESSERA_CHECK(
        is_linear || targets.is_all_linear(),
        "apply_lora: target_modules names '{}', which is not a linear layer; adapters of embeddings, norms and lists of experts are not implemented. Remove it from target_modules, or train all of it with modules_to_save",
        site.foreign);
    if (is_linear) {
      sites.push_back(std::move(site));
    }
  }
  const ModuleNames& asked = targets.config().target_modules;
  const std::vector<std::string> candidates(ends.begin(), ends.end());
  const auto& asked_layers = targets.config().layers_to_transform;
  const std::string first =
      asked.pattern.empty() ? asked.names.front() : asked.pattern;
  TESSERA_CHECK(
      !sites.empty() || model.names().is_part,
      "apply_lora: target_modules ('{}', ...) matches no linear layer of the model{}; use the names in the checkpoint{}",
      first,
      asked_layers.empty() ? "" : " in layers_to_transform",
      runtime::nearest_names_hint(first, candidates));
  if (!model.names().is_part) { // else they may be on other ranks
    warn_about_targets(asked.names, modules, candidates);
  }
  return sites;
}

/// Whether the weight that a head and an embedding share is saved under any of
/// its names.
bool saves_any(const LoraTargets& targets, const TiedHead& tied) {
  return targets.is_saved(tied.head) || targets.is_saved(tied.embedding) ||
         std::any_of(
             tied.others.begin(), tied.others.end(), [&](const auto& module) {
               return targets.is_saved(module);
             });
}

/// @throws tessera::Error for embeddings of which only `head` can be saved.
void check_embeddings(const LoraTargets& targets, const TiedHead& tied) {
  if (tied.others.empty()) {
    return;
  }
  std::vector<std::string> all{tied.embedding};
  all.insert(all.end(), tied.others.begin(), tied.others.end());
  const bool is_tied = targets.config().ensure_weight_tying;
  for (const std::string& module : all) {
    TESSERA_CHECK(
        !is_tied && !targets.is_saved(module),
        "model.lora.{}: {} and '{}' have one weight, which PEFT can train neither as one nor in part, but for the head; leave {}, or train all weights without model.lora; merge an adapter that was trained so with PEFT",
        is_tied ? "ensure_weight_tying" : "modules_to_save",
        runtime::join_names(all),
        tied.head,
        is_tied ? "it out" : "'" + module + "' out");
  }
}

/// The configuration for a model whose head may share the embedding's weight,
/// with the names by which PEFT ties them.
LoraConfig with_tied_weights(const Model& model, const LoraConfig& config) {
  const auto tied = model.tied_head();
  if (!tied) {
    return config;
  }
  TESSERA_CHECK(
      !unties_of(config)(*tied),
      "apply_lora: modules_to_save names '{}' or '{}', which have one weight, and PEFT trains them apart: load the model with FromPretrainedOptions::unties, or set ensure_weight_tying",
      tied->embedding,
      tied->head);
  const LoraTargets targets(config, architecture_of(model));
  if (!saves_any(targets, *tied)) { // they stay one, frozen
    return config;
  }
  check_embeddings(targets, *tied);
  TESSERA_CHECK(
      lora_ties({tied->head}),
      "model.lora.ensure_weight_tying: '{}' and '{}' cannot be trained as one: PEFT knows tied weights by the names embed_tokens and lm_head, of an embedding and a head themselves; leave it out, and they are trained apart",
      tied->head,
      tied->embedding);
  LoraConfig result = config;
  if (!targets.is_saved(tied->embedding)) {
    result.modules_to_save.push_back(tied->embedding);
  }
  if (!lora_ties(result.modules_to_save)) {
    result.modules_to_save.push_back(tied->head);
  }
  return result;
}

void add_adapters(const Site& site, const LoraTargets& targets, uint64_t seed) {
  LoraLayerOptions options;
  options.r = targets.rank_of(site.foreign);
  options.scaling = targets.scaling_of(site.foreign);
  options.dropout = targets.config().dropout;
  options.init = targets.config().init;
  options.use_dora = targets.config().use_dora;
  PrincipalPart principal;
  if (options.init == LoraInit::kPissa) {
    principal = principal_part(site.layers, options.r, options.scaling);
    options.initial_a = principal.a;
  }
  const LoraLayer* first = nullptr;
  int64_t row = 0;
  for (size_t i = 0; i < site.layers.size(); ++i) {
    LinearLayer& layer = *site.layers[i];
    if (principal.b.defined()) {
      options.initial_b = principal.b.narrow(0, row, layer.sizes.out);
      row += layer.sizes.out;
    }
    const auto added = LoraLayer::add(layer, options, first);
    first = i == 0 ? added.get() : first;
    // Parameter names are the same in all adapters, so the layer's name varies
    // the seed.
    init_parameters(*added, seed ^ stream_of(site.native[i]));
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

std::function<bool(const TiedHead&)> unties_of(const LoraConfig& config) {
  return [config](const TiedHead& tied) {
    const LoraTargets targets(config, "");
    if (config.ensure_weight_tying || !saves_any(targets, tied)) {
      return false;
    }
    check_embeddings(targets, tied);
    return true;
  };
}

LoraConfig with_new_modules(const Model& model, LoraConfig config) {
  std::set<std::string> all_new; // paths of modules whose weights all are new
  for (const std::string& weight : model.newly_initialized()) {
    const std::string module = module_of(weight);
    TESSERA_CHECK(
        !module.empty(),
        "apply_lora: '{}' is newly initialized, and an adapter cannot have it, as it is in no module; train all weights without model.lora, or start from a folder that has it",
        weight);
    for (std::string path = module; !path.empty(); path = module_of(path)) {
      all_new.insert(path);
    }
  }
  if (all_new.empty()) {
    return config;
  }
  const std::set<std::string> weights(
      model.newly_initialized().begin(), model.newly_initialized().end());
  const WeightNames names(model, model.names());
  for (const NamedWeight& weight : names.weights()) {
    if (!weights.contains(weight.name)) {
      for (std::string path = module_of(weight.name); !path.empty();
           path = module_of(path)) {
        all_new.erase(path);
      }
    }
  }
  const LoraTargets targets(config, architecture_of(model));
  for (const std::string& path : all_new) {
    if (!all_new.contains(module_of(path)) && !targets.is_saved(path)) {
      config.modules_to_save.push_back(path);
    }
  }
  return config;
}

std::vector<std::string> apply_lora(
    Model& model,
    const LoraConfig& config,
    uint64_t seed) {
  return apply_lora_as_given(model, with_new_modules(model, config), seed);
}

std::vector<std::string> apply_lora_as_given(
    Model& model,
    const LoraConfig& config,
    uint64_t seed) {
  check_adaptable(model);
  const LoraTargets targets(
      with_tied_weights(model, config), architecture_of(model));
  TESSERA_CHECK(
      targets.named_output().empty(),
      "apply_lora: target_modules contains '{}', the head of a language model: the model uses its weight directly, so an adapter would have no effect. Remove it from target_modules, or train all of it with modules_to_save",
      targets.named_output());
  const std::vector<Site> sites = sites_of(model, targets);
  if (config.init == LoraInit::kPissa) {
    for (const Site& site : sites) {
      check_principal_part(site.layers, targets.rank_of(site.foreign));
    }
  }
  const auto record = std::make_shared<LoraRecord>(targets);
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) {
      record->were_trainable.insert(item.key());
    }
  }
  std::vector<std::string> names;
  for (const Site& site : sites) {
    add_adapters(site, targets, seed);
    names.push_back(site.foreign);
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
  TESSERA_CHECK(
      config.init != LoraInit::kPissa,
      "the adapter's init is \"pissa\", which has taken a part of the weights, so that the model without the adapter is not what it was; set model.lora.init=default");
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

namespace {

/// @param restores whether weights get back what PiSSA took from them.
void remove_adapters(Model& model, bool restores) {
  const LoraRecord& record = LoraRecord::of(model);
  for (const auto& [path, layer] : linear_layers(model)) {
    if (LoraLayer::of(*layer) != nullptr) {
      LoraLayer::remove(*layer, restores);
    }
  }
  for (auto& item : model.named_parameters()) {
    item.value().set_requires_grad(record.were_trainable.contains(item.key()));
  }
  model.unregister_module(LoraRecord::kName);
}

} // namespace

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
      weight.copy_(adapter->merged());
    }
  }
  remove_adapters(model, /*restores=*/false);
}

void remove_lora(Model& model) {
  remove_adapters(model, /*restores=*/true);
}

} // namespace tessera::zoo
