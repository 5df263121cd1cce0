// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/transformer_layer.h"

#include "tessera/runtime/core/error.h"

#include <string>
#include <vector>

namespace tessera::zoo {

namespace {

/// x, which broadcasts to [B, heads, Q, K], at the places [B, kept] of one of
/// its last two dimensions; unchanged if it is equal at all of them.
at::Tensor at_places(
    const at::Tensor& x,
    const at::Tensor& token_indices,
    int64_t dim) {
  if (!x.defined() || x.size(dim) == 1) {
    return x;
  }
  std::vector<int64_t> sizes{
      token_indices.size(0), x.size(1), x.size(2), x.size(3)};
  const at::Tensor full = x.expand(sizes);
  sizes[static_cast<size_t>(dim)] = token_indices.size(1);
  const at::Tensor index = dim == 2 ? token_indices.unsqueeze(1).unsqueeze(-1)
                                    : token_indices.unsqueeze(1).unsqueeze(1);
  return full.gather(dim, index.expand(sizes));
}

RotaryTables rotary_of(
    const TransformerLayerOptions& options,
    const LayerInput& input) {
  if (!options.rotary) {
    return {};
  }
  return options.local && input.local_rotary.cosines.defined()
             ? input.local_rotary
             : input.rotary;
}

} // namespace

LayerInput LayerInput::at_tokens(const at::Tensor& token_indices) const {
  TESSERA_CHECK(
      cache == nullptr && !banded.seen.defined() && !memory.defined(),
      "LayerInput::at_tokens: layers with a key/value cache, windows and global tokens, or an encoder's output take all tokens");
  const auto of_pairs = [&](const at::Tensor& x) {
    return at_places(at_places(x, token_indices, 2), token_indices, 3);
  };
  LayerInput some = *this;
  for (AttentionPattern* one : {&some.pattern, &some.local_pattern}) {
    *one = one->defined() ? one->at_tokens(token_indices) : *one;
  }
  // All that a query attends to may be gone.
  some.mask = with_safe_rows(of_pairs(mask));
  some.bias = of_pairs(bias);
  for (RotaryTables* tables : {&some.rotary, &some.local_rotary}) {
    tables->cosines = at_places(tables->cosines, token_indices, 2);
    tables->sines = at_places(tables->sines, token_indices, 2);
  }
  return some;
}

TransformerLayerImpl::Half TransformerLayerImpl::make_half(
    const std::string& name) {
  Half half;
  half.norm = register_module(name + "_norm", Norm(options_.norm));
  if (options_.placement == NormPlacement::kSandwich) {
    half.output_norm =
        register_module(name + "_output_norm", Norm(options_.norm));
  }
  return half;
}

TransformerLayerImpl::TransformerLayerImpl(
    const LayerContext& context,
    const TransformerLayerOptions& options)
    : context_(context), options_(options) {
  TESSERA_CHECK(
      !options.parallel_halves || (options.placement == NormPlacement::kPre &&
                                   !options.cross_attention),
      "TransformerLayer: attention and feed-forward in parallel need pre-norm and no cross-attention");
  attention_half_ = make_half("attention");
  if (options.reach > 0) {
    banded_ = register_module(
        "attention",
        BandedAttention(context_, options.attention, options.reach));
  } else {
    attention_ =
        register_module("attention", Attention(context_, options.attention));
  }
  if (options.cross_attention) {
    cross_half_ = make_half("cross_attention");
    cross_attention_ = register_module(
        "cross_attention", Attention(context_, *options.cross_attention));
  }
  if (!options.parallel_halves) {
    feed_forward_half_ = make_half("feed_forward");
  }
  if (options.experts) {
    experts_ =
        register_module("feed_forward", Experts(context_, *options.experts));
  } else {
    feed_forward_ = register_module(
        "feed_forward", FeedForward(context_, options.feed_forward));
  }
}

void TransformerLayerImpl::recompute_attention(bool again) {
  for (Attention* attention : {&attention_, &cross_attention_}) {
    if (!attention->is_empty()) {
      (*attention)->recomputes_core = again;
    }
  }
  if (!banded_.is_empty()) {
    banded_->recomputes_core = again;
  }
}

at::Tensor TransformerLayerImpl::attend_to_self(
    const at::Tensor& x,
    const LayerInput& input) {
  if (options_.reach > 0) {
    TESSERA_CHECK(
        input.cache == nullptr,
        "TransformerLayer: windows with global tokens do not support a key/value cache");
    return banded_->forward(x, input.banded);
  }
  return attention_->forward(
      x,
      {{},
       options_.local ? input.local_pattern : input.pattern,
       input.mask,
       input.bias,
       rotary_of(options_, input),
       input.cache});
}

at::Tensor TransformerLayerImpl::feed_forward(const at::Tensor& x) {
  return experts_.is_empty() ? feed_forward_->forward(x) : experts_->forward(x);
}

at::Tensor TransformerLayerImpl::dropped(const at::Tensor& x, double scale)
    const {
  const at::Tensor y = context_.dropout(x, options_.dropout, is_training());
  return scale == 1 ? y : y * scale;
}

ResidualNorm TransformerLayerImpl::normed(
    Half& half,
    const Residual& residual) {
  return half.norm->add(context_, residual);
}

at::Tensor TransformerLayerImpl::sum_of(const Residual& residual) const {
  if (!residual.branch.defined()) {
    return residual.x;
  }
  return residual.x + dropped(residual.branch, residual.scale);
}

template <typename Part>
Residual TransformerLayerImpl::add(
    Half& half,
    const Residual& before,
    double scale,
    const Part& part) {
  const auto branch = [&](const at::Tensor& x, const at::Tensor& added) {
    return Residual{x, added, scale, is_training() ? options_.dropout : 0};
  };
  switch (options_.placement) {
    case NormPlacement::kPost:
      return {normed(half, branch(before.x, part(before.x))).normed};
    case NormPlacement::kSandwich: {
      const ResidualNorm in = normed(half, before);
      return branch(in.sum, half.output_norm->forward(part(in.normed)));
    }
    case NormPlacement::kBranch: {
      const at::Tensor x = sum_of(before);
      return branch(x, half.norm->forward(part(x)));
    }
    case NormPlacement::kPre:
      break;
  }
  const ResidualNorm in = normed(half, before);
  return branch(in.sum, part(in.normed));
}

at::Tensor TransformerLayerImpl::forward(
    const at::Tensor& hidden,
    const LayerInput& input) {
  const RandomLayerScope random = context_.random_scope(hidden.device());
  const double scale = input.scale * options_.residual_scale;
  if (options_.parallel_halves) {
    const at::Tensor normed = attention_half_.norm->forward(hidden);
    return dropped(attend_to_self(normed, input), scale) +
           dropped(feed_forward(normed), scale) + hidden;
  }
  Residual x = add(attention_half_, {hidden}, scale, [&](const at::Tensor& y) {
    return attend_to_self(y, input);
  });
  if (options_.cross_attention) {
    TESSERA_CHECK(
        input.memory.defined(),
        "TransformerLayer: cross-attention needs LayerInput::memory");
    x = add(cross_half_, x, scale, [&](const at::Tensor& y) {
      AttentionInput cross{input.memory, input.memory_pattern};
      cross.cache = input.cache;
      return cross_attention_->forward(y, cross);
    });
  }
  return sum_of(add(feed_forward_half_, x, scale, [&](const at::Tensor& y) {
    return feed_forward(y);
  }));
}

} // namespace tessera::zoo
