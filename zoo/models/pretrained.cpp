// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/pretrained.h"

#include "tessera/engine/checkpoint/checkpoint_weights.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/hub/fetch.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/sharding/tensors/tensor_io.h"
#include "tessera/sharding/weights/weight_files.h"
#include "tessera/sharding/weights/weight_matching.h"
#include "tessera/zoo/formats/hf_folder_writer.h"
#include "tessera/zoo/formats/megatron_weights.h"
#include "tessera/zoo/formats/model_center.h"
#include "tessera/zoo/formats/model_center_weights.h"
#include "tessera/zoo/layers/linear.h"

#include <torch/types.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <optional>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

/// One line, however many names there are.
void log_list(
    const fs::path& folder,
    const char* label,
    const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  if (names.empty() || !is_log_rank_zero()) {
    return;
  }
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    list += " " + names[i];
  }
  log_info(
      "{}: {} ({}):{}{}",
      folder.string(),
      label,
      names.size(),
      list,
      names.size() > kShown ? " ..." : "");
}

/// The model's current config.json: its dtype may differ from the file's.
at::ScalarType most_frequent(
    const std::map<std::string, at::ScalarType>& dtypes) {
  std::map<at::ScalarType, size_t> counts;
  for (const auto& [name, dtype] : dtypes) {
    ++counts[dtype];
  }
  return std::max_element(
             counts.begin(),
             counts.end(),
             [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

nlohmann::json config_to_save(
    const Model& model,
    const std::map<std::string, at::ScalarType>& dtypes) {
  nlohmann::json config = model.config();
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key) && !dtypes.empty()) {
      config[key] = c10::getDtypeNames(most_frequent(dtypes)).first;
    }
  }
  return config;
}

/// @throws tessera::Error if no rank could write a whole folder.
void check_has_all(const Model& model) {
  TESSERA_CHECK(
      !model.names().is_part,
      "save_pretrained: this rank holds only a pipeline stage or some of the experts. Pass the engine too, which gathers them.");
}

/// The names of all adapters' parameters.
std::vector<std::string> adapter_parameters(const Model& model) {
  std::vector<std::string> names;
  for (const auto& item : model.named_parameters()) {
    if (is_adapter_parameter(item.key())) {
      names.push_back(item.key());
    }
  }
  return names;
}

/// A transformers folder, to be written.
class HfFolder : public WeightFolder {
 public:
  HfFolder(
      const Model& model,
      fs::path path,
      fs::path tokenizer_folder,
      const SavedValue& change,
      int64_t max_shard_bytes)
      : WeightFolder(
            [&model](const ParameterSizes& sizes) {
              return WeightNames(sizes, model.names());
            },
            change,
            max_shard_bytes),
        model_(model),
        path_(std::move(path)),
        tokenizer_folder_(std::move(tokenizer_folder)) {
    const auto adapters = adapter_parameters(model);
    TESSERA_CHECK(
        adapters.empty() || change,
        "save_pretrained: the model has adapters, such as '{}', which the folder of a whole model cannot contain. Write them with save_lora(), or the merged model with save_merged().",
        adapters.front());
  }

 private:
  fs::path create(const ParameterTypes& dtypes) override {
    writer_.emplace(path_, config_to_save(model_, dtypes), tokenizer_folder_);
    return writer_->weights_path();
  }

  void publish() override {
    writer_->commit();
  }

  const Model& model_;
  fs::path path_;
  fs::path tokenizer_folder_;
  std::optional<HfFolderWriter> writer_;
};

std::vector<std::string> names_in(const sharding::WeightFiles& files) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : files.entries()) {
    names.push_back(name);
  }
  return names;
}

/// The name in the files of a parameter; adapters' have none.
std::string checkpoint_name(
    const WeightNames& names,
    const std::string& parameter) {
  return names.has(parameter) ? names.of(parameter, nullptr).name : parameter;
}

/// What our own modules have under the names in the files.
WeightMap native_names_of(const Model& model) {
  const auto native_names =
      std::make_shared<std::map<std::string, MappedWeight>>();
  for (const sharding::WeightTarget& target :
       sharding::weight_targets_in(model)) {
    for (const std::string& name : target.spec.names) {
      native_names->emplace(
          name, MappedWeight{name, target.spec.sizes, target.spec.sizes});
    }
  }
  return
      [native_names](
          std::string_view name) -> std::optional<std::vector<MappedWeight>> {
        const auto found = native_names->find(std::string(name));
        return found == native_names->end()
                   ? std::nullopt
                   : std::optional(std::vector<MappedWeight>{found->second});
      };
}

/// What the files have of a model: under the names of its table, or, in a
/// checkpoint of an engine and what was made of it, under its own.
WeightMap weight_map(
    const Model& model,
    const WeightNames& names,
    const sharding::WeightFiles& files) {
  WeightMap map = names.map(names_in(files));
  WeightMap native_map = native_names_of(model);
  size_t foreign = 0;
  size_t native = 0;
  for (const auto& [name, entry] : files.entries()) {
    const auto found = map(name);
    foreign += found && !found->empty() ? 1 : 0;
    native += native_map(name) ? 1 : 0;
  }
  return native > foreign ? native_map : map;
}

/// The parts of the head of which the files have nothing. Where they have
/// something, all of it must be there.
std::vector<std::string> absent_parts(
    const Model& model,
    const WeightMap& map,
    const sharding::WeightFiles& files) {
  std::vector<std::string> absent = model.may_be_missing();
  for (const auto& [name, entry] : files.entries()) {
    for (const MappedWeight& weight :
         map(name).value_or(std::vector<MappedWeight>())) {
      std::erase_if(absent, [&](const std::string& part) {
        return weight.name.starts_with(part);
      });
    }
  }
  return absent;
}

/// What may be missing in a checkpoint's files.
enum class NewHead {
  kNone, ///< nothing
  kAbsentParts, ///< absent_parts()
  kAnyPart, ///< also single weights of a part
};

LoadWeightsOptions options_with(
    const Model& model,
    const NameTable& table,
    const sharding::WeightFiles& files,
    NewHead head = NewHead::kAbsentParts) {
  const auto names = std::make_shared<const WeightNames>(model, table);
  LoadWeightsOptions options;
  options.map = weight_map(model, *names, files);
  options.checkpoint_name = [names](const std::string& parameter) {
    return checkpoint_name(*names, parameter);
  };
  if (head == NewHead::kAnyPart) {
    options.may_be_missing = model.may_be_missing();
  } else if (head == NewHead::kAbsentParts) {
    options.may_be_missing = absent_parts(model, options.map, files);
  }
  for (const std::string& name : adapter_parameters(model)) {
    options.may_be_missing.push_back(name); // they are in files of their own
  }
  return options;
}

/// The classes of config.json, and those that a model is made for.
struct ClassChange {
  std::vector<std::string> trained;
  HeadClasses wanted;
};

/// Ignores weights whose shape differs from that of the model's head, and those
/// of the outputs of a head for other classes.
/// @return the names of those that are ignored.
std::vector<std::string> leave_other_heads(
    const sharding::WeightFiles& files,
    const ClassChange& classes,
    LoadWeightsOptions& options) {
  const auto is_left = [heads = options.may_be_missing,
                        is_trained = classes.wanted.are_trained,
                        outputs = static_cast<int64_t>(classes.trained.size())](
                           const MappedWeight& weight,
                           const std::vector<int64_t>& shape) {
    return (weight.shape != shape ||
            (!is_trained && !shape.empty() && shape.front() == outputs)) &&
           std::any_of(heads.begin(), heads.end(), [&](const auto& head) {
             return weight.name.starts_with(head);
           });
  };
  std::vector<std::string> left;
  for (const auto& [name, entry] : files.entries()) {
    const auto found = options.map(name);
    if (found &&
        std::any_of(found->begin(), found->end(), [&](const auto& weight) {
          return is_left(weight, entry.shape);
        })) {
      left.push_back(name);
    }
  }
  options.map = [files, map = options.map, is_left](std::string_view name) {
    auto found = map(name);
    const auto* entry = files.find(std::string(name));
    if (found && entry != nullptr) {
      std::erase_if(*found, [&](const MappedWeight& weight) {
        return is_left(weight, entry->shape);
      });
    }
    return found;
  };
  return left;
}

/// Says which classes a head is newly initialized for.
void log_new_head(
    const fs::path& folder,
    const ClassChange& classes,
    const std::vector<std::string>& left) {
  if (left.empty() || !is_log_rank_zero()) {
    return;
  }
  log_info(
      "{}: the head is newly initialized, because it was trained for the classes {}, not for {}; not read: {}",
      folder.string(),
      runtime::show_json(nlohmann::json(classes.trained)),
      runtime::show_json(nlohmann::json(classes.wanted.names)),
      runtime::join_names(left));
}

bool have_equal_bytes(const at::Tensor& a, const at::Tensor& b) {
  const auto left = sharding::raw_bytes(a);
  const auto right = sharding::raw_bytes(b);
  return std::equal(left.begin(), left.end(), right.begin(), right.end());
}

/// The weights under transformers' names, or those of our own modules if they
/// are in a checkpoint of an engine.
/// @param config names the type of the model.
sharding::WeightFiles open_weights(
    const fs::path& path,
    const nlohmann::json& config) {
  if (engine::is_checkpoint(path)) {
    return engine::checkpoint_weights(path);
  }
  if (is_megatron(path)) {
    return megatron_weights(MegatronCheckpoint(path), config);
  }
  auto files = sharding::WeightFiles::open(path);
  const auto type = config.find("model_type");
  // A value of another kind is an error where the model is made.
  return type != config.end() && type->is_string() &&
                 has_model_center_names(files)
             ? from_model_center_weights(files, type->get<std::string>())
             : files;
}

/// The config.json of a folder, or what stands for it.
runtime::JsonValue config_in(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  if (!fs::exists(path) && is_megatron(folder)) {
    return runtime::json_object(
        megatron_config(MegatronCheckpoint(folder)), folder.string());
  }
  TESSERA_CHECK(
      fs::exists(path),
      "{} does not exist; give the folder of an unpacked Hugging Face model",
      path);
  return runtime::read_json_object(path);
}

/// A folder's tensors, which a model may look at while it is made.
class FolderTensors : public CheckpointTensors {
 public:
  /// @param files none if they cannot be read, which is reported later.
  explicit FolderTensors(const std::optional<sharding::WeightFiles>& files)
      : files_(files) {}

  bool has(const std::string& name) const override {
    return find(name) != nullptr;
  }

  bool differ(const std::string& one, const std::string& other) const override {
    const sharding::WeightEntry* a = find(one);
    const sharding::WeightEntry* b = find(other);
    return a != nullptr && b != nullptr &&
           (a->dtype != b->dtype || a->shape != b->shape ||
            !have_equal_bytes(
                sharding::loaded_tensor(*a), sharding::loaded_tensor(*b)));
  }

 private:
  /// Null if the files lack it.
  const sharding::WeightEntry* find(const std::string& name) const {
    return files_ ? files_->find(name) : nullptr;
  }

  const std::optional<sharding::WeightFiles>& files_;
};

/// Converts each parameter to its type in the files.
void give_types(const sharding::WeightFiles& files, Model& model) {
  std::map<std::string, at::ScalarType> types;
  const WeightMap map =
      weight_map(model, WeightNames(model, model.names()), files);
  for (const auto& [name, entry] : files.entries()) {
    for (const MappedWeight& weight :
         map(name).value_or(std::vector<MappedWeight>())) {
      types[weight.name] = sharding::loaded_dtype_of(entry.name, entry.dtype);
    }
  }
  const auto type_of = [&](const std::string& name) {
    const auto type = types.find(name);
    return type != types.end() && at::isFloatingType(type->second)
               ? type->second
               : at::kFloat;
  };
  convert_deferred(model, type_of);
  for (auto& item : model.named_parameters()) {
    item.value().set_data(item.value().to(type_of(item.key())));
  }
}

/// Divides the layers over all axes except the tensor axis.
LayerContext divided_otherwise(LayerContext layers, ParallelRun& parallel) {
  if (const auto context = parallel.context()) {
    layers = layers.over_context(*context);
  }
  if (parallel.mesh().size(ParallelGroup::kExpert) > 1) {
    ParallelGroups& groups = parallel.groups();
    layers = layers.over_experts(
        {&groups[ParallelGroup::kExpert], &groups[ParallelGroup::kGradients]});
  }
  return layers.on_stage(parallel.position());
}

/// Whether `model` is of the architecture that config.json names.
bool is_own_architecture(const nlohmann::json& config, const Model& model) {
  const auto named = config.find("architectures");
  return named != config.end() && named->is_array() && !named->empty() &&
         named->front() == model.config().at("architectures").front();
}

/// Nothing is wanted if the options do not name classes.
ClassChange class_change(
    const nlohmann::json& config,
    const FromPretrainedOptions& options) {
  ClassChange change;
  if (options.fresh_heads && options.config.contains("id2label")) {
    change.trained = class_names_in(config);
    const auto asked = class_names_in(options.config);
    change.wanted =
        classes_for_head(change.trained, asked, options.class_order);
    const auto& names = change.wanted.names;
    if (is_log_rank_zero() &&
        !std::is_permutation(
            names.begin(), names.end(), asked.begin(), asked.end())) {
      log_info(
          "the classes {} are the ids of those of the trained head, {}, whose names are kept",
          runtime::show_json(nlohmann::json(asked)),
          runtime::show_json(nlohmann::json(names)));
    }
  }
  return change;
}

/// Adds the relevant config.json fields to errors about weights that do not
/// fit.
LoadWeightsReport load_fitting(
    Model& model,
    const fs::path& folder,
    const sharding::WeightFiles& files,
    const FieldRecord& record,
    const FromPretrainedOptions& options,
    const ClassChange& classes,
    NewHead head) {
  try {
    NameTable table = model.names();
    if (options.unties) { // a head that the files lack is the embedding
      for (const auto& [other, name] : model.names().tied) {
        table.tied.emplace_back(name, other);
      }
    }
    LoadWeightsOptions load = options_with(model, table, files, head);
    load.allows_unexpected = !options.strict;
    if (options.fresh_heads) {
      log_new_head(folder, classes, leave_other_heads(files, classes, load));
    }
    return load_weights(model, files, load);
  } catch (const Error& error) {
    TESSERA_FAIL(
        "{}\nThe model is configured by {}: {}",
        error.what(),
        folder / "config.json",
        record.text());
  }
}

/// Logs what was not loaded, under the names in the files, and has the model
/// know it.
void keep_report(
    const fs::path& folder,
    Model& model,
    LoadWeightsReport report) {
  if (!model.names().is_part) { // else they belong to other ranks
    log_list(folder, "ignored", report.left_out);
  }
  log_list(
      folder,
      "ignored, because the model has no such weight",
      report.unexpected);
  const WeightNames names(model, model.names());
  for (std::string& name : report.missing) {
    name = checkpoint_name(names, name);
  }
  log_list(folder, "newly initialized", report.missing);
  model.set_newly_initialized(std::move(report.missing));
}

} // namespace

LayerContext layer_context(ParallelRun& parallel) {
  const auto tensor = parallel.tensor();
  return divided_otherwise(
      tensor ? LayerContext(*tensor) : LayerContext(), parallel);
}

LayerContext fresh_layer_context(ParallelRun& parallel) {
  const auto tensor = parallel.tensor();
  return divided_otherwise(
      LayerContext(tensor.value_or(
          TensorParallel{&parallel.groups()[ParallelGroup::kTensor]})),
      parallel);
}

LoadWeightsReport load_pretrained(Model& model, const fs::path& given) {
  const fs::path folder = runtime::local_model(given);
  const auto files = open_weights(folder, model.config());
  return load_weights(model, files, options_with(model, model.names(), files));
}

std::shared_ptr<Model> from_pretrained(
    const fs::path& given,
    const FromPretrainedOptions& options) {
  const fs::path folder = runtime::local_model(given);
  const runtime::JsonValue fields = config_in(folder);
  nlohmann::json config = fields.value();
  config.update(options.config);
  const ClassChange classes = class_change(fields.value(), options);
  if (!classes.wanted.names.empty()) {
    config.update(class_name_fields(classes.wanted.names));
  }
  const std::string architecture =
      options.head.accepts
          ? architecture_with_head(config, options.head, fields.place())
          : options.architecture;
  const auto record = std::make_shared<FieldRecord>();
  std::optional<sharding::WeightFiles> files;
  std::exception_ptr cannot_open; // errors of config.json come first
  try {
    files = open_weights(
        options.weights.empty() ? folder : options.weights, config);
  } catch (const Error&) {
    cannot_open = std::current_exception();
  }
  const FolderTensors tensors(files);
  const auto make = [&](HeadWeight head_weight) {
    auto made = from_config(
        config,
        {architecture, options.context, &tensors, record, head_weight},
        fields.place());
    if (options.dtype) {
      convert_deferred(*made, *options.dtype);
      made->to(*options.dtype);
    } else if (files) {
      give_types(*files, *made);
    }
    return made;
  };
  std::shared_ptr<Model> model =
      lazy([&] { return make(HeadWeight::kAsSaved); });
  if (const auto tied = model->tied_head();
      tied && options.unties && options.unties(*tied)) {
    model = lazy([&] { return make(HeadWeight::kOwn); });
  }
  if (!is_model_center(config)) {
    check_unread_fields(config, fields.place(), *record);
  }
  if (cannot_open) {
    std::rethrow_exception(cannot_open);
  }
  const NewHead head = options.fresh_heads ? NewHead::kAnyPart
                       : is_own_architecture(fields.value(), *model)
                           ? NewHead::kNone
                           : NewHead::kAbsentParts;
  keep_report(
      folder,
      *model,
      load_fitting(*model, folder, *files, *record, options, classes, head));
  if (!options.lazy) {
    materialize(*model);
  }
  model->eval();
  return model;
}

LoadWeightsReport load_pretrained(
    Engine& engine,
    const Model& model,
    const fs::path& given) {
  const fs::path folder = runtime::local_model(given);
  NameTable table = model.names();
  // Tensors that this rank lacks belong to another pipeline stage, to experts
  // of other ranks or are unexpected; the engine can tell them apart.
  table.is_part = false;
  const auto files = open_weights(folder, model.config());
  return engine.load_weights(files, options_with(model, table, files));
}

LoadWeightsReport load_weights_of(
    Engine& engine,
    const Model& model,
    const fs::path& given,
    const LoadWeightsOptions& options) {
  const fs::path path = runtime::local_model(given);
  if (engine::is_checkpoint(path)) {
    return engine.load_weights(path, options);
  }
  NameTable table = model.names();
  table.is_part = false; // see above
  const auto files = open_weights(path, model.config());
  const WeightNames names(model, table);
  LoadWeightsOptions load = options;
  load.map = weight_map(model, names, files);
  load.other_names = names.by_parameter();
  load.checkpoint_name = [&](const std::string& parameter) {
    return checkpoint_name(names, parameter);
  };
  return engine.load_weights(files, load);
}

void save_pretrained(
    const Model& model,
    const fs::path& folder,
    const fs::path& tokenizer_folder,
    const SavedValue& change,
    int64_t max_shard_bytes) {
  check_has_all(model);
  HfFolder written(model, folder, tokenizer_folder, change, max_shard_bytes);
  ModelTensors full(model);
  engine::write_model(full, written, "save_pretrained");
}

void save_pretrained(
    Engine& engine,
    const Model& model,
    const fs::path& folder,
    const fs::path& tokenizer_folder,
    const SavedValue& change,
    int64_t max_shard_bytes) {
  HfFolder written(model, folder, tokenizer_folder, change, max_shard_bytes);
  ModelTensors full = engine.model_tensors();
  engine::write_model(full, written, "save_pretrained");
}

} // namespace tessera::zoo
