// SPDX-License-Identifier: Apache-2.0
#pragma once
// What may be wrong with a batch.

#include "tessera/zoo/models/model.h"

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera::zoo {

/// @throws tessera::Error unless `ids` is [batch, sequence], not empty, of
///     int64 or int32, and, on the CPU, within 0 .. bound - 1; elsewhere
///     looking would wait for the device.
void check_ids(const char* name, const at::Tensor& ids, int64_t bound);

/// @throws tessera::Error when `tensor` is defined and not of ids' shape.
void check_same_shape(
    const char* name,
    const at::Tensor& tensor,
    const at::Tensor& ids);

/// Tokens before those of the input.
int64_t past_tokens(const ModelInput& input);

/// @throws tessera::Error when `mask` is defined and not [rows, tokens].
void check_mask(
    const char* name,
    const at::Tensor& mask,
    int64_t rows,
    int64_t tokens);

/// @throws tessera::Error naming an argument that is given and not in `taken`.
void check_not_taken(
    const ModelInput& input,
    std::span<const std::string_view> taken);

/// What decoders take; the last one where the model has token types.
inline constexpr std::array<std::string_view, 5> kDecoderInputs =
    {"input_ids", "attention_mask", "position_ids", "labels", "token_type_ids"};

} // namespace tessera::zoo
