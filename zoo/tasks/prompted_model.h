// SPDX-License-Identifier: Apache-2.0
#pragma once
// prompted_model() constructs the language model that goes on with a run's
// prompts; prompted_labels() says which labels it is asked for.

#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/tasks/prompt_batches.h"
#include "tessera/zoo/tasks/prompt_template.h"
#include "tessera/zoo/tasks/text_classification_data.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

struct TrainingConfig;

/// The language model in TrainingConfig::model_folder, without memory.
std::shared_ptr<Model> prompted_model(
    const TrainingConfig& config,
    const LayerContext& context);

/// Whether a head is that of a language model that can go on with prompts, or
/// fill their blanks.
bool goes_on_with_prompts(const Head& head);

PromptKind prompt_kind_of(const Model& model);

/// @throws tessera::Error if the template has a blank that the model does not
///     fill, or none for one that does.
void check_template(const PromptTemplate& prompt, const Model& model);

/// How prompts become the inputs of a model.
TextInputs prompt_inputs(const Model& model, const text::Tokenizer& tokenizer);

/// Whether only the training data say what the labels of prompts are: a
/// language model does not, unlike a classifier.
bool labels_are_in_data(const TrainingConfig& config);

/// The labels of prompts: those of the preset, of the verbalizers or the data.
/// @param train read if labels_are_in_data().
std::vector<std::string> prompted_labels(
    const TrainingConfig& config,
    const std::optional<LabelledTexts>& train);

} // namespace tessera::zoo
