// SPDX-License-Identifier: Apache-2.0
#pragma once
// `from_model_center_weights()` gives the tensors of ModelCenter's checkpoints
// the names and layouts of transformers'.

#include "tessera/sharding/weights/weight_files.h"

#include <string>

namespace tessera::zoo {

/// Whether tensors are named as ModelCenter names layers.
bool has_model_center_names(const sharding::WeightFiles& files);

/// The tensors of BERT, RoBERTa, GPT-2, GPT-J, OPT, LLaMA, T5, GLM of 2021 and
/// ViT under transformers' names; nothing is read but GPT-J's norms. CPM's have
/// ModelCenter's names here and stay as they are, as do tensors that are not
/// known. ModelCenter's Longformer has a norm more than transformers'.
/// @param model_type of config.json.
/// @throws tessera::Error if a part of a tensor is missing, or for Longformer
///   and types that ModelCenter does not have.
sharding::WeightFiles from_model_center_weights(
    const sharding::WeightFiles& files,
    const std::string& model_type);

} // namespace tessera::zoo
