// SPDX-License-Identifier: Apache-2.0
// MoCo v3 (arXiv:2104.02057): its config.json and tensor names, both defined by
// Tessera. The first encoder has ViT's names, and can be loaded as a ViT.

#include "tessera/zoo/models/families.h"
#include "tessera/zoo/vision/moco_model.h"
#include "tessera/zoo/vision/vit_like.h"

#include <utility>

namespace tessera::zoo {

namespace {

MocoConfig moco_config(const ConfigFields& fields) {
  const ImageEncoderConfig vit = vit_like_config(fields);
  MocoConfig config;
  config.patches = vit.patches;
  config.patches.positions = PatchPositions::kFixed;
  config.patches.learns_projection = false;
  config.layers = vit.layers;
  config.norm = vit.norm;
  config.head_inner =
      fields.size({"projection_hidden_size"}, config.head_inner);
  config.head_features = fields.size({"projection_size"}, config.head_features);
  config.temperature = fields.positive({"temperature"}, config.temperature);
  config.momentum = fields.probability({"momentum"}, config.momentum);
  config.deviation = vit.deviation;
  return config;
}

void add_head_names(NameTable& table, const std::string& head) {
  for (const char* part : {".linear.*", ".norm.*"}) {
    table.head.push_back({head + part, {head + part}});
  }
}

NameTable moco_names() {
  NameTable table = vit_like_names(/*is_base=*/false);
  for (const NameRule& rule : vit_like_names(false).base) {
    table.head.push_back(
        {"momentum." + rule.foreign, {"momentum." + rule.native.front()}});
  }
  for (const char* head : {"projection", "prediction", "momentum.projection"}) {
    add_head_names(table, head);
  }
  table.ignored.clear();
  return table;
}

} // namespace

ModelFamily moco_v3_family() {
  return {
      "moco_v3",
      {{"MocoV3ForPreTraining",
        [](const ConfigFields& fields,
           const LayerContext& context,
           nlohmann::json json) -> std::shared_ptr<Model> {
          return std::make_shared<MocoModel>(
              moco_config(fields), context, std::move(json), moco_names());
        }}}};
}

} // namespace tessera::zoo
