// SPDX-License-Identifier: Apache-2.0
#pragma once
// lazy_text_classifier() constructs a sequence classifier from a Hugging Face
// folder.

#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/models/model.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace tessera::zoo {

/// The sequence classifier of a Hugging Face folder's family, without memory:
/// see zoo::FromPretrainedOptions::lazy. A head that the checkpoint lacks is
/// newly initialized from the default generator, which ranks must seed alike.
/// @param classes their names; empty: those of config.json.
/// @param strict see zoo::FromPretrainedOptions::strict.
/// @throws tessera::Error as zoo::from_pretrained(); also if the family has no
///     classifier, or the checkpoint has one for other classes.
std::shared_ptr<zoo::Model> lazy_text_classifier(
    const std::filesystem::path& folder,
    const std::vector<std::string>& classes = {},
    const zoo::LayerContext& context = {},
    bool strict = true);

/// The same with one output that predicts a number, transformers'
/// problem_type "regression".
std::shared_ptr<zoo::Model> lazy_text_regressor(
    const std::filesystem::path& folder,
    const zoo::LayerContext& context = {},
    bool strict = true);

/// Whether a sequence classifier predicts numbers instead of classes.
bool predicts_numbers(const zoo::Model& model);

/// The names of a classifier's classes, in the order of its logits.
std::vector<std::string> classes_of(const zoo::Model& model);

} // namespace tessera::zoo
