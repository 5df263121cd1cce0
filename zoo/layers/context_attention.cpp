// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/context_attention.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/context_parallel/ring_attention.h"
#include "tessera/sharding/context_parallel/ulysses_attention.h"

namespace tessera::zoo {

namespace {

at::Tensor over_ring(const AttentionCall& call, const ContextParallel& cp) {
  TESSERA_CHECK(
      !call.mask.defined(),
      "ring attention does not support biases, because no rank holds a [queries, keys] bias of whole sequences. Use Ulysses (parallel.context_attention)");
  TESSERA_CHECK(
      call.dropout == 0,
      "ring attention does not support dropout of attention weights, which is {}; set it to 0 in config.json (attn_pdrop, attention_dropout or attention_probs_dropout_prob), or use Ulysses (parallel.context_attention)",
      call.dropout);
  return sharding::ring_attention(
      call.query,
      call.key,
      call.value,
      *cp.ring,
      {call.causal, call.scale, cp.layout, call.pattern});
}

} // namespace

at::Tensor context_attention(
    const AttentionCall& call,
    const AttentionFunction& function,
    const ContextParallel& cp) {
  if (cp.group->size() == 1) {
    return function(call);
  }
  if (cp.kind == ContextKind::kRing) {
    return over_ring(call, cp);
  }
  return sharding::ulysses_attention(
      call.query,
      call.key,
      call.value,
      *cp.group,
      cp.layout,
      [&](const at::Tensor& query,
          const at::Tensor& key,
          const at::Tensor& value) {
        AttentionCall self_call = call;
        self_call.query = query;
        self_call.key = key;
        self_call.value = value;
        const int64_t heads = call.query.size(1);
        if (call.mask.defined() && call.mask.dim() == 4 && heads > 1 &&
            call.mask.size(1) == heads) {
          const sharding::HeadRange range = sharding::ulysses_heads(
              heads, cp.group->rank(), cp.group->size());
          self_call.mask = call.mask.narrow(1, range.begin, range.length);
        }
        return function(self_call);
      });
}

} // namespace tessera::zoo
