// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/gguf/gguf_names.h"

#include "tessera/runtime/core/error.h"

#include <cctype>
#include <span>
#include <string_view>
#include <vector>

namespace tessera::zoo {

namespace {

/// The first `*` matches a layer on both sides, the second one an expert.
struct Name {
  std::string_view foreign, native;
};

constexpr Name kLlamaNames[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.layers.*.input_layernorm", "blk.*.attn_norm"},
    {"model.layers.*.self_attn.q_proj", "blk.*.attn_q"},
    {"model.layers.*.self_attn.k_proj", "blk.*.attn_k"},
    {"model.layers.*.self_attn.v_proj", "blk.*.attn_v"},
    {"model.layers.*.self_attn.o_proj", "blk.*.attn_output"},
    {"model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm"},
    {"model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm"},
    {"model.layers.*.post_self_attn_layernorm", "blk.*.post_attention_norm"},
    {"model.layers.*.post_attention_layernorm", "blk.*.ffn_norm"},
    {"model.layers.*.post_mlp_layernorm", "blk.*.post_ffw_norm"},
    {"model.layers.*.mlp.gate_proj", "blk.*.ffn_gate"},
    {"model.layers.*.mlp.up_proj", "blk.*.ffn_up"},
    {"model.layers.*.mlp.gate_up_proj", "blk.*.ffn_up"},
    {"model.layers.*.mlp.down_proj", "blk.*.ffn_down"},
    {"model.layers.*.mlp.gate", "blk.*.ffn_gate_inp"},
    {"model.layers.*.mlp.experts.*.gate_proj", "blk.*.ffn_gate_exps"},
    {"model.layers.*.mlp.experts.*.up_proj", "blk.*.ffn_up_exps"},
    {"model.layers.*.mlp.experts.*.down_proj", "blk.*.ffn_down_exps"},
    {"model.layers.*.mlp.shared_expert_gate", "blk.*.ffn_gate_inp_shexp"},
    {"model.layers.*.mlp.shared_expert.gate_proj", "blk.*.ffn_gate_shexp"},
    {"model.layers.*.mlp.shared_expert.up_proj", "blk.*.ffn_up_shexp"},
    {"model.layers.*.mlp.shared_expert.down_proj", "blk.*.ffn_down_shexp"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"}};

constexpr Name kGpt2Names[] = {
    {"transformer.wte", "token_embd"},
    {"transformer.wpe", "position_embd"},
    {"transformer.h.*.ln_1", "blk.*.attn_norm"},
    {"transformer.h.*.attn.c_attn", "blk.*.attn_qkv"},
    {"transformer.h.*.attn.c_proj", "blk.*.attn_output"},
    {"transformer.h.*.ln_2", "blk.*.ffn_norm"},
    {"transformer.h.*.mlp.c_fc", "blk.*.ffn_up"},
    {"transformer.h.*.mlp.c_proj", "blk.*.ffn_down"},
    {"transformer.ln_f", "output_norm"},
    {"lm_head", "output"}};

/// ChatGLM's names in the authors' code.
constexpr Name kChatGlmNames[] = {
    {"transformer.embedding.word_embeddings", "token_embd"},
    {"transformer.encoder.layers.*.input_layernorm", "blk.*.attn_norm"},
    {"transformer.encoder.layers.*.self_attention.query_key_value",
     "blk.*.attn_qkv"},
    {"transformer.encoder.layers.*.self_attention.dense", "blk.*.attn_output"},
    {"transformer.encoder.layers.*.post_attention_layernorm", "blk.*.ffn_norm"},
    {"transformer.encoder.layers.*.mlp.dense_h_to_4h", "blk.*.ffn_up"},
    {"transformer.encoder.layers.*.mlp.dense_4h_to_h", "blk.*.ffn_down"},
    {"transformer.encoder.final_layernorm", "output_norm"},
    {"transformer.output_layer", "output"}};

/// "h.12.ln_1" to "h.*.ln_1" and "12".
struct Pattern {
  explicit Pattern(std::string_view name) {
    while (true) {
      const size_t dot = name.find('.');
      const std::string_view part = name.substr(0, dot);
      const bool is_number =
          !part.empty() && std::isdigit(static_cast<unsigned char>(part[0]));
      text += is_number ? "*" : part;
      if (is_number) {
        numbers.emplace_back(part);
      }
      if (dot == std::string_view::npos) {
        return;
      }
      text += '.';
      name.remove_prefix(dot + 1);
    }
  }

  std::string text;
  std::vector<std::string> numbers;
};

/// GLM-4 in transformers and in the authors' code are one architecture here.
std::vector<std::span<const Name>> tables_of(const std::string& architecture) {
  if (architecture == "gpt2") {
    return {kGpt2Names};
  }
  return architecture == "chatglm"
             ? std::vector<std::span<const Name>>{kChatGlmNames, kLlamaNames}
             : std::vector<std::span<const Name>>{kLlamaNames};
}

} // namespace

GgufMatrix gguf_matrix(
    const std::string& architecture,
    const std::string& foreign) {
  const size_t dot = foreign.find_last_of('.');
  const Pattern pattern(std::string_view(foreign).substr(0, dot));
  for (const auto table : tables_of(architecture)) {
    for (const Name& name : table) {
      if (name.foreign != pattern.text) {
        continue;
      }
      GgufMatrix matrix{std::string(name.native) + foreign.substr(dot), {}};
      if (const size_t star = matrix.name.find('*');
          star != std::string::npos) {
        matrix.name.replace(star, 1, pattern.numbers.at(0));
      }
      if (pattern.numbers.size() > 1) {
        matrix.expert = std::stoll(pattern.numbers[1]);
      }
      return matrix;
    }
  }
  TESSERA_FAIL(
      "GGUF export: llama.cpp's '{}' has no tensor for '{}'",
      architecture,
      foreign);
}

} // namespace tessera::zoo
