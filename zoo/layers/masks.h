// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention masks: bool tensors, true where a query may attend to a key, that
// broadcast to [batch, heads, queries, keys].

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <initializer_list>

namespace tessera::zoo {

/// attention_mask [B, S], 0 at padding -> [B, 1, 1, S]; undefined (no padding)
/// stays undefined.
at::Tensor padding_mask(const at::Tensor& attention_mask);

/// A query attends to keys up to its own position: [1, 1, S, S].
at::Tensor causal_mask(int64_t length, const at::Device& device);

/// A query attends to keys less than `window` positions away, itself included:
/// [1, 1, S, S]. Combine with causal_mask() for one-sided windows.
at::Tensor window_mask(
    int64_t length,
    int64_t window,
    const at::Device& device);

/// A query attends to the first keys, lengths [B] of them -> [B, 1, 1, S].
/// Combine with causal_mask() by |.
at::Tensor prefix_mask(const at::Tensor& lengths, int64_t length);

/// A query attends to keys of its own document: ids [B, S] -> [B, 1, S, S].
at::Tensor document_mask(const at::Tensor& document_ids);

/// The conjunction of the masks; undefined ones allow everything.
at::Tensor all_of(std::initializer_list<at::Tensor> masks);

/// Lets a query that attends to nothing attend to everything: a softmax over
/// nothing is NaN, and kernels differ in how they treat it. Its result is
/// meaningless anyway.
at::Tensor with_safe_rows(const at::Tensor& mask);

/// Positions of tokens, not counting padding: int64 [B, S], -1 where
/// attention_mask [B, S] is 0.
at::Tensor positions_without_padding(const at::Tensor& attention_mask);

} // namespace tessera::zoo
