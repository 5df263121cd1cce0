// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FinetuneConfig` is the configuration of `tessera train` for the task
// "text_classification".

#include "tessera/zoo/tasks/text_classification_data.h"
#include "tessera/zoo/tasks/training_config.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Fine-tuning of a classifier. Paths are relative to the working directory.
struct FinetuneConfig : TrainingConfig {
  int64_t max_length = 128;
  std::filesystem::path train_file;
  std::filesystem::path heldout_file; ///< empty: no scoring
  TextClassificationColumns columns;

  /// Whether the model predicts numbers instead of classes.
  bool is_regression() const {
    return problem_type == "regression";
  }
};

void visit_fields(runtime::OptionFields& fields, FinetuneConfig& config);

/// Reads a file, applies `key.path=value` overrides and validates everything.
/// @param resolved receives the whole configuration, defaults included.
/// @throws Error naming file, path, value and what was expected.
FinetuneConfig read_finetune_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);

} // namespace tessera::zoo
