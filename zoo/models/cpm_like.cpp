// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/cpm_like.h"

#include "tessera/zoo/models/t5_like.h"

namespace tessera::zoo {

EncoderDecoderConfig cpm_like_config(const ConfigFields& fields) {
  fields.require_only("feed_forward_proj", std::string("gated-gelu"));
  EncoderDecoderConfig model = t5_like_config(fields);
  const double deviation = fields.deviation({"initializer_range"});
  model.tied_head = fields.get<bool>({"tie_word_embeddings"}, false);
  model.dropout = 0;
  const auto change = [&](AttentionOptions& attention) {
    attention.deviation = attention.query_deviation = deviation;
    attention.output_deviation = deviation;
  };
  for (RelativeStackOptions* half : {&model.encoder, &model.decoder}) {
    half->bias_deviation = 1;
    half->dropout = 0;
    for (TransformerLayerOptions& layer : half->layers) {
      change(layer.attention);
      if (layer.cross_attention) {
        change(*layer.cross_attention);
      }
      layer.feed_forward.gated = true;
      layer.feed_forward.activation = "gelu_new";
      layer.feed_forward.dropout = 0;
      layer.feed_forward.deviation = deviation;
      layer.feed_forward.output_deviation = deviation;
    }
  }
  return model;
}

} // namespace tessera::zoo
