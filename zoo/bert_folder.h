// SPDX-License-Identifier: Apache-2.0
#pragma once
// BERT from and to a Hugging Face folder.

#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/bert.h"

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

/// The encoder with its pooler. Heads in the checkpoint are left out.
/// Names with and without the prefix `bert.` are taken, and LayerNorms named
/// gamma and beta.
/// @throws Error naming what is missing, unexpected or of the wrong shape.
BertModel load_bert(const std::filesystem::path& folder);

/// The classifier for the given classes, or, when none are given, for those of
/// config.json. A classifier that the checkpoint lacks is fresh: weights
/// N(0, initializer_range) from the default generator, which ranks must seed
/// alike; the log says so. Pretraining heads are left out.
/// @throws Error as load_bert; also when the checkpoint has a classifier for
/// another number of classes.
BertForSequenceClassification load_bert_for_sequence_classification(
    const std::filesystem::path& folder,
    const std::vector<std::string>& labels = {});

/// The same without memory: tessera::wrap reads each rank's part of the weights
/// only, and tessera::materialize() makes it whole. The folder must stay as it
/// is until then.
BertForSequenceClassification lazy_bert_for_sequence_classification(
    const std::filesystem::path& folder,
    const std::vector<std::string>& labels = {});

/// Writes an unsharded classifier as one Hugging Face folder; see
/// HfFolderWriter.
/// @param tokenizer_folder where the tokenizer's files are copied from.
void save_bert(
    const BertForSequenceClassification& model,
    const std::filesystem::path& folder,
    const std::filesystem::path& tokenizer_folder);

/// The same for a wrapped classifier, written by rank 0.
/// Collective.
void save_bert(
    const World& world,
    Engine& engine,
    const BertForSequenceClassification& model,
    const std::filesystem::path& folder,
    const std::filesystem::path& tokenizer_folder);

} // namespace tessera
