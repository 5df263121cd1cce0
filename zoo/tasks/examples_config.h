// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ExamplesConfig` is the configuration of `tessera train` for the task
// "examples".

#include "tessera/zoo/tasks/example_batches.h"
#include "tessera/zoo/tasks/training_config.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Training of any model of the zoo that has a loss. Paths are relative to the
/// working directory.
struct ExamplesConfig : TrainingConfig {
  std::filesystem::path train_file; ///< a file or a folder; see ExampleFiles
  std::filesystem::path heldout_file; ///< empty: no scoring
  /// Without ExampleOptions::sequence_multiple, which depends on the layout of
  /// ranks.
  ExampleOptions examples;
  /// Scoring also reports accuracy; false: the loss only, without materializing
  /// the logits of all tokens.
  bool accuracy = true;
};

void visit_fields(runtime::OptionFields& fields, ExamplesConfig& config);

/// Reads a file, applies `key.path=value` overrides and validates everything.
/// @param resolved receives the whole configuration, defaults included.
/// @throws Error naming file, path, value and what was expected.
ExamplesConfig read_examples_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);

} // namespace tessera::zoo
