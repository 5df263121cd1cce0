// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/attention.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/sharding/checkpointing/checkpoint.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "tessera/sharding/tensor_parallel/local_heads.h"
#include "tessera/sharding/tensor_parallel/tensor_random.h"
#include "tessera/zoo/layers/context_attention.h"
#include "tessera/zoo/layers/operators.h"

#include <ATen/ops/dropout.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace tessera::zoo {

namespace {

constexpr int64_t kMostAttentionFeatures = int64_t{1} << 30;

/// Gives the call the pattern, or a mask of all where there is a bias.
void hide(const AttentionInput& input, AttentionCall& call) {
  if (!input.bias.defined() && !input.mask.defined()) {
    call.pattern = input.pattern;
    return;
  }
  call.mask = input.mask;
  if (input.pattern.defined()) {
    const at::Tensor seen = input.pattern.dense();
    call.mask = call.mask.defined() ? call.mask & seen : seen;
  }
  if (input.bias.defined()) {
    const at::Tensor bias = input.bias.to(call.query.scalar_type());
    call.mask =
        call.mask.defined()
            ? at::where(
                  call.mask, bias, -std::numeric_limits<double>::infinity())
            : bias;
  }
}

/// [B, S, heads * n] to [B, heads, S, n].
at::Tensor by_head(const at::Tensor& x, int64_t head_features) {
  return x.unflatten(-1, {-1, head_features}).transpose(1, 2);
}

} // namespace

AttentionOptions AttentionOptions::filled() const {
  AttentionOptions options = *this;
  TESSERA_CHECK(
      options.heads >= 1 &&
          (options.head_features > 0 || options.features % options.heads == 0),
      "attention: {} features are not divisible by {} heads",
      options.features,
      options.heads);
  if (options.head_features == 0) {
    options.head_features = options.features / options.heads;
  }
  TESSERA_CHECK(
      options.heads <= kMostAttentionFeatures &&
          options.head_features <= kMostAttentionFeatures / options.heads,
      "attention has {} heads of {} features; their product must be at most 2^30",
      options.heads,
      options.head_features);
  if (options.kv_heads == 0) {
    options.kv_heads = options.heads;
  }
  TESSERA_CHECK(
      options.kv_heads >= 1 && options.heads % options.kv_heads == 0,
      "attention has {} key/value heads, which do not divide its {} heads",
      options.kv_heads,
      options.heads);
  if (options.memory_features == 0) {
    options.memory_features = options.features;
  }
  if (options.query_deviation == 0) {
    options.query_deviation = options.deviation;
  }
  if (options.output_deviation == 0) {
    options.output_deviation = options.deviation;
  }
  return options;
}

at::Tensor attend(
    const LayerContext& context,
    const AttentionOptions& options,
    AttentionCall& call) {
  const ContextParallel* sequences = context.context();
  if (sequences == nullptr) {
    return options.function(call);
  }
  // The exchange of tokens is over the heads of this rank.
  const sharding::LocalHeads heads(call.query, call.key, call.value, call.mask);
  call.query = heads.query;
  call.key = heads.key;
  call.value = heads.value;
  call.mask = heads.mask;
  std::optional<sharding::TensorRandomScope> of_tokens;
  std::optional<sharding::TensorRandomScope> of_heads;
  if (call.dropout > 0) {
    of_tokens.emplace(*sequences->group, call.query.device());
    if (context.parallel() != nullptr) {
      of_heads.emplace(*context.parallel()->group, call.query.device());
    }
  }
  return heads.full(context_attention(call, options.function, *sequences));
}

at::Tensor recomputed_attend(
    const LayerContext& context,
    const AttentionOptions& options,
    const AttentionCall& call) {
  return checkpoint(
      CheckpointMode{},
      [context, options](AttentionCall& copy) {
        return attend(context, options, copy);
      },
      call);
}

AttentionImpl::AttentionImpl(
    const LayerContext& context,
    const AttentionOptions& options)
    : context_(context), options_(options.filled()) {
  const int64_t head = options_.head_features;
  const int64_t q_unit = head * (options_.heads / options_.kv_heads);
  query_ = Linear::column(
      *this,
      "query",
      context_,
      {options_.features,
       options_.kv_heads * q_unit,
       options_.query_bias,
       q_unit,
       options_.query_deviation,
       /*fine_unit=*/head,
       options_.length_scale});
  // Every rank has all keys and values where there are fewer heads of them than
  // ranks.
  const auto column =
      [&](const char* name, int64_t in, int64_t unit, bool bias) {
        return Linear::column(
            *this,
            name,
            context_,
            {in,
             options_.kv_heads * unit,
             bias,
             unit,
             options_.deviation,
             /*fine_unit=*/0,
             options_.length_scale});
      };
  key_ = column("key", options_.memory_features, head, options_.key_bias);
  value_ = column("value", options_.memory_features, head, options_.value_bias);
  output_ = Linear::row(
      *this,
      "output",
      context_,
      {options_.kv_heads * q_unit,
       options_.features,
       options_.output_bias,
       q_unit,
       options_.output_deviation,
       /*fine_unit=*/head,
       options_.length_scale});
  if (options_.query_key_norm) {
    NormOptions norm = *options_.query_key_norm;
    const auto add = [&](const char* name, int64_t heads) {
      norm.features = options_.norms_all_heads ? heads * head : head;
      return register_module(name, Norm(norm));
    };
    query_norm_ = add("query_norm", options_.heads);
    key_norm_ = add("key_norm", options_.kv_heads);
  }
}

std::array<at::Tensor, 3> AttentionImpl::project(
    const at::Tensor& hidden,
    const AttentionInput& input) {
  const int64_t head = options_.head_features;
  const bool is_cross = input.memory.defined();
  const KeyValueCache::KeysAndValues* kept =
      is_cross && input.cache != nullptr ? input.cache->kept(this) : nullptr;
  std::vector<at::Tensor> projected;
  if (is_cross) {
    projected = Linear::forward_columns(hidden, {&query_});
    if (kept == nullptr) {
      for (at::Tensor& one :
           Linear::forward_columns(input.memory, {&key_, &value_})) {
        projected.push_back(std::move(one));
      }
    }
  } else {
    projected = Linear::forward_columns(hidden, {&query_, &key_, &value_});
  }
  const auto normed = [&](const at::Tensor& x, Norm& norm) {
    if (!options_.query_key_norm) {
      return by_head(x, head);
    }
    return options_.norms_all_heads ? by_head(norm->forward(x), head)
                                    : norm->forward(by_head(x, head));
  };
  at::Tensor query = normed(projected[0], query_norm_);
  const bool is_rotated = input.rotary.cosines.defined();
  if (kept != nullptr) {
    return {
        is_rotated ? rotate(query, input.rotary) : query,
        kept->first,
        kept->second};
  }
  at::Tensor key = normed(projected[1], key_norm_);
  at::Tensor value = by_head(projected[2], head);
  if (is_rotated) {
    std::tie(query, key) = operators().rotated(query, key, input.rotary);
    if (options_.rotates_values) {
      value = rotate(value, input.rotary);
    }
  }
  if (input.cache != nullptr) {
    std::tie(key, value) = is_cross ? input.cache->keep(this, {key, value})
                                    : input.cache->extend(this, key, value);
  }
  return {query, key, value};
}

at::Tensor AttentionImpl::forward(
    const at::Tensor& hidden,
    const AttentionInput& input) {
  TESSERA_CHECK(
      !options_.causal || !input.bias.defined() || input.mask.defined() ||
          input.pattern.defined(),
      "Attention: causal attention with a bias needs a causal mask");
  TESSERA_CHECK(
      context_.context() == nullptr || !input.memory.defined() ||
          context_.context()->kind == ContextKind::kUlysses,
      "Attention: ring attention does not support cross-attention; use Ulysses");
  const auto [query, key, value] = project(hidden, input);
  AttentionCall call{query, key, value};
  hide(input, call);
  // A single new token attends to all keys, so it needs no causal mask.
  call.causal = options_.causal && !call.mask.defined() &&
                !call.pattern.defined() && query.size(2) > 1;
  TESSERA_CHECK(
      !call.causal || query.size(2) == key.size(2),
      "Attention: {} tokens that follow cached ones need a mask",
      query.size(2));
  call.scale = options_.scale.value_or(
      1 / std::sqrt(static_cast<double>(options_.head_features)));
  call.dropout = is_training() ? options_.dropout : 0;
  if (call.dropout > 0 && context_.parallel() != nullptr &&
      context_.context() == nullptr &&
      runtime::computes_on_cpu(query.device()) && !is_dtensor(query)) {
    // One rank of a group: the arithmetic of several.
    call.drop_weights = [p = call.dropout](const at::Tensor& weights) {
      return at::dropout(weights, p, true);
    };
  }
  const at::Tensor attended = recomputes_core
                                  ? recomputed_attend(context_, options_, call)
                                  : attend(context_, options_, call);
  return output_.forward(attended.transpose(1, 2).flatten(2));
}

} // namespace tessera::zoo
