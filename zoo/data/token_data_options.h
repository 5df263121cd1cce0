// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TokenDataOptions` says how sequences are made of documents of tokens.

#include "tessera/zoo/data/tokenize_files.h"
#include "tessera/zoo/inputs/objective_options.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::zoo {

/// One of several files of training data.
struct BlendedFile {
  std::filesystem::path path;
  double weight = 1;
};

void visit_fields(runtime::OptionFields& fields, BlendedFile& file);

/// A part of the section `data` of the task language_model.
struct TokenDataOptions {
  /// Instead of one file; samples are drawn of each in proportion to its
  /// weight.
  std::vector<BlendedFile> blend;
  double split = 0; ///< the share of documents that is held out
  std::optional<int64_t> end_token; ///< see TokenFileOptions
  /// Tokens attend to their own document only, its positions begin at 0, and
  /// its first token is not predicted.
  bool separate_documents = false;
  ObjectiveOptions objective;
  /// How data that are text become tokens; without inputs and output.
  TokenizeOptions text;
  /// Where these tokens are; empty: `tokens` in the run folder.
  std::filesystem::path text_folder;
};

void visit_fields(runtime::OptionFields& fields, TokenDataOptions& options);

} // namespace tessera::zoo
