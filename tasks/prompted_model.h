// SPDX-License-Identifier: Apache-2.0
#pragma once
// prompted_model() constructs the language model that goes on with a run's
// prompts; prompted_labels() says which labels it is asked for.

#include "tessera/tasks/prompt_batches.h"
#include "tessera/tasks/prompt_template.h"
#include "tessera/tasks/text_classification_data.h"
#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/models/model.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::tasks {

struct TrainingConfig;

/// The language model in TrainingConfig::model_folder, without memory.
std::shared_ptr<zoo::Model> prompted_model(
    const TrainingConfig& config,
    const zoo::LayerContext& context);

/// Whether a head is that of a language model that can go on with prompts, or
/// fill their blanks.
bool goes_on_with_prompts(const zoo::Head& head);

PromptKind prompt_kind_of(const zoo::Model& model);

/// @throws tessera::Error if the template has a blank that the model does not
///     fill, or none for one that does.
void check_template(const PromptTemplate& prompt, const zoo::Model& model);

/// How prompts become the inputs of a model.
TextInputs prompt_inputs(
    const zoo::Model& model,
    const text::Tokenizer& tokenizer);

/// Whether only the training data say what the labels of prompts are: a
/// language model does not, unlike a classifier.
bool labels_are_in_data(const TrainingConfig& config);

/// The labels of prompts: those of the preset, of the verbalizers or the data.
/// @param train read if labels_are_in_data().
std::vector<std::string> prompted_labels(
    const TrainingConfig& config,
    const std::optional<LabelledTexts>& train);

} // namespace tessera::tasks
