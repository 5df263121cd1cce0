// SPDX-License-Identifier: Apache-2.0
// ViT (arXiv:2010.11929).

#include "tessera/zoo/models/families.h"
#include "tessera/zoo/vision/vit_like.h"

#include <utility>

namespace tessera::zoo {

namespace {

constexpr int64_t kMostStride = 1024;

MakeModel make_vit(ImageHead head) {
  return [head](
             const ConfigFields& fields,
             const LayerContext& context,
             nlohmann::json json) -> std::shared_ptr<Model> {
    ImageEncoderConfig config = vit_like_config(fields);
    const int64_t pooled =
        fields.size({"pooler_output_size"}, config.norm.features);
    NameTable names = vit_like_names(head == ImageHead::kBase);
    config.pooler_features =
        has_pooler(fields.checkpoint(), names.prefix) ? pooled : 0;
    config.pooler_activation =
        fields.activation({"pooler_act"}, config.pooler_activation);
    config.encoder_stride = fields.size({"encoder_stride"}, 16);
    TESSERA_CHECK(
        config.encoder_stride <= kMostStride,
        "{}: 'encoder_stride' is {}; it must be at most {}",
        fields.origin(),
        config.encoder_stride,
        kMostStride);
    config.classifier = ClassifierOptions::from_config(fields);
    names.head = {{"classifier", {"classifier"}}, {"decoder.0", {"decoder"}}};
    return std::make_shared<ImageEncoder>(
        config, head, context, std::move(json), std::move(names));
  };
}

} // namespace

ModelFamily vit_family() {
  return {
      "vit",
      {{"ViTForImageClassification", make_vit(ImageHead::kClassification)},
       {"ViTModel", make_vit(ImageHead::kBase)},
       {"ViTForMaskedImageModeling", make_vit(ImageHead::kMasked)}}};
}

} // namespace tessera::zoo
