// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LanguageModelTask` trains a causal language model on a file of tokens;
// evaluate_language_model() scores it.

#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/tasks/model_task.h"
#include "tessera/zoo/tasks/token_file.h"

#include <memory>

namespace tessera::zoo {

/// @throws tessera::Error unless the model is causal, has a language model
///     head, and takes sequences of `length` tokens; names the keys of the
///     configuration.
void check_language_model(const zoo::Model& model, int64_t length);

/// @throws tessera::Error if `tokens` has no sequence of `length` tokens.
void check_has_text(const TokenFile& tokens, int64_t length);

/// Checks that all tokens are in the model's vocabulary; each rank reads its
/// share of the file. Collective over the job.
/// @param model of which check_language_model() holds.
/// @throws tessera::Error on all ranks, with file, position and value of the
///     first token that is not.
void check_tokens(
    World& world,
    const TokenFile& tokens,
    const zoo::Model& model);

/// Next-token cross-entropy over sequences of `length` tokens: the file is cut
/// into consecutive sequences, which are shuffled. The first token of each is
/// not predicted.
class LanguageModelTask : public ModelTask {
 public:
  /// @param model with a language model head, or a pipeline stage of one.
  /// @param tokens outlives the task; see check_tokens().
  /// @throws tessera::Error if `length` is not divisible over the ranks that
  ///     divide sequences, or if the sequences do not fill a batch.
  LanguageModelTask(
      const std::shared_ptr<zoo::Model>& model,
      const TokenFile& tokens,
      int64_t length,
      const Options& options);
};

struct LanguageModelScore {
  double loss = 0; ///< mean cross-entropy per token, in nats
  int64_t tokens = 0; ///< number of predicted tokens
};

/// Scores the wrapped model on all sequences of `tokens`. Collective.
/// @return the same on all ranks.
LanguageModelScore evaluate_language_model(
    ParallelRun& parallel,
    Engine& engine,
    zoo::Model& model,
    const TokenFile& tokens,
    int64_t length,
    int64_t batch_size);

} // namespace tessera::zoo
