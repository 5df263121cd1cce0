// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/text_classifier.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/json_fields.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/registry.h"
#include "tessera/zoo/tasks/configured_model.h"
#include "tessera/zoo/tasks/trained_head.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

namespace {

std::shared_ptr<zoo::Model> lazy_model(
    const std::filesystem::path& folder,
    const nlohmann::json& fields,
    const zoo::LayerContext& context,
    bool strict) {
  zoo::FromPretrainedOptions options;
  options.context = context;
  options.lazy = true;
  options.strict = strict;
  options.head = "ForSequenceClassification";
  options.config = fields;
  options.fresh_heads = !fields.empty();
  return zoo::from_pretrained(folder, options);
}

} // namespace

std::shared_ptr<zoo::Model> lazy_text_classifier(
    const std::filesystem::path& folder,
    const std::vector<std::string>& classes,
    const zoo::LayerContext& context,
    bool strict) {
  return lazy_model(
      folder,
      class_fields(
          classes, classes.empty() ? "" : "single_label_classification"),
      context,
      strict);
}

std::shared_ptr<zoo::Model> lazy_text_regressor(
    const std::filesystem::path& folder,
    const zoo::LayerContext& context,
    bool strict) {
  return lazy_model(folder, class_fields({}, "regression"), context, strict);
}

bool predicts_numbers(const zoo::Model& model) {
  const TrainedHead head = trained_head(model);
  return head.kind == HeadKind::kClasses && head.classes == 0;
}

std::vector<std::string> classes_of(const zoo::Model& model) {
  std::vector<std::string> classes;
  const auto names = model.config().find("id2label");
  TESSERA_CHECK(
      names != model.config().end() && names->is_object() && !names->empty(),
      "the model's config.json has no 'id2label', the names of its classes; give the folder of a trained classifier");
  for (size_t i = 0; i < names->size(); ++i) {
    const auto name = names->find(std::to_string(i));
    TESSERA_CHECK(
        name != names->end() && name->is_string(),
        "the model's config.json: 'id2label' has {} names, but none for class {}",
        names->size(),
        i);
    classes.push_back(name->get<std::string>());
  }
  return classes;
}

} // namespace tessera::zoo
