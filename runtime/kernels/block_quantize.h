// SPDX-License-Identifier: Apache-2.0
#pragma once
// `encode_blocks_()`, `decode_blocks_()` and `sum_blocks_()` convert flat
// tensors to and from the formats in which shards and gradients are sent.

#include "tessera/runtime/kernels/block_format.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::runtime {

/// Whether tensors of this type can be sent so: float32, bfloat16, float16.
bool can_encode(at::ScalarType dtype);

// Values are flat and contiguous, of a type that can be encoded; `wire` is
// [parts * format.bytes(numel)] uint8 on the same device, see
// [Note: block format]. Deterministic, the same bits on all devices. On CUDA
// they run on the current stream and do not synchronize.
// @throws tessera::Error on other sizes, types or devices.

/// @param values [parts * numel].
void encode_blocks_(
    const at::Tensor& wire,
    const at::Tensor& values,
    const BlockFormat& format,
    int64_t parts = 1);

/// @param values [parts * numel].
void decode_blocks_(
    const at::Tensor& values,
    const at::Tensor& wire,
    const BlockFormat& format,
    int64_t parts = 1);

/// values[i] = factor * sum over the parts of value i, added in float32 in the
/// order of the parts. Not of nf4.
/// @param values [numel].
void sum_blocks_(
    const at::Tensor& values,
    const at::Tensor& wire,
    const BlockFormat& format,
    int64_t parts,
    double factor = 1);

namespace detail {

/// The same on the CPU. @param arrays in host memory.
void run_blocks_cpu(const BlockArrays& arrays);

} // namespace detail

} // namespace tessera::runtime
