// SPDX-License-Identifier: Apache-2.0
#pragma once
// tokenize_data() makes the token files of a language model whose data are
// text.

#include "tessera/tasks/training_config.h"

#include <string>
#include <vector>

namespace tessera::tasks {

/// Whether names are text, and not one token file: a pattern, several names, or
/// a file that is text by its content or suffix.
bool are_texts(const std::vector<std::string>& names);

/// Tokenizes the data that are texts on rank 0, or takes the files of an
/// earlier run if text, tokenizer and options are the same, and names them in
/// TrainingConfig::data instead. An interrupted call goes on.
/// Collective; blocks.
/// @param state training data are made if they are read, and named anyway.
/// @throws tessera::Error on all ranks: as tokenize_files(), and without a
///     tokenizer.
void tokenize_data(TrainingConfig& config, World& world, ModelState state);

} // namespace tessera::tasks
