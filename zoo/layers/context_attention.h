// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention functions over sequences that are divided over ranks.

#include "tessera/sharding/parallel/context_parallel.h"
#include "tessera/zoo/layers/attention_function.h"

namespace tessera::zoo {

/// The call with this rank's tokens of query, key and value, and the mask of
/// whole sequences -> [B, h, own tokens, m]. Collective, blocks; its backward
/// too.
///
/// Ulysses calls `function` with whole sequences of some heads. Ring attention
/// stands in its place, and has causal masks only.
/// @throws tessera::Error when heads do not divide (Ulysses), and on masks and
///     dropout with ring attention, with the reason.
at::Tensor context_attention(
    const AttentionCall& call,
    const AttentionFunction& function,
    const ContextParallel& how);

} // namespace tessera::zoo
