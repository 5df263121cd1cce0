// SPDX-License-Identifier: Apache-2.0
// SmolLM3 (Hugging Face, 2025): some layers have no positions
// (arXiv:2501.18795).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig smollm3_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.kv_heads = 4,
       .padding_token = 128004,
       .tied_head = true,
       .rotary_base = 2000000});
  read_biases(fields, decoder);
  const int64_t interval = fields.size({"no_rope_layer_interval"}, 4);
  const auto rotated = fields.given("no_rope_layers");
  TESSERA_CHECK(
      !rotated ||
          (rotated->is_array() && rotated->size() == decoder.layers.size()),
      "{}: 'no_rope_layers' is {}; it must be a list with 1 (rotary positions) or 0 for each of the {} layers ('num_hidden_layers')",
      fields.origin(),
      runtime::show_json(rotated.value_or(nullptr)),
      decoder.layers.size());
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    decoder.layers[i].rotary =
        rotated ? (*rotated)[i] == 1
                : static_cast<int64_t>(i + 1) % interval != 0;
  }
  if (fields.get<bool>({"use_sliding_window"}, false)) {
    read_layer_types(fields, decoder, {}, [&](size_t layer) {
      return !decoder.layers[layer].rotary;
    });
  }
  return decoder;
}

NameTable smollm3_names() {
  return llama_like_names();
}

} // namespace

ModelFamily smollm3_family() {
  return decoder_family(
      {.model_type = "smollm3",
       .base = "SmolLM3Model",
       .causal_lm = "SmolLM3ForCausalLM",
       .sequence_classification = "SmolLM3ForSequenceClassification",
       .token_classification = "SmolLM3ForTokenClassification",
       .question_answering = "SmolLM3ForQuestionAnswering",
       .config = smollm3_config,
       .names = smollm3_names,
       .answers_prefix = "transformer."});
}

} // namespace tessera::zoo
