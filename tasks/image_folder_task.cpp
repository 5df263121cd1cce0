// SPDX-License-Identifier: Apache-2.0
// The task "image_folder": any model of images that has a head, on JPEG and PNG
// files whose folders are the classes.
#include "tessera/tasks/image_folder_task.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/tasks/image_batches.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/models/registry.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <set>
#include <string>
#include <utility>

namespace tessera::tasks {

namespace {

void visit_image_model(runtime::OptionFields& fields, TrainingConfig& config) {
  visit_model_source(fields, config);
  fields.field(
      "classes",
      config.classes,
      "names of the classes, in the order of their ids; by default those of the subfolders, in the order of config.json if that has the same names, else sorted");
}

void visit_image_data(runtime::OptionFields& fields, TrainingConfig& config) {
  auto& options = config.as<ImageTaskOptions>();
  visit_path(
      fields,
      runtime::required("train"),
      config.data.train,
      "a folder with a subfolder of JPEG and PNG files for each class; of models without classes, any folder of them");
  visit_path(
      fields,
      "heldout",
      config.data.heldout,
      "as `data.train` (empty: nothing is scored, or `data.heldout_share`)");
  visit_image_fields(fields, options.images);
  fields.object("views", options.images.views, "");
  fields.object("pixels", options.examples.pixels, "");
  fields.field(
      "patch_mask",
      options.examples.patch_mask,
      {.min = 0, .max = 1},
      "fraction of patches that masked image modeling masks");
}

void check_views(
    const runtime::ConfigReader& views,
    const ImageViewOptions& options) {
  if (options.least_area > options.most_area) {
    views.fail("area", "give the smaller number first");
  }
  if (options.least_ratio > options.most_ratio) {
    views.fail("ratio", "give the smaller number first");
  }
  if (!options.jitter.empty() &&
      (options.jitter.size() != 4 || options.jitter[3] > 0.5)) {
    views.fail(
        "jitter",
        "give four numbers, for brightness, contrast, saturation and hue; the last is at most 0.5");
  }
  for (const auto& [key, numbers] :
       {std::pair("blur", options.blur),
        std::pair("solarize", options.solarize)}) {
    if (numbers.size() > 2) {
      views.fail(key, "give one number, or one for each of two views");
    }
  }
}

void finish_images(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  check_model_source(reader, config);
  const auto model = reader.get_object("model");
  if (!config.classes.empty() &&
      std::set<std::string>(config.classes.begin(), config.classes.end())
              .size() != config.classes.size()) {
    model.fail("classes", "give each class a different name");
  }
  const auto data = reader.get_object("data");
  auto& [images, examples] = config.as<ImageTaskOptions>();
  if (images.heldout_share > 0 && !config.data.heldout.empty()) {
    data.fail("heldout_share", "set either this or data.heldout");
  }
  if (images.mixup > 0 && images.mixup < 0.01) {
    data.fail("mixup", "set it to 0, or to at least 0.01");
  }
  check_views(data.get_object("views"), images.views);
  examples.seed = config.seed;
  complete_from_preprocessor(config.model_folder, images, examples.pixels);
}

bool accepts_classes(const zoo::Head& head) {
  return head.images() != nullptr && head.labels() == zoo::HeadLabels::kClass;
}

zoo::WantedHead image_head(const TrainingConfig& /*config*/) {
  return {"classifier of images", accepts_classes};
}

/// The class that is trained: that of the configuration, or of config.json
/// unless that one has no head.
std::string image_architecture(const TrainingConfig& config) {
  if (!config.architecture.empty()) {
    return config.architecture;
  }
  const std::filesystem::path path = config.model_folder.empty()
                                         ? config.model_config
                                         : config.model_folder / "config.json";
  const nlohmann::json json =
      runtime::parse_json(runtime::read_text_file(path), path.string());
  std::string name;
  if (const auto found = json.find("architectures");
      found != json.end() && found->is_array() && !found->empty() &&
      found->front().is_string()) {
    name = found->front().get<std::string>();
  }
  return name.empty() || name.ends_with("Model")
             ? zoo::architecture_with_head(
                   json, image_head(config), path.string())
             : name;
}

/// As it is trained on a folder with these classes.
TrainingConfig classifier_config(
    TrainingConfig config,
    const ImageFolder& train) {
  if (config.classes.empty()) {
    config.classes = train.classes;
    config.class_order = zoo::ClassOrder::kOfCheckpoint;
  }
  TESSERA_CHECK(
      config.classes.size() >= 2,
      "'{}' has one class, '{}'; a classifier needs two",
      config.data.train_path().string(),
      config.classes.front());
  config.problem_type = "single_label_classification";
  return config;
}

bool is_classifier(const std::string& architecture) {
  return architecture.ends_with("ForImageClassification");
}

/// Adapters are trained on existing weights.
std::shared_ptr<zoo::Model> base_of_images(
    const TrainingConfig& config,
    const zoo::LayerContext& context) {
  TrainingConfig with = config;
  with.architecture = image_architecture(config);
  if (is_classifier(with.architecture)) {
    with = classifier_config(
        with,
        ImageFolder::read(config.data.train_path(), /*has_classes=*/true));
  }
  return pretrained_model(with, context);
}

Task open_images(
    const TrainingConfig& config,
    World& world,
    ParallelRun& parallel,
    ModelState state) {
  TrainingConfig with = config;
  with.architecture = image_architecture(config);
  const bool has_classes = is_classifier(with.architecture);
  const bool trains = state != ModelState::kTrained;
  const auto& task_options = config.as<ImageTaskOptions>();
  const ImageOptions& images = task_options.images;
  const auto read = [&](const std::filesystem::path& path) {
    auto folder = ImageFolder::read(path, has_classes);
    folder.check(images, world.rank() == 0);
    return folder;
  };
  std::optional<ImageFolder> train;
  std::optional<ImageFolder> heldout;
  if (trains || images.heldout_share > 0) {
    train = read(config.data.train_path());
  }
  if (!config.data.heldout.empty()) {
    heldout = read(config.data.heldout_path());
  } else if (images.heldout_share > 0) {
    heldout = train->take_heldout(images.heldout_share);
  }
  if (has_classes && trains) {
    with = classifier_config(with, *train);
  }
  Task task;
  task.model = configured_model(with, parallel);
  task.head = head_of(*task.model);
  TESSERA_CHECK(
      !has_classes || accepts_classes(*task.head),
      "the {} does not predict one class per image, as image_folder does: its problem_type in config.json is another one",
      task.model->architecture());
  const auto open = [&](std::optional<ImageFolder>& folder) {
    if (!folder) {
      return std::unique_ptr<ImageBatches>();
    }
    if (has_classes) {
      folder->relabel(classes_of(*task.model));
    }
    return std::make_unique<ImageBatches>(
        std::move(*folder), *task.head, images, task_options.examples);
  };
  if (state == ModelState::kFirst) {
    task.train = open(train);
  }
  task.heldout = open(heldout);
  return task;
}

void write_image_preprocessor(
    const TrainingConfig& config,
    zoo::Model& model,
    const std::filesystem::path& folder) {
  const auto& options = config.as<ImageTaskOptions>();
  write_preprocessor(
      folder,
      options.images,
      options.examples.pixels,
      head_of(model)->images()->image);
}

} // namespace

const TaskKind kImageFolder{
    .name = "image_folder",
    .max_length = 0,
    .options = options_of<ImageTaskOptions>,
    .visit_model = visit_image_model,
    .visit_data = visit_image_data,
    .finish = finish_images,
    .open = open_images,
    .base_model = base_of_images,
    .finish_export = write_image_preprocessor,
    .wanted_head = image_head,
    .data_files = one_path};

} // namespace tessera::tasks
