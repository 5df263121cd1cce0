// SPDX-License-Identifier: Apache-2.0
#pragma once
// generate() produces tokens from a language model, greedily, by sampling or by
// beam search.

#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/zoo/generation/generate_options.h"
#include "tessera/zoo/generation/prompt_cache.h"
#include "tessera/zoo/generation/text_search.h"
#include "tessera/zoo/models/model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo {

/// The options for what follows one prompt: max_length, min_length and
/// fit_to_model as numbers of new tokens.
/// @param prompt_length without padding; of an encoder-decoder any.
/// @throws tessera::Error if they leave no room for a new token.
GenerateOptions options_after(
    const Model& model,
    const GenerateOptions& options,
    int64_t prompt_length);

/// Generates token by token with a key-value cache, without gradients.
///
/// What follows a prompt is what follows it alone, up to rounding of the
/// model's scores: rules, lengths, positions and draws see no padding and no
/// other prompt. Prompts that may have other numbers of new tokens, and with
/// rotary positions that depend on the length (dynamic NTK) those of other
/// lengths, are continued one after the other.
///
/// If ranks partition the model, all of them are given the same prompts and
/// return the same result. In a pipeline, as many groups of prompts are in
/// flight as there are pipeline stages. Collective; blocks.
/// @param model with a language model head, in evaluation mode; may be wrapped
///     by an engine.
/// @param prompt input_ids [B, S] and attention_mask, padded on the left, and
///     Model::continued_inputs(); for an encoder-decoder the encoder's input,
///     with padding anywhere. A model that fills blanks
///     (Model::fills_blanks()) needs `sep` [B] and position_ids [B, 2, S] too,
///     see BlankedText; new tokens keep the last position, and count on within
///     the blank. Nothing else.
/// @param parallel null if no ranks partition the layers.
/// @param ends further reasons for a sequence to end.
/// @param kept of earlier calls with the same model; updated. A prompt is read
///     from where it differs from the text before, the result being that of the
///     whole prompt up to rounding. Only for one prompt without padding and
///     Model::keeps_cache(); otherwise, it is left as it is.
/// @return int64 [B * num_return_sequences, S + n] on the CPU: the prompts
///     followed by up to max_new_tokens tokens; for an encoder-decoder the
///     decoder's sequences, which begin with its start token. The sequences of
///     one prompt are adjacent, with beams the best first. pad_token_id follows
///     the end of a sequence, see new_tokens_of().
/// @throws tessera::Error if the model cannot generate, prompt and new tokens
///     together are too long for it, or an option is out of range.
at::Tensor generate(
    Model& model,
    const ModelInput& prompt,
    const GenerateOptions& options,
    ParallelRun* parallel = nullptr,
    const EndsSequence& ends = {},
    PromptCache* kept = nullptr);

/// The new tokens of one sequence, with the one that ends it, and without
/// pad_token_id after it.
/// @param options, prompt, sequences arguments and result of generate(), which
///     had no other reasons for a sequence to end.
/// @param row of the sequences.
std::vector<int64_t> new_tokens_of(
    const Model& model,
    const GenerateOptions& options,
    const ModelInput& prompt,
    const at::Tensor& sequences,
    int64_t row);

} // namespace tessera::zoo
