// SPDX-License-Identifier: Apache-2.0
#pragma once
// `rotate_heads()` applies rotary positions (arXiv:2104.09864) to queries and
// keys in one pass over memory; see [Note: operators of layers].

#include <ATen/core/Tensor.h>

#include <utility>

namespace tessera::runtime {

/// Rotates the first 2 * half features of each head, by pairs of features
/// (i, i + half), or (2i, 2i + 1) if they are adjacent; copies the others.
/// Differentiable, any number of times: backward is the inverse rotation.
/// Saves the tables. Computes in float32 and rounds once. Deterministic. Runs
/// on the current stream; does not synchronize.
/// @param query [batch, heads, tokens, features], float32, bfloat16 or float16.
/// @param key the same with any number of heads.
/// @param cosines, sines [1 or batch, 1, tokens, half], without gradients, of
///   the same dtype.
/// @return both rotated; in memory a token's heads follow each other.
/// @throws tessera::Error on other dtypes, shapes or devices.
std::pair<at::Tensor, at::Tensor> rotate_heads(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    bool adjacent);

} // namespace tessera::runtime
