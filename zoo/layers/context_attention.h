// SPDX-License-Identifier: Apache-2.0
#pragma once
// context_attention() computes attention over sequences that are divided over
// ranks.

#include "tessera/sharding/context_parallel/context_parallel.h"
#include "tessera/zoo/layers/attention_function.h"

namespace tessera::zoo {

/// Takes this rank's tokens of query, key and value and the pattern or mask of
/// whole sequences; returns [B, h, own tokens, m]. Collective and blocking, in
/// backward too.
///
/// Ulysses calls `function` with whole sequences of some heads. Ring attention
/// replaces `function`, and takes patterns, but no masks.
/// @throws tessera::Error if heads are not divisible over the ranks (Ulysses);
///     on masks and dropout with ring attention, stating the reason.
at::Tensor context_attention(
    const AttentionCall& call,
    const AttentionFunction& function,
    const ContextParallel& cp);

} // namespace tessera::zoo
