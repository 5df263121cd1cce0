// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LanguageModelOptions` are the options of the task language_model.

#include "tessera/zoo/data/token_data_options.h"
#include "tessera/zoo/data/token_file.h"

namespace tessera::tasks {

/// Parts of the section `data`.
struct LanguageModelOptions {
  zoo::TokenType token_type = zoo::TokenType::kUint16; ///< of a file of tokens
  zoo::TokenDataOptions tokens;
};

} // namespace tessera::tasks
