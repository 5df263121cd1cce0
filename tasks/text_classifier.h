// SPDX-License-Identifier: Apache-2.0
#pragma once
// lazy_text_classifier() constructs a sequence classifier from a Hugging Face
// folder.

#include "tessera/tasks/text_classification_data.h"
#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/models/model.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace tessera::tasks {

/// The config.json entries for classes of these names and this problem_type;
/// without what is empty. "regression" without names has one output, which
/// gets transformers' default name.
nlohmann::json class_fields(
    std::vector<std::string> names,
    const std::string& problem_type);

/// The same for the labels of texts, or for the number that they have.
nlohmann::json class_fields(const LabelledTexts& texts);

/// Whether there is a class, are several, or numbers for each example.
bool predicts_for_examples(zoo::HeadLabels labels);

/// Whether a head is that of a classifier of texts.
bool classifies_texts(const zoo::Head& head);

/// The sequence classifier of a Hugging Face folder's family, without memory:
/// see FromPretrainedOptions::lazy. A head that the checkpoint lacks is newly
/// initialized from the default generator, which ranks must seed alike.
/// @param classes of class_fields(); empty: those of config.json.
/// @param order of the classes.
/// @param strict see FromPretrainedOptions::strict.
/// @param tokenizer its padding token is the model's if config.json has none;
///     may be null.
/// @throws tessera::Error as from_pretrained(); also if the family has no
///     classifier, or the checkpoint has one for other classes.
std::shared_ptr<zoo::Model> lazy_text_classifier(
    const std::filesystem::path& folder,
    const nlohmann::json& classes = nlohmann::json::object(),
    const zoo::LayerContext& context = {},
    bool strict = true,
    const text::Tokenizer* tokenizer = nullptr,
    zoo::ClassOrder order = zoo::ClassOrder::kOfCheckpoint);

/// The names of a classifier's classes, in the order of its logits.
std::vector<std::string> classes_of(const zoo::Model& model);

} // namespace tessera::tasks
