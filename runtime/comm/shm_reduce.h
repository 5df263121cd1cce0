// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arithmetic of reductions over ranks.

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

enum class ReduceKind { kSum, kMax };

/// out[i] = terms[0][i] + terms[1][i] + ..., added up in this order, or their
/// maximum. Sums of bfloat16 and float16 are taken in float32 and rounded once.
/// Deterministic. Runs in the calling thread.
/// @param terms two or more arrays of `numel` elements of `dtype`.
/// @param out the same; may be one of the terms.
void reduce_terms(
    std::span<const std::byte* const> terms,
    std::byte* out,
    int64_t numel,
    c10::ScalarType dtype,
    ReduceKind kind);

} // namespace tessera
