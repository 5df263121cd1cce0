// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks of the arguments in a batch.

#include "tessera/zoo/models/model.h"

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera::zoo {

/// @throws tessera::Error unless `ids` is [batch, sequence], not empty, int64
///     or int32, and, on the CPU, within 0 .. bound - 1; checking values on
///     another device would synchronize with it.
void check_ids(const char* name, const at::Tensor& ids, int64_t bound);

/// @throws tessera::Error if `tensor` is defined and its shape differs from
///     that of `ids`.
void check_same_shape(
    const char* name,
    const at::Tensor& tensor,
    const at::Tensor& ids);

/// The number of cached tokens before the input.
int64_t past_tokens(const ModelInput& input);

/// @throws tessera::Error if `mask` is defined and not [rows, tokens].
void check_mask(
    const char* name,
    const at::Tensor& mask,
    int64_t rows,
    int64_t tokens);

/// @throws tessera::Error naming an argument that is given and not in `taken`.
void check_not_taken(
    const ModelInput& input,
    std::span<const std::string_view> taken);

/// The inputs of decoders; the last one only if the model has token types.
inline constexpr std::array<std::string_view, 5> kDecoderInputs =
    {"input_ids", "attention_mask", "position_ids", "labels", "token_type_ids"};

} // namespace tessera::zoo
