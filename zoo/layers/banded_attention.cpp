// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/banded_attention.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace tessera::zoo {

namespace {

/// Cuts queries into blocks, and gives each block its own, the previous and the
/// next block of keys.
class Blocks {
 public:
  Blocks(int64_t length, int64_t reach)
      : length_(length),
        reach_(reach),
        size_(std::min(reach, length)),
        count_((length + size_ - 1) / size_) {}

  int64_t count() const {
    return count_;
  }

  /// [B, h, S, n] -> [B * count, h, size, n].
  at::Tensor of_queries(const at::Tensor& x) const {
    return cut(x, 0).transpose(1, 2).flatten(0, 1);
  }

  /// [B, h, S, n] and [B, h, G, n] -> [B * count, h, G + 3 size, n].
  at::Tensor of_keys(const at::Tensor& x, const at::Tensor& global) const {
    const at::Tensor cut_x = cut(x, size_);
    const at::Tensor shared =
        global.unsqueeze(2).expand({-1, -1, count_, -1, -1});
    return at::cat(
               {shared,
                cut_x.narrow(2, 0, count_),
                cut_x.narrow(2, 1, count_),
                cut_x.narrow(2, 2, count_)},
               3)
        .transpose(1, 2)
        .flatten(0, 1);
  }

  /// [B * count, h, size, m] -> [B, h, S, m].
  at::Tensor joined(const at::Tensor& x) const {
    return x.unflatten(0, {-1, count_})
        .transpose(1, 2)
        .flatten(2, 3)
        .narrow(2, 0, length_);
  }

  /// The keys that each query sees: bool [B * count, 1, size, G + 3 size].
  at::Tensor mask(const BandedTokens& tokens) const {
    const auto index_options =
        torch::dtype(at::kLong).device(tokens.seen.device());
    const at::Tensor queries = torch::arange(size_, index_options).unsqueeze(1);
    const at::Tensor keys = torch::arange(-size_, 2 * size_, index_options);
    const at::Tensor band = (keys - queries).abs().le(reach_);
    const at::Tensor near = of_keys(
                                tokens.local.unsqueeze(1).unsqueeze(-1),
                                tokens.is_global.unsqueeze(1).unsqueeze(-1))
                                .transpose(2, 3);
    const int64_t global = tokens.is_global.size(1);
    return with_safe_rows(near & at::constant_pad_nd(band, {global, 0}, true));
  }

 private:
  /// Pads with `around` positions on both sides and cuts dimension 2 into
  /// blocks.
  at::Tensor cut(const at::Tensor& x, int64_t around) const {
    const int64_t behind = count_ * size_ - length_ + around;
    return at::constant_pad_nd(x, {0, 0, around, behind})
        .unflatten(2, {-1, size_});
  }

  int64_t length_;
  int64_t reach_;
  int64_t size_;
  int64_t count_;
};

/// Global tokens have their results elsewhere: as queries they are as others.
AttentionPattern pattern_of(const BandedTokens& tokens, int64_t reach) {
  const int64_t length = tokens.seen.size(1);
  AttentionPattern pattern =
      AttentionPattern::full(length, length, tokens.seen.device())
          .within_window(reach + 1)
          .without_padding(tokens.seen);
  pattern.global_keys = tokens.seen & ~tokens.local;
  return pattern;
}

/// Expands places [B, G] for a gather along dimension 1 of [B, S, n].
at::Tensor index_of(const at::Tensor& positions, int64_t features) {
  return positions.unsqueeze(-1).expand({-1, -1, features});
}

/// The same for dimension 2 of [B, h, S, n].
at::Tensor index_by_head(const at::Tensor& positions, const at::Tensor& x) {
  return positions.unsqueeze(1).unsqueeze(-1).expand(
      {-1, x.size(1), -1, x.size(3)});
}

} // namespace

BandedTokens BandedTokens::of(
    const at::Tensor& attention_mask,
    const at::Tensor& global_mask,
    const at::Tensor& ids) {
  BandedTokens tokens;
  tokens.seen = attention_mask.defined() ? attention_mask.ne(0)
                                         : torch::ones_like(ids, at::kBool);
  at::Tensor global = attention_mask.defined()
                          ? attention_mask.eq(2)
                          : torch::zeros_like(ids, at::kBool);
  if (global_mask.defined()) {
    global = global | global_mask.ne(0);
  }
  global = global & tokens.seen;
  tokens.local = tokens.seen & ~global;
  const auto most = global.sum(1).max().item<int64_t>();
  tokens.global_positions = at::argsort(
                                (~global).to(at::kByte),
                                /*stable=*/true,
                                1,
                                /*descending=*/false)
                                .narrow(1, 0, most);
  tokens.is_global = global.gather(1, tokens.global_positions);
  return tokens;
}

at::Tensor banded_attention(
    const AttentionCall& call,
    const BandedTokens& tokens,
    int64_t reach,
    const AttentionFunction& function) {
  TESSERA_CHECK(
      !call.mask.defined() && !call.pattern.defined() && !call.causal,
      "banded_attention: unexpected mask; pass windows and padding in BandedTokens");
  const Blocks blocks(call.query.size(2), reach);
  const auto keys = [&](const at::Tensor& x) {
    return blocks.of_keys(
        x, x.gather(2, index_by_head(tokens.global_positions, x)));
  };
  AttentionCall near = call;
  near.query = blocks.of_queries(call.query);
  near.key = keys(call.key);
  near.value = keys(call.value);
  near.mask = blocks.mask(tokens);
  return blocks.joined(function(near))
      .masked_fill(~tokens.seen.unsqueeze(1).unsqueeze(-1), 0);
}

BandedAttentionImpl::BandedAttentionImpl(
    const LayerContext& context,
    const AttentionOptions& options,
    int64_t reach)
    : context_(context), options_(options.filled()), reach_(reach) {
  TESSERA_CHECK(
      reach >= 1,
      "the reach of windowed attention is {} tokens; it must be 1 or more",
      reach);
  TESSERA_CHECK(
      options_.kv_heads == options_.heads && !options_.causal,
      "BandedAttention: shared key/value heads and causal windows are not implemented; use Attention with AttentionPattern::within_window()");
  const int64_t inner = options_.heads * options_.head_features;
  const auto column = [&](const char* name, bool bias, double deviation) {
    return Linear::column(
        *this,
        name,
        context_,
        {options_.features, inner, bias, options_.head_features, deviation});
  };
  const double query = options_.query_deviation;
  const double other = options_.deviation;
  query_ = column("query", options_.query_bias, query);
  key_ = column("key", options_.key_bias, other);
  value_ = column("value", options_.value_bias, other);
  global_query_ = column("global_query", options_.query_bias, query);
  global_key_ = column("global_key", options_.key_bias, other);
  global_value_ = column("global_value", options_.value_bias, other);
  output_ = Linear::row(
      *this,
      "output",
      context_,
      {inner,
       options_.features,
       options_.output_bias,
       options_.head_features,
       options_.output_deviation});
}

at::Tensor BandedAttentionImpl::by_head(const at::Tensor& features) const {
  return features.unflatten(-1, {-1, options_.head_features}).transpose(1, 2);
}

AttentionCall BandedAttentionImpl::call_of(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value) const {
  AttentionCall call{by_head(query), by_head(key), by_head(value)};
  call.scale = options_.scale.value_or(
      1 / std::sqrt(static_cast<double>(options_.head_features)));
  call.dropout = is_training() ? options_.dropout : 0;
  return call;
}

at::Tensor BandedAttentionImpl::look_at_all(
    const at::Tensor& entered,
    const BandedTokens& tokens) {
  // Without global tokens nothing is computed, but the projections still get
  // zero gradients, so that ranks with global tokens do not wait forever.
  const bool any = tokens.global_positions.size(1) > 0;
  const at::Tensor all = any ? entered : entered.narrow(1, 0, 0);
  const at::Tensor global =
      entered.gather(1, index_of(tokens.global_positions, entered.size(-1)));
  AttentionCall call = call_of(
      global_query_.forward(global),
      global_key_.forward(all),
      global_value_.forward(all));
  if (!any) {
    return call.query + call.key + call.value;
  }
  call.pattern =
      AttentionPattern::full(call.query.size(2), call.key.size(2), all.device())
          .without_padding(tokens.seen);
  return attended(std::move(call));
}

at::Tensor BandedAttentionImpl::attended(AttentionCall call) const {
  return recomputes_core ? recomputed_attend(context_, options_, call)
                         : attend(context_, options_, call);
}

at::Tensor BandedAttentionImpl::forward(
    const at::Tensor& hidden,
    const BandedTokens& tokens) {
  TESSERA_CHECK(
      context_.context() == nullptr,
      "BandedAttention: windows over sequences that are divided over context-parallel ranks are not implemented; use a context size of 1");
  const at::Tensor entered = full_tensor(hidden);
  const AttentionCall call = call_of(
      query_.forward(entered), key_.forward(entered), value_.forward(entered));
  AttentionCall skipping = call;
  skipping.pattern = pattern_of(tokens, reach_);
  at::Tensor made =
      skips_hidden_pairs(options_.function, skipping)
          ? attended(skipping).masked_fill(
                ~tokens.seen.unsqueeze(1).unsqueeze(-1), 0)
          : banded_attention(
                call, tokens, reach_, [this](const AttentionCall& near) {
                  return attended(near);
                });
  const at::Tensor global = look_at_all(entered, tokens);
  const at::Tensor index = index_by_head(tokens.global_positions, made);
  made = made.scatter(
      2,
      index,
      at::where(
          tokens.is_global.unsqueeze(1).unsqueeze(-1),
          global,
          made.gather(2, index)));
  return output_.forward(made.transpose(1, 2).flatten(2));
}

} // namespace tessera::zoo
