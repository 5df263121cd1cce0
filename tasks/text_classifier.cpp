// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/text_classifier.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/tasks/text_batches.h"
#include "tessera/zoo/models/pretrained.h"

namespace tessera::tasks {

nlohmann::json class_fields(
    std::vector<std::string> names,
    const std::string& problem_type) {
  nlohmann::json fields = nlohmann::json::object();
  if (!problem_type.empty()) {
    fields["problem_type"] = problem_type;
  }
  if (names.empty() && problem_type == "regression") {
    names = {"LABEL_0"};
  }
  if (names.empty()) {
    return fields;
  }
  fields.update(zoo::class_name_fields(names));
  return fields;
}

nlohmann::json class_fields(const LabelledTexts& texts) {
  return texts.kind == LabelKind::kNumbers
             ? class_fields({}, "regression")
             : class_fields(
                   labels_of(texts),
                   texts.have_several_labels ? "multi_label_classification"
                                             : "single_label_classification");
}

bool predicts_for_examples(zoo::HeadLabels labels) {
  return labels == zoo::HeadLabels::kClass ||
         labels == zoo::HeadLabels::kClasses ||
         labels == zoo::HeadLabels::kNumbers;
}

bool classifies_texts(const zoo::Head& head) {
  return head.vocab() > 0 && predicts_for_examples(head.labels());
}

std::shared_ptr<zoo::Model> lazy_text_classifier(
    const std::filesystem::path& folder,
    const nlohmann::json& classes,
    const zoo::LayerContext& context,
    bool strict,
    const text::Tokenizer* tokenizer,
    zoo::ClassOrder order) {
  zoo::FromPretrainedOptions options;
  options.context = context;
  options.lazy = true;
  options.strict = strict;
  options.head = {"classifier of texts", classifies_texts};
  options.config = classes;
  options.fresh_heads = !classes.empty();
  options.class_order = order;
  const auto file = folder / "config.json";
  if (tokenizer != nullptr && std::filesystem::exists(file)) {
    // Decoders classify at the last token that is not padding.
    const auto config =
        runtime::parse_json(runtime::read_text_file(file), file.string());
    const auto padding = padding_token(config, *tokenizer);
    if (padding && config.value("pad_token_id", nlohmann::json()) != *padding) {
      options.config["pad_token_id"] = *padding;
    }
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

} // namespace tessera::tasks
