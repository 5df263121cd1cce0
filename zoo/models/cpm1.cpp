// SPDX-License-Identifier: Apache-2.0
// CPM-1 (arXiv:2012.00413) as in ModelCenter.

#include "tessera/zoo/models/cpm_like.h"
#include "tessera/zoo/models/families.h"
#include "tessera/zoo/models/model_center_names.h"

#include <memory>
#include <utility>

namespace tessera::zoo {

namespace {

NameTable cpm1_names(bool has_head) {
  NameTable table{
      .prefix = "cpm1.",
      .base =
          {{"input_embedding", {"embeddings.tokens"}},
           {"position_bias.relative_attention_bias",
            {"encoder.relative_bias.weight"}}},
      .head = {{"output_projection", {"head"}}},
      .is_base = !has_head,
      .ignored = {"output_projection.*"}};
  add_model_center_stack(table, "encoder", "encoder");
  return table;
}

MakeModel make_cpm1(bool has_head) {
  return [has_head](
             const ConfigFields& fields,
             const LayerContext& context,
             nlohmann::json json) -> std::shared_ptr<Model> {
    return std::make_shared<CpmModel>(
        cpm_config(fields),
        has_head,
        context,
        std::move(json),
        cpm1_names(has_head));
  };
}

} // namespace

ModelFamily cpm1_family() {
  return {"cpm1", {{"CPM1ForLM", make_cpm1(true)}, {"CPM1", make_cpm1(false)}}};
}

} // namespace tessera::zoo
