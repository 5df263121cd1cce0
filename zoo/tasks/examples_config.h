// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a configuration file of `tessera train` says of a model that is trained
// on examples in files.

#include "tessera/zoo/tasks/example_batches.h"
#include "tessera/zoo/tasks/training_config.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Training of any model of the zoo that has a loss. Paths are relative to the
/// working folder.
struct ExamplesConfig : TrainingConfig {
  std::filesystem::path train_file; ///< or folder; see ExampleFiles
  std::filesystem::path heldout_file; ///< empty: nothing is scored
  /// Without ExampleOptions::sequence_multiple, which the ranks decide.
  ExampleOptions examples;
  /// Scoring tells which predictions are right; false: the loss alone, without
  /// logits of all tokens at a time.
  bool accuracy = true;
};

/// Reads a file, applies `key.path=value` overrides and checks everything.
/// @param resolved receives the whole configuration, defaults included.
/// @throws Error naming file, path, value and what was expected.
ExamplesConfig read_examples_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);

} // namespace tessera::zoo
