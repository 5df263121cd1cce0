// SPDX-License-Identifier: Apache-2.0
#pragma once
// Going on with texts.

#include "tessera/engine/parallel_run.h"
#include "tessera/zoo/generation/generate_options.h"
#include "tessera/zoo/models/model.h"

#include <ATen/core/Tensor.h>

namespace tessera::zoo {

/// Goes on with texts token by token, reading each of them once, without
/// gradients.
///
/// Where ranks divide the model, all of them are given the same texts, and
/// return the same. The stages of a pipeline work on as many groups of texts at
/// a time as there are. Collective; blocks.
/// @param model with a language model's head, in evaluation mode; may be
///     wrapped by an engine.
/// @param prompt input_ids [B, S] and attention_mask, texts that are padded on
///     the left; of an encoder-decoder, the texts that are answered, with
///     padding anywhere. Nothing else.
/// @param parallel null where no ranks divide layers.
/// @return int64 [B * num_return_sequences, S + n] on the CPU: the texts with
/// up
///     to max_new_tokens more, of an encoder-decoder the answers behind their
///     first token; those of a text one after the other, of beams the best
///     first; behind the end of a text pad_token_id.
/// @throws tessera::Error when the model cannot go on with texts, they are too
///     long for it with the new tokens, or options are out of range.
at::Tensor generate(
    Model& model,
    const ModelInput& prompt,
    const GenerateOptions& options,
    ParallelRun* parallel = nullptr);

} // namespace tessera::zoo
