// SPDX-License-Identifier: Apache-2.0
// Loading and saving LoRA adapters.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/atomic_folder.h"
#include "tessera/sharding/weights/load_weights.h"
#include "tessera/sharding/weights/weight_files.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/adapters/lora_layer.h"
#include "tessera/zoo/adapters/lora_record.h"
#include "tessera/zoo/layers/linear.h"

#include <ATen/ops/matmul.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

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

/// The name in the base's checkpoint of a name in PEFT's.
std::string foreign_name(const std::string& name) {
  return name.starts_with(kAdapterPrefix) ? name.substr(kAdapterPrefix.size())
                                          : name;
}

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
  const std::string_view end = ".lora_A.weight";
  for (const auto& [name, entry] : files.entries()) {
    if (!name.starts_with(kAdapterPrefix) || !name.ends_with(end) ||
        entry.shape.size() != 2) {
      continue;
    }
    const std::string module =
        foreign_name(name.substr(0, name.size() - end.size()));
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

/// @throws tessera::Error if the adapter has matrices of an embedding.
void check_no_embeddings(
    const fs::path& folder,
    const sharding::WeightFiles& files) {
  for (const auto& [name, entry] : files.entries()) {
    const size_t end = name.rfind(".lora_embedding_");
    TESSERA_CHECK(
        end == std::string::npos,
        "{} has '{}': the adapter has matrices of the embedding '{}', which 'target_modules' of {} names, and adapters of embeddings are not implemented. Merge it with PEFT (merge_and_unload) and give the merged folder, or train one without the embedding in target_modules; modules_to_save trains all of it",
        files.path(),
        name,
        foreign_name(name.substr(0, end)),
        folder / kConfigFile);
  }
}

/// Why modules that the adapter has whole, such as heads, do not fit the model
/// that it is for; empty if that is not the reason.
std::string misfit_of_modules(
    const sharding::WeightFiles& files,
    const Model& model) {
  std::set<std::string> modules;
  std::map<std::string, std::vector<int64_t>> shapes;
  const WeightNames names(model, model.names());
  for (const NamedWeight& weight : names.weights()) {
    modules.insert(module_of(weight.name));
    shapes.emplace(weight.name, weight.shape());
  }
  const std::set<std::string> fresh(
      model.newly_initialized().begin(), model.newly_initialized().end());
  std::set<std::string> absent;
  std::set<std::string> other;
  for (const auto& [name, entry] : files.entries()) {
    if (is_duplicate(name) || name.find(".lora_") != std::string::npos ||
        name.find(".base_layer.") != std::string::npos) {
      continue;
    }
    const std::string weight = foreign_name(name);
    if (!modules.contains(module_of(weight))) {
      absent.insert(module_of(weight));
    } else if (fresh.contains(weight) && shapes.at(weight) != entry.shape) {
      other.insert(module_of(weight));
    }
  }
  const auto joined = [](const std::set<std::string>& all) {
    return runtime::join_names(
        std::vector<std::string>(all.begin(), all.end()));
  };
  const auto architecture =
      model.config().at("architectures").at(0).get<std::string>();
  std::string text;
  if (!absent.empty() && !model.names().is_part) {
    text += formatted(
        "\nThe adapter has modules that were trained whole, {}, and its base, a {}, has none of that name: name the class that it was trained with (`tessera convert --architecture`), or give a base of that class",
        joined(absent),
        architecture);
  }
  if (!other.empty()) {
    text += formatted(
        "\nThe adapter has {} for another number of classes than its base, whose folder lacks such a head, so that it was newly initialized for the classes of config.json: name in id2label of that file as many as the adapter was trained for",
        joined(other));
  }
  return text.empty()
             ? text
             : text +
                   ". Of a run of `tessera train`, `tessera export RUN model.lora.merge=true` makes the merged model";
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
        "use_dora",
        "layers_to_transform",
        "layers_pattern",
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

/// @throws tessera::Error if the base model has newly initialized weights that
///     the adapter does not have either.
void check_has_new_modules(const Model& model) {
  const WeightNames names = lora_names(model);
  std::set<std::string> trained;
  for (const NamedWeight& weight : names.weights()) {
    trained.insert(foreign_name(weight.name));
  }
  std::vector<std::string> random;
  for (const std::string& name : model.newly_initialized()) {
    if (!trained.contains(name)) {
      random.push_back(name);
    }
  }
  TESSERA_CHECK(
      random.empty(),
      "merging the adapter would write random values: the base model lacks {}, which are newly initialized, and the adapter does not have them either. Give a base model that has them, or an adapter that has them in modules_to_save; of a run of `tessera train`, `tessera export RUN model.lora.merge=true` has those that it was trained with",
      runtime::join_names(random));
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
          foreign_name(module_of(module_of(weight.name)));
      const std::string first = module_of(weight.native.front());
      for (const std::string& b : weight.native) {
        pairs_.emplace(
            module_of(module_of(b)) + ".weight",
            LoraPair{
                first + ".lora_A",
                b,
                targets.config().use_dora ? module_of(b) + ".lora_magnitude"
                                          : "",
                targets.scaling_of(foreign)});
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
    const LoraPair& found = pair->second;
    const at::Tensor update =
        at::matmul(wide(found.b), wide(found.a)) * found.scaling;
    return merged_weight(
               value.cpu(),
               update,
               found.magnitude.empty() ? at::Tensor()
                                       : kept_.at(found.magnitude))
        .to(value.scalar_type());
  }

 private:
  struct LoraPair {
    std::string a, b;
    std::string magnitude; ///< empty without use_dora
    double scaling;
  };

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
  check_no_embeddings(folder, files);
  apply_from(folder, files, config, model);
  try {
    const WeightNames names = lora_names(model);
    check_complete(
        files, names, load_weights(model, files, options_for(model, names)));
  } catch (const Error& error) {
    remove_lora(model);
    fail_for(
        folder, config, Error(error.what() + misfit_of_modules(files, model)));
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
  check_has_new_modules(model);
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
