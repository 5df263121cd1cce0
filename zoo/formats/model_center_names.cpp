// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/model_center_names.h"

namespace tessera::zoo {

void add_model_center_stack(
    NameTable& table,
    const std::string& foreign,
    const std::string& native) {
  const auto add = [&](const std::string& foreign_part,
                       const std::string& native_part) {
    table.base.push_back(
        {foreign + ".layers.*." + foreign_part,
         {native + ".layers.*." + native_part}});
  };
  const auto add_attention = [&](const std::string& block,
                                 const std::string& attention) {
    add(block + ".layernorm_before_attention", attention + "_norm");
    add(block + ".self_attention.project_q", attention + ".query");
    add(block + ".self_attention.project_k", attention + ".key");
    add(block + ".self_attention.project_v", attention + ".value");
    add(block + ".self_attention.attention_out", attention + ".output");
  };
  add_attention("self_att", "attention");
  if (foreign == "decoder") {
    add_attention("cross_att", "cross_attention");
  }
  add("ffn.layernorm_before_ffn", "feed_forward_norm");
  add("ffn.ffn.w_in.w_0", "feed_forward.gate");
  add("ffn.ffn.w_in.w_1", "feed_forward.up");
  add("ffn.ffn.w_out", "feed_forward.down");
  table.base.push_back({foreign + ".output_layernorm", {native + ".norm"}});
}

} // namespace tessera::zoo
