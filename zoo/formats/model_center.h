// SPDX-License-Identifier: Apache-2.0
#pragma once
// from_model_center() converts ModelCenter's configurations to Hugging Face's.

#include <nlohmann/json.hpp>

#include <string>

namespace tessera::zoo {

/// Whether a configuration uses ModelCenter's names: `dim_model`, or in a ViT
/// `mlp_size`.
bool is_model_center(const nlohmann::json& config);

/// The same model in Hugging Face's names. ModelCenter's files do not say which
/// model they are for: the caller adds `model_type`. Training options (`half`,
/// `..._init_mean`) are dropped. ModelCenter's `dropout_p` also applies to the
/// inner features of feed-forward layers, unlike in Hugging Face's models.
/// @throws tessera::Error on variants that no Hugging Face model has, such as
///     `length_scale` in other models than CPM, norms before BERT's layers,
///     biases in T5's or a layer before ViT's classifier, and on types that are
///     not implemented.
nlohmann::json from_model_center(
    const nlohmann::json& config,
    const std::string& origin);

/// For messages about renamed fields that the file has: "hidden_size is
/// 'dim_model', ...".
std::string model_center_names(
    const nlohmann::json& config,
    const std::string& origin);

} // namespace tessera::zoo
