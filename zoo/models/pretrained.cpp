// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/pretrained.h"

#include "tessera/engine/checkpoint/whole_model.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/lazy.h"
#include "tessera/sharding/move_module.h"
#include "tessera/sharding/page_key.h"
#include "tessera/sharding/parallel/divided_experts.h"
#include "tessera/sharding/parallel/group_operations.h"
#include "tessera/sharding/parallel/parallel_module.h"
#include "tessera/sharding/weight_files.h"
#include "tessera/zoo/hf_folder_writer.h"
#include "tessera/zoo/models/weight_writer.h"

#include <torch/torch.h>

#include <exception>
#include <map>
#include <optional>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

void log_list(
    const fs::path& folder,
    const char* what,
    const std::vector<std::string>& names) {
  if (names.empty() || !is_log_rank_zero()) {
    return;
  }
  std::string list;
  for (const std::string& name : names) {
    list += " " + name;
  }
  log_info(folder.string(), ": ", what, ":", list);
}

/// config.json of the model as it is now: its dtype may not be the file's.
nlohmann::json config_to_save(
    const Model& model,
    const std::map<std::string, at::ScalarType>& dtypes) {
  nlohmann::json config = model.config();
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key) && !dtypes.empty()) {
      const at::ScalarType dtype = dtypes.begin()->second;
      config[key] = dtype == at::kBFloat16 ? "bfloat16"
                    : dtype == at::kHalf   ? "float16"
                    : dtype == at::kDouble ? "float64"
                                           : "float32";
    }
  }
  return config;
}

/// Parts of tensor-parallel ranks to whole parameters.
class PartGatherer {
 public:
  explicit PartGatherer(const Model& model) : parts_(parts_in(model)) {
    for (const auto& module : model.modules()) {
      if (const auto* one = dynamic_cast<const ParallelModule*>(&*module)) {
        group_ = one->how().group;
      }
    }
  }

  /// The first of its group.
  bool is_writer() const {
    return group_ == nullptr || group_->rank() == 0;
  }
  Communicator* group() const {
    return group_;
  }

  /// Collective over the group.
  /// @param value of `parameter`, which is not always in it.
  at::Tensor whole(const at::Tensor& parameter, const at::Tensor& value) const {
    const auto part = parts_.find(parameter.unsafeGetTensorImpl());
    return part == parts_.end()
               ? value
               : gather_parts(
                     value, part->second.dim, part->second.split, *group_);
  }

 private:
  std::unordered_map<const c10::TensorImpl*, ParameterPart> parts_;
  Communicator* group_ = nullptr;
};

/// @throws tessera::Error where no rank could write a whole folder.
void check_has_all(const Model& model) {
  TESSERA_CHECK(
      !model.names().is_part,
      "save_pretrained: this rank's model is a pipeline's stage, or has some "
      "of the experts only. Give the engine too, which gathers stages; with "
      "divided experts load a checkpoint into a whole model, and save that.");
}

/// A folder and its weights, on the rank that writes. What goes wrong there is
/// thrown by finish(), so that others are not left alone in a collective.
class FolderJob {
 public:
  /// @param dtypes of all parameters in `names`.
  FolderJob(
      const Model& model,
      const WeightNames& names,
      const std::map<std::string, at::ScalarType>& dtypes,
      const fs::path& folder,
      const fs::path& tokenizer_folder) {
    guarded([&] {
      folder_.emplace(folder, config_to_save(model, dtypes), tokenizer_folder);
      weights_.emplace(folder_->weights_path(), names, dtypes);
    });
  }

  void add(const std::string& name, const at::Tensor& value) {
    guarded([&] { weights_->add(name, value); });
  }

  void finish() {
    guarded([&] {
      weights_->commit();
      folder_->commit();
    });
  }

  const std::exception_ptr& error() const {
    return error_;
  }

 private:
  template <typename Work>
  void guarded(const Work& work) {
    if (error_) {
      return;
    }
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  std::optional<HfFolderWriter> folder_;
  std::optional<WeightWriter> weights_;
  std::exception_ptr error_;
};

void finish(
    std::optional<FolderJob>& job,
    const fs::path& folder,
    double failed) {
  if (job && job->error()) {
    std::rethrow_exception(job->error());
  }
  TESSERA_CHECK(
      failed == 0,
      "save_pretrained: the rank that writes could not write ",
      folder,
      "; its own message says why");
}

LoadWeightsOptions options_with(const Model& model, const NameTable& table) {
  LoadWeightsOptions options;
  options.pieces = WeightNames(model, table).pieces();
  options.may_be_missing = model.may_be_missing();
  return options;
}

/// Layers divided in all ways but over tensor-parallel ranks.
LayerContext divided_otherwise(LayerContext layers, ParallelRun& parallel) {
  if (const auto context = parallel.context()) {
    layers = layers.over_context(*context);
  }
  if (parallel.mesh().size(ParallelGroup::kExpert) > 1) {
    ParallelGroups& groups = parallel.groups();
    layers = layers.over_experts(
        {&groups[ParallelGroup::kExpert], &groups[ParallelGroup::kGradients]});
  }
  return layers.on_stage(parallel.place());
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

LoadWeightsOptions weight_options(const Model& model) {
  return options_with(model, model.names());
}

std::shared_ptr<Model> from_pretrained(
    const fs::path& folder,
    const FromPretrainedOptions& options) {
  const fs::path path = folder / "config.json";
  TESSERA_CHECK(
      fs::exists(path),
      path,
      " does not exist; give the folder of an unpacked Hugging Face model");
  const auto fields = JsonFields::from_file(path);
  nlohmann::json config = fields.object();
  config.update(options.config);
  const std::string architecture =
      options.head.empty()
          ? options.architecture
          : architecture_with_head(config, options.head, fields.origin());
  const std::shared_ptr<Model> model = lazy([&] {
    auto made = from_config(
        config,
        {architecture,
         options.context,
         [&](const std::string& name) {
           return WeightFiles::open(folder).entries().contains(name);
         }},
        fields.origin());
    convert_deferred(*made, options.dtype);
    made->to(options.dtype);
    return made;
  });
  const LoadWeightsReport report =
      load_weights(*model, folder, weight_options(*model));
  if (!model->names().is_part) { // else they are other ranks'
    log_list(folder, "not needed, left out", report.left_out);
  }
  log_list(folder, "not in the checkpoint, fresh", report.missing);
  if (!options.lazy) {
    materialize(*model);
  }
  model->eval();
  return model;
}

LoadWeightsReport load_pretrained(
    Engine& engine,
    const Model& model,
    const fs::path& folder) {
  NameTable table = model.names();
  if (!has_divided_experts(model)) {
    // What is not this stage's is another's, or unexpected: the engine knows.
    table.is_part = false;
  }
  return engine.load_weights(folder, options_with(model, table));
}

void save_pretrained(
    const Model& model,
    const fs::path& folder,
    const fs::path& tokenizer_folder) {
  const torch::NoGradGuard no_grad;
  check_has_all(model);
  const auto parameters = model.named_parameters();
  for (const auto& item : parameters) {
    TESSERA_CHECK(
        !has_page_key(item.value()),
        "save_pretrained: '",
        item.key(),
        "' is sharded; give the engine too, on every rank.");
  }
  const WeightNames names(model, model.names());
  const PartGatherer gatherer(model);
  std::optional<FolderJob> job;
  if (gatherer.is_writer()) {
    job.emplace(
        model, names, parameter_dtypes(model), folder, tokenizer_folder);
  }
  for (const auto& item : parameters) {
    const at::Tensor whole = gatherer.whole(item.value(), item.value());
    if (job) {
      job->add(item.key(), whole);
    }
  }
  if (job) {
    job->finish();
  }
  double failed = 0;
  if (gatherer.group() != nullptr) {
    const at::Tensor count =
        torch::full({}, job && job->error() ? 1.0 : 0.0, torch::kDouble);
    failed = reduce_over_group(count, *gatherer.group()).item<double>();
  }
  finish(job, folder, failed);
}

void save_pretrained(
    const World& world,
    Engine& engine,
    const Model& model,
    const fs::path& folder,
    const fs::path& tokenizer_folder) {
  TESSERA_CHECK(
      !has_divided_experts(model),
      "save_pretrained: this rank has some of the experts only; load a "
      "checkpoint of it into a whole model, and save that.");
  WholeModel whole = engine.whole_model();
  std::map<std::string, std::vector<int64_t>> sizes;
  std::map<std::string, at::ScalarType> dtypes;
  for (const WholeTensor& tensor : whole.tensors()) {
    for (const std::string& name : tensor.names) {
      if (!tensor.is_buffer) {
        sizes.emplace(name, tensor.sizes);
        dtypes.emplace(name, tensor.dtype);
      }
    }
  }
  const WeightNames names(sizes, model.names());
  std::optional<FolderJob> job;
  if (world.rank() == 0) {
    job.emplace(model, names, dtypes, folder, tokenizer_folder);
  }
  whole.for_each([&](const WholeTensor& tensor, const at::Tensor& value) {
    for (const std::string& name : tensor.names) {
      if (!tensor.is_buffer) {
        job->add(name, value);
      }
    }
  });
  if (job) {
    job->finish();
  }
  const at::Tensor failed =
      torch::full({1}, job && job->error() ? 1.0 : 0.0, torch::kDouble);
  whole.job().sum(failed);
  finish(job, folder, failed.item<double>());
}

} // namespace tessera::zoo
