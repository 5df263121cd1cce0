// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/text_classifier.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/json_fields.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/registry.h"
#include "tessera/zoo/tasks/configured_model.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

std::shared_ptr<zoo::Model> lazy_text_classifier(
    const std::filesystem::path& folder,
    const std::vector<std::string>& classes,
    const zoo::LayerContext& context,
    bool strict) {
  zoo::FromPretrainedOptions options;
  options.context = context;
  options.lazy = true;
  options.strict = strict;
  options.head = "ForSequenceClassification";
  if (!classes.empty()) {
    options.config = class_fields(classes);
    options.fresh_heads = true;
    options.config["problem_type"] = "single_label_classification";
  }
  return zoo::from_pretrained(folder, options);
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
