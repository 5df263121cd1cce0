// SPDX-License-Identifier: Apache-2.0
// Loading and saving LoRA adapters.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/atomic_folder.h"
#include "tessera/sharding/weights/load_weights.h"
#include "tessera/sharding/weights/weight_files.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/adapters/lora_record.h"
#include "tessera/zoo/layers/linear.h"

#include <ATen/ops/matmul.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";

/// Whether the layers with adapters are [in, out] in checkpoints (Conv1D).
bool is_transposed(const Model& model, const WeightNames& names) {
  const WeightNames base(model, model.names());
  return std::any_of(
      base.weights().begin(), base.weights().end(), [&](const auto& weight) {
        return weight.transposed &&
               names.has(module_of(weight.native.front()) + ".adapter.lora_B");
      });
}

/// A folder of PEFT's, to be written.
class AdapterFolder : public WeightFolder {
 public:
  AdapterFolder(const Model& model, fs::path path)
      : WeightFolder([&model](const ParameterSizes& sizes) {
          return WeightNames(
              sizes, lora_table(model, LoraRecord::of(model).targets, sizes));
        }),
        path_(std::move(path)),
        config_(to_json(
            lora_config(model),
            is_transposed(model, lora_names(model)))) {}

 private:
  fs::path create(const ParameterTypes& /*dtypes*/) override {
    folder_.emplace(path_, [](const std::string& name) {
      return name == kConfigFile || name == kWeightsFile;
    });
    const fs::path temporary = folder_->temporary();
    runtime::write_file_atomically(
        temporary / kConfigFile, config_.dump(2) + "\n");
    return temporary / kWeightsFile;
  }

  void publish() override {
    folder_->commit();
  }

  fs::path path_;
  nlohmann::ordered_json config_;
  std::optional<runtime::AtomicFolder> folder_;
};

/// PEFT duplicates some biases of modules that are saved whole.
bool is_duplicate(std::string_view name) {
  return name.find(".original_module.") != std::string_view::npos ||
         name.find(".modules_to_save.") != std::string_view::npos;
}

LoadWeightsOptions options_for(const Model& model, const WeightNames& names) {
  LoadWeightsOptions options;
  options.map = [map = names.map()](std::string_view name) {
    auto found = map(name);
    return !found && is_duplicate(name)
               ? std::optional(std::vector<MappedWeight>())
               : found;
  };
  options.may_be_missing = {""}; // the base model; see check_complete()
  // layers of other pipeline stages
  options.allows_unexpected = model.names().is_part;
  return options;
}

void check_complete(
    const sharding::WeightFiles& files,
    const WeightNames& names,
    const LoadWeightsReport& report) {
  for (const std::string& missing : report.missing) {
    TESSERA_CHECK(
        !names.has(missing),
        "{} lacks '{}', which adapter_config.json requires; fetch the folder again",
        files.path(),
        names.of(missing, nullptr).name);
  }
}

sharding::WeightFiles weights_in(const fs::path& folder) {
  const fs::path file = folder / kWeightsFile;
  TESSERA_CHECK(
      fs::exists(file),
      "{} does not exist; give the folder of an adapter in safetensors format",
      file);
  return sharding::WeightFiles::open(file);
}

/// Reports a rank that differs from the weights, naming the field.
void check_ranks(
    const fs::path& folder,
    const sharding::WeightFiles& files,
    const LoraTargets& targets) {
  const std::string_view prefix = "base_model.model.";
  const std::string_view end = ".lora_A.weight";
  for (const auto& [name, entry] : files.entries()) {
    if (!name.starts_with(prefix) || !name.ends_with(end) ||
        entry.shape.size() != 2) {
      continue;
    }
    const std::string module =
        name.substr(prefix.size(), name.size() - prefix.size() - end.size());
    const int64_t rank = targets.rank_of(module);
    TESSERA_CHECK(
        entry.shape[0] == rank,
        "{}: 'r' or 'rank_pattern' gives {} the rank {}, but in {} it is {}; fetch the folder again",
        (folder / kConfigFile).string(),
        module,
        rank,
        files.path(),
        entry.shape[0]);
  }
}

/// Adds the adapter's configuration to an error.
[[noreturn]] void fail_for(
    const fs::path& folder,
    const LoraConfig& config,
    const Error& error) {
  const nlohmann::ordered_json asked = to_json(config, false);
  std::string text;
  for (const char* const key :
       {"r",
        "lora_alpha",
        "lora_dropout",
        "target_modules",
        "exclude_modules",
        "modules_to_save",
        "bias"}) {
    text += std::string(text.empty() ? "'" : ", '") + key + "' " +
            runtime::show_json(nlohmann::json(asked.at(key)));
  }
  TESSERA_FAIL(
      "{}\nThe adapter is configured by {}: {}",
      error.what(),
      folder / kConfigFile,
      text);
}

/// Applies the configuration; errors name its file.
void apply_from(
    const fs::path& folder,
    const sharding::WeightFiles& weights,
    const LoraConfig& config,
    Model& model) {
  try {
    const auto& classes = model.config().at("architectures");
    check_ranks(
        folder, weights, LoraTargets(config, classes.at(0).get<std::string>()));
    apply_lora_as_given(model, config);
  } catch (const Error& error) {
    fail_for(folder, config, error);
  }
}

/// Adds the adapters' products to base weights.
class Merger {
 public:
  /// @param names of the adapter, of the whole model.
  Merger(const WeightNames& names, const LoraTargets& targets) {
    for (const NamedWeight& weight : names.weights()) {
      if (!weight.name.ends_with(".lora_B.weight")) {
        continue;
      }
      const std::string foreign =
          module_of(module_of(weight.name)).substr(kPrefixLength);
      const std::string first = module_of(weight.native.front());
      for (const std::string& b : weight.native) {
        pairs_.emplace(
            module_of(module_of(b)) + ".weight",
            LoraPair{first + ".lora_A", b, targets.scaling_of(foreign)});
      }
    }
  }

  /// Keeps A and B, ignores other parameters. Collective.
  void add_all(ModelTensors& model) {
    model.for_each(
        [&](const ModelTensor& tensor, const at::Tensor& value) {
          for (const std::string& name : tensor.spec.names) {
            kept_.emplace(name, value.clone());
          }
        },
        [](const ModelTensor& tensor) {
          return is_adapter_parameter(tensor.name());
        });
  }

  at::Tensor operator()(const std::string& name, const at::Tensor& value)
      const {
    const auto pair = pairs_.find(name);
    if (pair == pairs_.end()) {
      return value;
    }
    const auto wide = [&](const std::string& one) {
      return kept_.at(one).to(at::kFloat);
    };
    const at::Tensor product =
        at::matmul(wide(pair->second.b), wide(pair->second.a)) *
        pair->second.scaling;
    return (value.cpu().to(at::kFloat) + product).to(value.scalar_type());
  }

 private:
  struct LoraPair {
    std::string a, b;
    double scaling;
  };

  static constexpr size_t kPrefixLength =
      std::string_view("base_model.model.").size();

  std::map<std::string, LoraPair> pairs_; ///< by the weight's name
  std::map<std::string, at::Tensor> kept_;
};

} // namespace

void save_lora(const Model& model, const fs::path& folder) {
  TESSERA_CHECK(
      !model.names().is_part,
      "save_lora: this rank holds only a pipeline stage or some of the experts; pass the engine too, which gathers them");
  AdapterFolder written(model, folder);
  ModelTensors full(model);
  engine::write_model(full, written, "save_lora");
}

void save_lora(Engine& engine, const Model& model, const fs::path& folder) {
  AdapterFolder written(model, folder);
  ModelTensors full = engine.model_tensors();
  engine::write_model(full, written, "save_lora");
}

LoraConfig load_lora(Model& model, const fs::path& folder) {
  const LoraConfig config = read_lora_config(folder);
  const sharding::WeightFiles files = weights_in(folder);
  apply_from(folder, files, config, model);
  try {
    const WeightNames names = lora_names(model);
    check_complete(
        files, names, load_weights(model, files, options_for(model, names)));
  } catch (const Error& error) {
    remove_lora(model);
    fail_for(folder, config, error);
  } catch (...) {
    remove_lora(model);
    throw;
  }
  return config;
}

void load_lora(Engine& engine, const Model& model, const fs::path& folder) {
  const WeightNames names = lora_names(model);
  const sharding::WeightFiles files = weights_in(folder);
  check_complete(
      files, names, engine.load_weights(files, options_for(model, names)));
}

SavedValue merged_values(const Model& model) {
  const auto merger = std::make_shared<Merger>(
      lora_names(model), LoraRecord::of(model).targets);
  ModelTensors full(model);
  merger->add_all(full);
  return [merger](const std::string& name, const at::Tensor& value) {
    return (*merger)(name, value);
  };
}

void save_merged(
    const Model& model,
    const fs::path& folder,
    const fs::path& tokenizer_folder) {
  save_pretrained(model, folder, tokenizer_folder, merged_values(model));
}

void save_merged(
    Engine& engine,
    const Model& model,
    const fs::path& folder,
    const fs::path& tokenizer_folder) {
  const LoraTargets& targets = LoraRecord::of(model).targets;
  ModelTensors full = engine.model_tensors();
  const ParameterSizes sizes = parameter_sizes(full.tensors());
  Merger merger(WeightNames(sizes, lora_table(model, targets, sizes)), targets);
  merger.add_all(full);
  save_pretrained(engine, model, folder, tokenizer_folder, std::cref(merger));
}

} // namespace tessera::zoo
