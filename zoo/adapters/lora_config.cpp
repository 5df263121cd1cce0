// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/adapters/lora_config.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/option_check.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/io/json_file.h"
#include "tessera/runtime/io/known_keys.h"
#include "tessera/runtime/io/safetensors.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <system_error>
#include <utility>

namespace tessera::zoo {

namespace {

constexpr std::array<std::pair<const char*, LoraBias>, 3> kBiasNames{
    {{"none", LoraBias::kNone},
     {"all", LoraBias::kAll},
     {"lora_only", LoraBias::kLoraOnly}}};

/// Variants that are not implemented; null, false or empty disables them.
constexpr const char* kVariants[] = {
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "arrow_config",
    "corda_config",
    "eva_config",
    "kasa_config",
    "lora_ga_config",
    "velora_config",
    "megatron_config",
    "monteclora_config",
    "alora_invocation_tokens",
    "loftq_config"};

/// PEFT's LoraConfig.
const runtime::KnownKeys& adapter_keys() {
  static const runtime::KnownKeys keys = [] {
    runtime::KnownKeys known{
        .read =
            {"peft_type",
             "r",
             "lora_alpha",
             "lora_dropout",
             "target_modules",
             "exclude_modules",
             "modules_to_save",
             "ensure_weight_tying",
             "bias",
             "use_rslora",
             "use_dora",
             "layers_to_transform",
             "layers_pattern",
             "init_lora_weights",
             "rank_pattern",
             "alpha_pattern",
             "task_type",
             "base_model_name_or_path"},
        // fan_in_fan_out follows from the layer, as in PEFT.
        .without_effect =
            {"auto_mapping",
             "fan_in_fan_out",
             "inference_mode",
             "megatron_core",
             "peft_version",
             "qalora_group_size",
             "revision",
             "runtime_config"},
        .neutral = {}};
    known.read.insert(std::begin(kVariants), std::end(kVariants));
    return known;
  }();
  return keys;
}

constexpr const char* kConfigName = "adapter_config.json";
/// PEFT's name of the adapter that is in the folder itself.
constexpr const char* kDefaultAdapter = "default";

/// Larger than the hidden size of any model: more indicates a damaged file.
constexpr int64_t kMostRank = 65536;
/// Likewise of numbers of layers.
constexpr int64_t kMostLayer = 1'000'000;

bool is_off(const nlohmann::json& value) {
  return value.is_null() || value == false ||
         ((value.is_array() || value.is_object()) && value.empty());
}

[[noreturn]] void fail(
    const runtime::JsonValue& fields,
    const char* key,
    const char* expected) {
  TESSERA_FAIL(
      "{}: '{}' is {}, but must be {}",
      fields.place(),
      key,
      runtime::show_json(fields.value().value(key, nlohmann::json())),
      expected);
}

std::vector<std::string> read_names(
    const runtime::JsonValue& fields,
    const char* key) {
  std::vector<std::string> names;
  for (const nlohmann::json& name : fields.value().at(key)) {
    if (!name.is_string()) {
      fail(fields, key, "a list of module names");
    }
    names.push_back(name.get<std::string>());
  }
  return names;
}

ModuleNames read_modules(const runtime::JsonValue& fields, const char* key) {
  ModuleNames modules;
  const nlohmann::json value = fields.value().value(key, nlohmann::json());
  if (value.is_string()) {
    modules.pattern = value.get<std::string>();
  } else if (value.is_array()) {
    modules.names = read_names(fields, key);
  } else if (!value.is_null()) {
    fail(fields, key, "a list of module names, or a regular expression");
  }
  return modules;
}

/// A number of a layer, or a list of them.
std::vector<int64_t> read_layers(const runtime::JsonValue& fields) {
  const char* const key = "layers_to_transform";
  const nlohmann::json value = fields.value().value(key, nlohmann::json());
  if (value.is_null()) {
    return {};
  }
  const nlohmann::json listed =
      value.is_array() ? value : nlohmann::json::array({value});
  std::vector<int64_t> layers;
  for (const nlohmann::json& layer : listed) {
    if (!layer.is_number_integer() || layer < 0 || layer > kMostLayer) {
      fail(fields, key, "the number of a layer, from 0, or a list of them");
    }
    layers.push_back(layer.get<int64_t>());
  }
  return layers;
}

/// An expression, or a list of them.
std::vector<std::string> read_layers_pattern(const runtime::JsonValue& fields) {
  const ModuleNames words = read_modules(fields, "layers_pattern");
  return words.pattern.empty() ? words.names
                               : std::vector<std::string>{words.pattern};
}

template <typename Number>
std::map<std::string, Number> read_pattern(
    const runtime::JsonValue& fields,
    const char* key) {
  std::map<std::string, Number> pattern;
  const runtime::JsonValue section = fields.section(key);
  for (const auto& item : section.value().items()) {
    pattern.emplace(item.key(), section.require<Number>(item.key().c_str()));
  }
  return pattern;
}

LoraInit read_init(const runtime::JsonValue& fields) {
  const nlohmann::json value =
      fields.value().value("init_lora_weights", nlohmann::json(true));
  if (value == "gaussian") {
    return LoraInit::kGaussian;
  }
  if (value == "pissa") {
    return LoraInit::kPissa;
  }
  if (!value.is_boolean()) {
    fail(
        fields,
        "init_lora_weights",
        "true, false, \"gaussian\" or \"pissa\"; other values change the base model's "
        "weights: merge such an adapter with PEFT");
  }
  return value == true ? LoraInit::kDefault : LoraInit::kRandom;
}

nlohmann::ordered_json json_of(const ModuleNames& modules) {
  if (!modules.pattern.empty()) {
    return modules.pattern;
  }
  return modules.names.empty() ? nlohmann::ordered_json()
                               : nlohmann::ordered_json(modules.names);
}

template <typename Value>
nlohmann::ordered_json or_null(const Value& value) {
  return value.empty() ? nlohmann::ordered_json()
                       : nlohmann::ordered_json(value);
}

/// Writes 16 instead of 16.0, as PEFT's users do.
nlohmann::ordered_json number(double value) {
  if (std::nearbyint(value) == value && std::abs(value) < 1e15) {
    return static_cast<int64_t>(value);
  }
  return value;
}

/// Whether PEFT has saved a weight, with which a tensor's name ends. It saves
/// that of a module that it ties although modules_to_save does not name it: it
/// replaces that name by the embedding's.
bool has_weight(const std::filesystem::path& folder, const char* weight) {
  const auto path = folder / "adapter_model.safetensors";
  if (!std::filesystem::exists(path)) {
    return false; // an error where the weights are loaded
  }
  const auto file = runtime::SafetensorsFile::open(path);
  return std::any_of(
      file.entries().begin(), file.entries().end(), [&](const auto& entry) {
        return entry.name.ends_with(weight);
      });
}

/// Whether modules_to_save names the head of a masked language model, or the
/// part of it that has the weight of the embedding.
bool saves_decoder(const std::vector<std::string>& modules) {
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    const std::string name = module.substr(module.find_last_of('.') + 1);
    return name == "lm_head" || name == "decoder";
  });
}

} // namespace

void visit_fields(runtime::OptionFields& fields, LoraConfig& lora) {
  fields.field("r", lora.r, {.min = 1, .max = kMostRank}, "LoRA rank");
  fields.field(
      "alpha",
      lora.alpha,
      {.min = 0},
      "the adapter's output is scaled by alpha / r");
  fields.field(
      "dropout",
      lora.dropout,
      {.min = 0, .max = 1, .open_max = true},
      "dropout of the adapter's input");
  ModuleNames& targets = lora.target_modules;
  fields.one_or_array(
      runtime::required("target_modules"),
      targets.pattern,
      targets.names,
      "linear layers that get an adapter: an array of names in the checkpoint or their suffixes, a regular expression for whole names, or `\"all-linear\"`");
  if (targets.names == std::vector<std::string>{"all-linear"}) {
    targets = {.names = {}, .pattern = "all-linear"};
  }
  fields.one_or_array(
      "exclude_modules",
      lora.exclude_modules.pattern,
      lora.exclude_modules.names,
      "layers without an adapter; likewise");
  fields.field(
      "layers_to_transform",
      lora.layers_to_transform,
      {.min = 0, .max = kMostLayer},
      "numbers of the layers that get adapters, from 0; by default all do. With names in `target_modules` only");
  fields.field(
      "layers_pattern",
      lora.layers_pattern,
      "what precedes the number of a layer in names, such as `layers`, as regular expressions; by default any word after the first does");
  fields.field(
      "modules_to_save",
      lora.modules_to_save,
      "modules that are trained and saved whole (the classifier always is)");
  fields.field(
      "ensure_weight_tying",
      lora.ensure_weight_tying,
      "an embedding or head in `modules_to_save` that shares its weight with the other is trained as one with it; without, they are trained apart");
  fields.choice(
      "bias",
      lora.bias,
      {{"none", LoraBias::kNone},
       {"all", LoraBias::kAll},
       {"lora_only", LoraBias::kLoraOnly}},
      "which biases are trained: `all`, or `lora_only` for layers with adapters");
  fields.field(
      "use_rslora", lora.use_rslora, "scale by alpha / sqrt(r) instead");
  fields.field(
      "use_dora",
      lora.use_dora,
      "DoRA: also train the length of each row of an adapted weight; rows keep the direction that the weight with its adapter has");
  fields.choice(
      "init",
      lora.init,
      {{"default", LoraInit::kDefault},
       {"gaussian", LoraInit::kGaussian},
       {"random", LoraInit::kRandom},
       {"pissa", LoraInit::kPissa}},
      "new adapters leave the outputs unchanged (`default`, `gaussian`), are `random`, or take the largest singular values from the weight (`pissa`, which decomposes the weights whenever they are loaded)");
  fields.field(
      "rank_pattern",
      lora.rank_pattern,
      {.min = 1, .max = kMostRank},
      "ranks of particular layers, e.g. `{\"attention.*\\\\.query\": 16}`: regular expressions for the end of a layer's name, of which the first in alphabetical order applies");
  fields.field(
      "alpha_pattern",
      lora.alpha_pattern,
      {.min = 0},
      "alphas of particular layers; likewise");
  fields.field(
      "task_type",
      lora.task_type,
      "PEFT's task: `SEQ_CLS`, `TOKEN_CLS` and `QUESTION_ANS` add heads to `modules_to_save`; by default that of the architecture");
  fields.field(
      "base_model",
      lora.base_model,
      "where PEFT finds the base model; by default `model.folder`");
}

void check(const LoraConfig& config) {
  runtime::check_fields("model.lora", config);
  TESSERA_CHECK(
      !config.target_modules.empty(),
      "model.lora.target_modules is empty; name linear layers as the checkpoint does, e.g. [\"query\", \"value\"], or \"all-linear\"");
  TESSERA_CHECK(
      config.layers_to_transform.empty() ||
          config.target_modules.pattern.empty(),
      "model.lora.layers_to_transform is set, and model.lora.target_modules is '{}', which decides alone, as in PEFT; list names in target_modules, or let the expression name the layers",
      config.target_modules.pattern);
  TESSERA_CHECK(
      config.layers_pattern.empty() || !config.layers_to_transform.empty(),
      "model.lora.layers_pattern is set, but model.lora.layers_to_transform is empty, so that all layers get adapters; set both, or leave it out");
  TESSERA_CHECK(
      !config.use_dora || config.init != LoraInit::kRandom,
      "model.lora.use_dora and model.lora.init=random: rows start with the lengths that the weights have without an adapter, so that a random one would be scaled; use the init \"default\" or \"gaussian\"");
  TESSERA_CHECK(
      !config.use_dora || config.init != LoraInit::kPissa,
      "model.lora.use_dora and model.lora.init=pissa are not implemented together; leave out one of them");
}

nlohmann::ordered_json to_json(const LoraConfig& config, bool transposed) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::object();
  for (const auto& [name, r] : config.rank_pattern) {
    ranks[name] = r;
  }
  nlohmann::ordered_json alphas = nlohmann::ordered_json::object();
  for (const auto& [name, alpha] : config.alpha_pattern) {
    alphas[name] = number(alpha);
  }
  const char* bias = nullptr;
  for (const auto& [name, value] : kBiasNames) {
    bias = value == config.bias ? name : bias;
  }
  const nlohmann::ordered_json init =
      config.init == LoraInit::kGaussian ? nlohmann::ordered_json("gaussian")
      : config.init == LoraInit::kPissa
          ? nlohmann::ordered_json("pissa")
          : nlohmann::ordered_json(config.init == LoraInit::kDefault);
  return {
      {"alpha_pattern", alphas},
      {"base_model_name_or_path", or_null(config.base_model)},
      {"bias", bias},
      {"exclude_modules", json_of(config.exclude_modules)},
      {"ensure_weight_tying", config.ensure_weight_tying},
      {"fan_in_fan_out", transposed},
      {"inference_mode", true},
      {"init_lora_weights", init},
      {"layers_pattern", or_null(config.layers_pattern)},
      {"layers_to_transform", or_null(config.layers_to_transform)},
      {"lora_alpha", number(config.alpha)},
      {"lora_dropout", config.dropout},
      {"modules_to_save", or_null(config.modules_to_save)},
      {"peft_type", "LORA"},
      {"r", config.r},
      {"rank_pattern", ranks},
      {"target_modules", json_of(config.target_modules)},
      {"task_type", or_null(config.task_type.value_or(""))},
      {"use_dora", config.use_dora},
      {"use_rslora", config.use_rslora}};
}

bool lora_ties(const std::vector<std::string>& modules) {
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    const std::string name = module.substr(module.find_last_of('.') + 1);
    return name == "embed_tokens" || name == "lm_head";
  });
}

std::vector<std::string> adapters_in(const std::filesystem::path& folder) {
  const auto is_adapter = [](const std::filesystem::path& path) {
    return std::filesystem::exists(path / kConfigName);
  };
  std::vector<std::string> names;
  std::error_code none; // no such folder: no adapters
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (is_adapter(entry.path())) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  if (is_adapter(folder)) {
    names.insert(names.begin(), kDefaultAdapter);
  }
  return names;
}

std::filesystem::path adapter_folder(
    const std::filesystem::path& folder,
    const std::string& name) {
  const std::vector<std::string> names = adapters_in(folder);
  TESSERA_CHECK(
      std::find(names.begin(), names.end(), name) != names.end(),
      "'{}' has no adapter '{}'; {}",
      folder.string(),
      name,
      names.empty() ? "it has none at all"
                    : "it has " + runtime::join_names(names));
  return name == kDefaultAdapter ? folder : folder / name;
}

LoraConfig read_lora_config(const std::filesystem::path& folder) {
  const auto path = folder / kConfigName;
  if (!std::filesystem::exists(path)) {
    const std::vector<std::string> names = adapters_in(folder);
    TESSERA_FAIL(
        "{} does not exist; {}",
        path,
        names.empty()
            ? "give the folder of an adapter that PEFT or Tessera saved"
            : formatted(
                  "the folder has the adapters {}: give one of them, such as {}",
                  runtime::join_names(names),
                  folder / names.front()));
  }
  const auto fields = runtime::read_json_object(path);
  const auto type = fields.get_or<std::string>("peft_type", "");
  TESSERA_CHECK(
      type == "LORA",
      "{}: 'peft_type' is '{}'; only \"LORA\" is implemented",
      fields.place(),
      type);
  for (const char* key : kVariants) {
    TESSERA_CHECK(
        !fields.contains(key) || is_off(fields.value().at(key)),
        "{}: '{}' is {}, which is not implemented; merge this adapter with PEFT",
        fields.place(),
        key,
        runtime::show_json(fields.value().value(key, nlohmann::json())));
  }
  runtime::log_ignored_keys(fields, adapter_keys());
  LoraConfig config;
  config.r = fields.get_or<int64_t>("r", 8);
  if (config.r < 1 || config.r > kMostRank) {
    fail(fields, "r", "between 1 and 65536");
  }
  config.alpha = fields.get_or<double>("lora_alpha", 8);
  config.dropout = fields.get_or<double>("lora_dropout", 0);
  if (!(config.dropout >= 0 && config.dropout < 1)) {
    fail(fields, "lora_dropout", "at least 0 and less than 1");
  }
  config.target_modules = read_modules(fields, "target_modules");
  config.exclude_modules = read_modules(fields, "exclude_modules");
  config.modules_to_save = read_modules(fields, "modules_to_save").names;
  const bool ensures = fields.get_or<bool>("ensure_weight_tying", false);
  TESSERA_CHECK(
      !ensures || saves_decoder(config.modules_to_save) ||
          !has_weight(folder, ".lm_head.decoder.weight"),
      "{}: 'ensure_weight_tying' has tied lm_head.decoder to the embedding, which is implemented for heads that are called lm_head themselves; merge this adapter with PEFT (merge_and_unload)",
      fields.place());
  config.ensure_weight_tying =
      ensures && (lora_ties(config.modules_to_save) ||
                  has_weight(folder, ".lm_head.weight"));
  const auto bias = fields.get_or<std::string>("bias", "none");
  bool is_known = false;
  for (const auto& [name, value] : kBiasNames) {
    if (bias == name) {
      config.bias = value;
      is_known = true;
    }
  }
  if (!is_known) {
    fail(fields, "bias", "\"none\", \"all\" or \"lora_only\"");
  }
  config.use_rslora = fields.get_or<bool>("use_rslora", false);
  config.use_dora = fields.get_or<bool>("use_dora", false);
  config.init = read_init(fields);
  config.layers_to_transform = read_layers(fields);
  config.layers_pattern = read_layers_pattern(fields);
  config.rank_pattern = read_pattern<int64_t>(fields, "rank_pattern");
  for (const auto& [name, r] : config.rank_pattern) {
    if (r < 1 || r > kMostRank) {
      fail(fields, "rank_pattern", "an object with ranks between 1 and 65536");
    }
  }
  config.alpha_pattern = read_pattern<double>(fields, "alpha_pattern");
  config.task_type = fields.get_or<std::string>("task_type", "");
  config.base_model = fields.get_or<std::string>("base_model_name_or_path", "");
  if (config.target_modules.empty()) {
    fail(fields, "target_modules", "the names of linear layers");
  }
  return config;
}

} // namespace tessera::zoo
