// SPDX-License-Identifier: Apache-2.0
// StarCoder2 (arXiv:2402.19173).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig starcoder2_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 4096,
       .norm_eps = 1e-5,
       .kv_heads = 2,
       .deviation = 0.018042,
       .tied_head = true,
       .norm = NormKind::kLayerNorm,
       .norm_eps_field = "norm_epsilon",
       .activation = "gelu_pytorch_tanh",
       .gated = false});
  const bool bias = fields.get<bool>({"use_bias"}, true);
  set_attention_bias(decoder, bias, bias);
  for_layers(decoder, [&](TransformerLayerOptions& layer) {
    layer.feed_forward.bias = bias;
    layer.dropout = fields.probability({"residual_dropout"});
  });
  decoder.embedding_dropout = fields.probability({"embedding_dropout"});
  read_layer_types(fields, decoder, {}, [](size_t) { return true; });
  return decoder;
}

NameTable starcoder2_names() {
  NameTable table = llama_like_names(FeedForwardNames::kNone);
  table.base.push_back({"layers.*.mlp.c_fc", {"layers.*.feed_forward.up"}});
  table.base.push_back({"layers.*.mlp.c_proj", {"layers.*.feed_forward.down"}});
  return table;
}

} // namespace

ModelFamily starcoder2_family() {
  return decoder_family(
      {.model_type = "starcoder2",
       .base = "Starcoder2Model",
       .causal_lm = "Starcoder2ForCausalLM",
       .sequence_classification = "Starcoder2ForSequenceClassification",
       .token_classification = "Starcoder2ForTokenClassification",
       .config = starcoder2_config,
       .names = starcoder2_names});
}

} // namespace tessera::zoo
