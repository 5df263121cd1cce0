// SPDX-License-Identifier: Apache-2.0
#pragma once
// `reduce_terms()` adds up arrays or takes their maximum, for reductions over
// ranks.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::runtime {

enum class ReduceKind { kSum, kMax };

/// out[i] = terms[0][i] + terms[1][i] + ..., added in this order, or the
/// maximum. Sums of bfloat16 and float16 are computed in float32 and rounded
/// once. Deterministic: the same bits on every device. Runs on the calling
/// thread, or on the current stream.
/// @param terms two or more arrays of `numel` elements of `dtype`.
/// @param out an array of the same size and dtype; may be one of the terms.
/// @param device where the arrays are.
void reduce_terms(
    std::span<const std::byte* const> terms,
    std::byte* out,
    int64_t numel,
    c10::ScalarType dtype,
    ReduceKind kind,
    c10::Device device = c10::kCPU);

} // namespace tessera::runtime
