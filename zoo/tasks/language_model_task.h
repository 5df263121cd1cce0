// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training and scoring a language model on running text.

#include "tessera/zoo/tasks/model_task.h"
#include "tessera/zoo/tasks/token_file.h"

#include <memory>

namespace tessera::zoo {

/// @throws tessera::Error unless the model reads from left to right, has a
///     language model's head, and takes texts of `length` tokens; naming the
///     keys of the configuration.
void check_language_model(const zoo::Model& model, int64_t length);

/// @throws tessera::Error when `tokens` hold no text of `length` tokens.
void check_has_text(const TokenFile& tokens, int64_t length);

/// Cross-entropy of each next token, in texts of `length` tokens: the file is
/// cut into as many as there are, one behind the other, which are shuffled. The
/// first token of each is not predicted.
class LanguageModelTask : public ModelTask {
 public:
  /// @param model with a language model's head, or a stage's part of one.
  /// @param tokens outlives the task.
  /// @throws tessera::Error when ranks that divide sequences do not divide
  ///     `length`, or the texts do not fill a batch.
  LanguageModelTask(
      const std::shared_ptr<zoo::Model>& model,
      const TokenFile& tokens,
      int64_t length,
      const Options& options);
};

struct LanguageModelScore {
  double loss = 0; ///< mean cross-entropy of a token, in nats
  int64_t tokens = 0; ///< that were predicted
};

/// Scores the wrapped model on all texts of `tokens`. Collective.
/// @return the same on all ranks.
LanguageModelScore evaluate_language_model(
    ParallelRun& parallel,
    EngineRef engine,
    zoo::Model& model,
    const TokenFile& tokens,
    int64_t length,
    int64_t batch_size);

} // namespace tessera::zoo
