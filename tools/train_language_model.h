// SPDX-License-Identifier: Apache-2.0
#pragma once
// `tessera train` of a language model.

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

/// Trains as a configuration says, writes the model as a Hugging Face folder
/// and, where there is held-out text, scores it. Collective over the job.
void train_language_model(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides);

} // namespace tessera
