// SPDX-License-Identifier: Apache-2.0
// Qwen's mixture-of-experts models: Qwen1.5 and 2 (arXiv:2407.10671) and 3
// (arXiv:2505.09388).

#include "tessera/zoo/models/llama_like.h"

#include <algorithm>
#include <vector>

namespace tessera::zoo {

namespace {

/// Limit for the experts of all layers: more indicates a damaged file, and
/// would exhaust memory.
constexpr int64_t kMost = 100'000;

/// The layers that `mlp_only_layers` keeps dense.
std::vector<int64_t> dense_layers(const ConfigFields& fields) {
  std::vector<int64_t> layers;
  const nlohmann::json list =
      fields.json_or("mlp_only_layers", nlohmann::json::array());
  const auto check = [&](bool is_good) {
    TESSERA_CHECK(
        is_good,
        "{}: 'mlp_only_layers' is {}; it must be a list of layer numbers, starting at 0",
        fields.origin(),
        runtime::show_json(list));
  };
  check(list.is_array());
  for (const nlohmann::json& layer : list) {
    check(layer.is_number_integer() && layer >= 0);
    layers.push_back(layer.get<int64_t>());
  }
  return layers;
}

/// Gives every layer that is not dense its experts.
void add_experts(
    const ConfigFields& fields,
    DecoderConfig& decoder,
    const std::optional<int64_t>& shared) {
  decoder.router_losses = fields.get<bool>({"output_router_logits"}, false);
  decoder.router_balance =
      fields.number({"router_aux_loss_coef"}, decoder.router_balance);
  // transformers does not have these two.
  decoder.router_z = fields.number({"router_z_loss_coef"}, 0);
  const auto capacity = fields.find<double>({"expert_capacity_factor"});
  const int64_t step = fields.size({"decoder_sparse_step"}, 1);
  const std::vector<int64_t> dense = dense_layers(fields);
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    if ((number + 1) % step != 0 ||
        std::find(dense.begin(), dense.end(), number) != dense.end()) {
      continue;
    }
    TransformerLayerOptions& layer = decoder.layers[i];
    ExpertsOptions experts;
    experts.expert = layer.feed_forward;
    experts.expert.inner = fields.size({"moe_intermediate_size"});
    experts.experts = fields.count({"num_experts", "num_local_experts"});
    TESSERA_CHECK(
        static_cast<int64_t>(decoder.layers.size()) * experts.experts <= kMost,
        "{}: {} layers with {} experts each; at most {} in total are allowed",
        fields.origin(),
        decoder.layers.size(),
        experts.experts,
        kMost);
    experts.experts_per_token = fields.size({"num_experts_per_tok"});
    experts.normalise = fields.get<bool>({"norm_topk_prob"}, false);
    experts.capacity_factor = capacity;
    if (shared) {
      experts.shared = layer.feed_forward;
      experts.shared->inner = *shared;
    }
    layer.experts = experts;
  }
}

NameTable expert_names() {
  NameTable table = llama_like_names();
  table.base.push_back({"layers.*.mlp.gate", {"layers.*.feed_forward.router"}});
  for (const std::string part : {"gate", "up", "down"}) {
    table.base.push_back(
        {"layers.*.mlp.experts.*." + part + "_proj",
         {"layers.*.feed_forward.experts.*." + part}});
  }
  return table;
}

DecoderConfig qwen2_moe_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(fields, {.kv_heads = 16});
  set_attention_bias(
      decoder, fields.get<bool>({"qkv_bias"}, true), /*output=*/false);
  read_windows(fields, decoder, [](size_t layer, size_t most) {
    return layer % 2 == 0 && layer < most;
  });
  add_experts(
      fields, decoder, fields.size({"shared_expert_intermediate_size"}));
  return decoder;
}

DecoderConfig qwen3_moe_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(fields, {.kv_heads = 4});
  const bool bias = fields.get<bool>({"attention_bias"}, false);
  set_attention_bias(decoder, bias, bias);
  add_query_key_norms(decoder);
  read_windows(fields, decoder, [](size_t, size_t) { return true; });
  add_experts(fields, decoder, std::nullopt);
  return decoder;
}

NameTable qwen2_moe_names() {
  NameTable table = expert_names();
  table.base.push_back(
      {"layers.*.mlp.shared_expert_gate",
       {"layers.*.feed_forward.shared_gate"}});
  for (const std::string part : {"gate", "up", "down"}) {
    table.base.push_back(
        {"layers.*.mlp.shared_expert." + part + "_proj",
         {"layers.*.feed_forward.shared." + part}});
  }
  return table;
}

NameTable qwen3_moe_names() {
  return with_query_key_norms(expert_names());
}

} // namespace

ModelFamily qwen2_moe_family() {
  return decoder_family(
      {.model_type = "qwen2_moe",
       .base = "Qwen2MoeModel",
       .causal_lm = "Qwen2MoeForCausalLM",
       .sequence_classification = "Qwen2MoeForSequenceClassification",
       .token_classification = "Qwen2MoeForTokenClassification",
       .question_answering = "Qwen2MoeForQuestionAnswering",
       .config = qwen2_moe_config,
       .names = qwen2_moe_names});
}

ModelFamily qwen3_moe_family() {
  return decoder_family(
      {.model_type = "qwen3_moe",
       .base = "Qwen3MoeModel",
       .causal_lm = "Qwen3MoeForCausalLM",
       .sequence_classification = "Qwen3MoeForSequenceClassification",
       .token_classification = "Qwen3MoeForTokenClassification",
       .question_answering = "Qwen3MoeForQuestionAnswering",
       .config = qwen3_moe_config,
       .names = qwen3_moe_names,
       .answers_prefix = "transformer."});
}

} // namespace tessera::zoo
