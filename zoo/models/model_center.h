// SPDX-License-Identifier: Apache-2.0
#pragma once
// ModelCenter's configurations, as those of Hugging Face.

#include <nlohmann/json.hpp>

#include <string>

namespace tessera::zoo {

/// Whether a configuration has ModelCenter's names: `dim_model`.
bool is_model_center(const nlohmann::json& config);

/// The same model in Hugging Face's names. ModelCenter's files do not say which
/// model they are for: `model_type` is to be added. What concerns training
/// alone (`half`, `..._init_mean`) is left out; its `dropout_p` also drops
/// inner features of feed-forward layers, which Hugging Face's models do not.
/// @throws tessera::Error on variants that no model of Hugging Face's has, such
///     as `length_scale`, and on types that are not implemented.
nlohmann::json from_model_center(
    const nlohmann::json& config,
    const std::string& origin);

/// For messages about the renamed ones: "hidden_size is 'dim_model', ...", of
/// what the file has.
std::string model_center_names(
    const nlohmann::json& config,
    const std::string& origin);

} // namespace tessera::zoo
