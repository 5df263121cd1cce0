// SPDX-License-Identifier: Apache-2.0
// MAE (arXiv:2111.06377): its config.json and tensor names.

#include "tessera/zoo/models/families.h"
#include "tessera/zoo/models/layer_stack.h"
#include "tessera/zoo/vision/masked_autoencoder.h"
#include "tessera/zoo/vision/vit_like.h"

#include <utility>

namespace tessera::zoo {

namespace {

MaskedAutoencoderConfig mae_config(
    const ConfigFields& fields,
    bool has_decoder) {
  const ImageEncoderConfig encoder = vit_like_config(fields);
  MaskedAutoencoderConfig config;
  config.patches = encoder.patches;
  config.patches.positions = PatchPositions::kFixed;
  config.encoder = encoder.layers;
  config.norm = encoder.norm;
  config.mask_ratio = fields.probability({"mask_ratio"}, 0.75);
  config.normalised_pixels = fields.get<bool>({"norm_pix_loss"}, false);
  config.deviation = encoder.deviation;
  if (has_decoder) {
    config.decoder = equal_layers(
        vit_layer(fields, "decoder_"),
        fields.count({"decoder_num_hidden_layers"}, 8));
  }
  return config;
}

NameTable mae_names(bool is_base) {
  NameTable table = vit_like_names(is_base);
  if (!is_base) {
    std::erase(table.ignored, "decoder.*");
  }
  // transformers 4 and 5 read the first names. transformers 5 writes the
  // second, which transformers 4 ignores.
  table.head = vit_layer_names("decoder.decoder_layers", "decoder.layers");
  table.renamed = {
      {"decoder.decoder_encoder.layer.", "decoder.decoder_layers."}};
  table.head.insert(
      table.head.end(),
      {{"decoder.decoder_embed", {"decoder.embedding"}},
       {"decoder.mask_token", {"decoder.mask_token"}},
       {"decoder.decoder_pos_embed", {"decoder.positions"}},
       {"decoder.decoder_norm", {"decoder.norm"}},
       {"decoder.decoder_pred", {"decoder.prediction"}}});
  return table;
}

MakeModel make_mae(bool is_base) {
  return [is_base](
             const ConfigFields& fields,
             const LayerContext& context,
             nlohmann::json json) -> std::shared_ptr<Model> {
    return std::make_shared<MaskedAutoencoder>(
        mae_config(fields, !is_base),
        context,
        std::move(json),
        mae_names(is_base));
  };
}

} // namespace

ModelFamily vit_mae_family() {
  return {
      "vit_mae",
      {{"ViTMAEForPreTraining", make_mae(/*is_base=*/false)},
       {"ViTMAEModel", make_mae(/*is_base=*/true)}}};
}

} // namespace tessera::zoo
