// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/transformer_layer.h"

#include "tessera/runtime/core/error.h"

#include <string>

namespace tessera::zoo {

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
       options_.local ? input.local_mask : input.mask,
       input.bias,
       input.rotary,
       input.cache});
}

at::Tensor TransformerLayerImpl::feed_forward(const at::Tensor& x) {
  return experts_.is_empty() ? feed_forward_->forward(x) : experts_->forward(x);
}

template <typename Part>
at::Tensor TransformerLayerImpl::add(
    Half& half,
    const at::Tensor& x,
    const Part& part) {
  const auto dropped = [&](const at::Tensor& y) {
    return context_.dropout(y, options_.dropout, is_training());
  };
  switch (options_.placement) {
    case NormPlacement::kPost:
      return half.norm->forward(x + dropped(part(x)));
    case NormPlacement::kSandwich:
      return x +
             dropped(half.output_norm->forward(part(half.norm->forward(x))));
    case NormPlacement::kPre:
      break;
  }
  return x + dropped(part(half.norm->forward(x)));
}

at::Tensor TransformerLayerImpl::forward(
    const at::Tensor& hidden,
    const LayerInput& input) {
  const RandomLayerScope random = context_.random_scope(hidden.device());
  if (options_.parallel_halves) {
    const at::Tensor normed = attention_half_.norm->forward(hidden);
    const bool train = is_training();
    return context_.dropout(
               attend_to_self(normed, input), options_.dropout, train) +
           context_.dropout(feed_forward(normed), options_.dropout, train) +
           hidden;
  }
  at::Tensor x = add(attention_half_, hidden, [&](const at::Tensor& y) {
    return attend_to_self(y, input);
  });
  if (options_.cross_attention) {
    TESSERA_CHECK(
        input.memory.defined(),
        "TransformerLayer: cross-attention needs LayerInput::memory");
    x = add(cross_half_, x, [&](const at::Tensor& y) {
      AttentionInput cross{input.memory, input.memory_mask};
      cross.cache = input.cache;
      return cross_attention_->forward(y, cross);
    });
  }
  return add(feed_forward_half_, x, [&](const at::Tensor& y) {
    return feed_forward(y);
  });
}

} // namespace tessera::zoo
