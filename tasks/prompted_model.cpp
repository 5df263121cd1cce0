// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/prompted_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/text_classification_task.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/models/registry.h"

#include <algorithm>

namespace tessera::tasks {

std::shared_ptr<zoo::Model> prompted_model(
    const TrainingConfig& config,
    const zoo::LayerContext& context) {
  return pretrained_model(
      config, context, {"language model", goes_on_with_prompts});
}

bool goes_on_with_prompts(const zoo::Head& head) {
  const auto objectives = head.objectives();
  return head.labels() == zoo::HeadLabels::kNextTokens ||
         !head.trimmed_with_labels().empty() ||
         std::find(
             objectives.begin(),
             objectives.end(),
             zoo::ObjectiveKind::kBlankFilling) != objectives.end();
}

PromptKind prompt_kind_of(const zoo::Model& model) {
  return model.fills_blanks()  ? PromptKind::kBlank
         : model.first_token() ? PromptKind::kEncoderDecoder
                               : PromptKind::kDecoder;
}

void check_template(const PromptTemplate& prompt, const zoo::Model& model) {
  TESSERA_CHECK(
      prompt.has_blank() == model.fills_blanks(),
      "data.template: a {} {}",
      model.architecture(),
      model.fills_blanks()
          ? "fills blanks: write [MASK] where the label goes, in place of [label]"
          : "fills no blanks: end with [label] in place of [MASK]");
}

TextInputs prompt_inputs(
    const zoo::Model& model,
    const text::Tokenizer& tokenizer) {
  // Padding is masked: any token will do.
  return {
      .padding_token = padding_token(model.config(), tokenizer).value_or(0)};
}

bool labels_are_in_data(const TrainingConfig& config) {
  const auto& options = config.as<TextClassificationOptions>();
  return !options.columns.prompt.empty() && options.columns.preset == nullptr &&
         options.verbalizers.empty();
}

std::vector<std::string> prompted_labels(
    const TrainingConfig& config,
    const std::optional<LabelledTexts>& train) {
  const auto& options = config.as<TextClassificationOptions>();
  if (options.columns.preset != nullptr) {
    return options.columns.preset->labels;
  }
  if (labels_are_in_data(config)) {
    return labels_of(*train);
  }
  std::vector<std::string> labels;
  for (const std::string& one : options.verbalizers) {
    labels.push_back(one.substr(0, one.find('=')));
  }
  return labels;
}

} // namespace tessera::tasks
