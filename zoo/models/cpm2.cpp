// SPDX-License-Identifier: Apache-2.0
// CPM-2 (arXiv:2106.10715) as in ModelCenter: T5 v1.1 with other names.

#include "tessera/zoo/formats/model_center_names.h"
#include "tessera/zoo/models/cpm_like.h"
#include "tessera/zoo/models/families.h"
#include "tessera/zoo/models/t5_like.h"

namespace tessera::zoo {

namespace {

EncoderDecoderConfig cpm2_config(const ConfigFields& fields) {
  fields.require_only("tie_word_embeddings", false);
  return cpm_like_config(fields);
}

NameTable cpm2_names() {
  NameTable table{
      .prefix = "cpm2.",
      .base =
          {{"input_embedding", {"embeddings.tokens"}},
           {"position_bias_enc.relative_attention_bias",
            {"encoder.relative_bias.weight"}},
           {"position_bias_dec.relative_attention_bias",
            {"decoder.relative_bias.weight"}}},
      .head = {{"output_projection", {"head"}}},
      .ignored = {"output_projection.*"}};
  add_model_center_stack(table, "encoder", "encoder");
  add_model_center_stack(table, "decoder", "decoder");
  return table;
}

NameTable base_names() {
  NameTable table = cpm2_names();
  table.is_base = true;
  return table;
}

} // namespace

ModelFamily cpm2_family() {
  return {
      "cpm2",
      {{"CPM2ForLM",
        make_encoder_decoder(
            cpm2_config, cpm2_names, EncoderDecoderHead::kLanguageModel)},
       {"CPM2",
        make_encoder_decoder(
            cpm2_config, base_names, EncoderDecoderHead::kBase)}}};
}

} // namespace tessera::zoo
