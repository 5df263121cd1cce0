// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which key a query may attend to: bool tensors, true for yes, that broadcast
// to [batch, heads, queries, keys].

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <initializer_list>

namespace tessera::zoo {

/// attention_mask [B, S], 0 where a token is padding -> [B, 1, 1, S]; an
/// undefined one stays undefined: no padding.
at::Tensor padding_mask(const at::Tensor& attention_mask);

/// A query sees keys up to its own place: [1, 1, S, S].
at::Tensor causal_mask(int64_t length, const at::Device& device);

/// A query sees keys less than `window` places away, itself included: [1, 1, S,
/// S]; to be combined with causal_mask() for one-sided windows.
at::Tensor window_mask(
    int64_t length,
    int64_t window,
    const at::Device& device);

/// A query sees the first keys: as many as lengths [B] says -> [B, 1, 1, S]; to
/// be combined with causal_mask() by |.
at::Tensor prefix_mask(const at::Tensor& lengths, int64_t length);

/// A query sees keys of its own document: ids [B, S] -> [B, 1, S, S].
at::Tensor document_mask(const at::Tensor& document_ids);

/// What all of them allow; undefined ones allow everything.
at::Tensor all_of(std::initializer_list<at::Tensor> masks);

/// A query that sees nothing gets to see all: a softmax over nothing is NaN,
/// and kernels differ in how they treat it. Its result means nothing anyway.
at::Tensor with_safe_rows(const at::Tensor& mask);

/// Positions that count the tokens and skip padding: int64 [B, S], -1 where
/// attention_mask [B, S] is 0.
at::Tensor positions_without_padding(const at::Tensor& attention_mask);

} // namespace tessera::zoo
