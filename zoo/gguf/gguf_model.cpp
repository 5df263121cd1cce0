// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/gguf/gguf_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/layers/rotary.h"
#include "tessera/zoo/models/config_fields.h"

#include <torch/types.h>

#include <array>
#include <cctype>
#include <string_view>

namespace tessera::zoo {

namespace {

struct Name {
  std::string_view theirs, ours;
};

constexpr std::array kLlamaNames{
    Name{"model.embed_tokens", "token_embd"},
    Name{"model.layers.*.input_layernorm", "blk.*.attn_norm"},
    Name{"model.layers.*.self_attn.q_proj", "blk.*.attn_q"},
    Name{"model.layers.*.self_attn.k_proj", "blk.*.attn_k"},
    Name{"model.layers.*.self_attn.v_proj", "blk.*.attn_v"},
    Name{"model.layers.*.self_attn.o_proj", "blk.*.attn_output"},
    Name{"model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm"},
    Name{"model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm"},
    Name{"model.layers.*.post_attention_layernorm", "blk.*.ffn_norm"},
    Name{"model.layers.*.mlp.gate_proj", "blk.*.ffn_gate"},
    Name{"model.layers.*.mlp.up_proj", "blk.*.ffn_up"},
    Name{"model.layers.*.mlp.down_proj", "blk.*.ffn_down"},
    Name{"model.norm", "output_norm"},
    Name{"lm_head", "output"}};

constexpr std::array kGpt2Names{
    Name{"transformer.wte", "token_embd"},
    Name{"transformer.wpe", "position_embd"},
    Name{"transformer.h.*.ln_1", "blk.*.attn_norm"},
    Name{"transformer.h.*.attn.c_attn", "blk.*.attn_qkv"},
    Name{"transformer.h.*.attn.c_proj", "blk.*.attn_output"},
    Name{"transformer.h.*.ln_2", "blk.*.ffn_norm"},
    Name{"transformer.h.*.mlp.c_fc", "blk.*.ffn_up"},
    Name{"transformer.h.*.mlp.c_proj", "blk.*.ffn_down"},
    Name{"transformer.ln_f", "output_norm"},
    Name{"lm_head", "output"}};

/// "h.12.ln_1" to "h.*.ln_1" and "12".
std::pair<std::string, std::string> without_number(std::string_view name) {
  std::string pattern;
  std::string number;
  bool is_number = false; // a component of digits
  for (size_t i = 0; i < name.size(); ++i) {
    const bool is_digit =
        std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    is_number = is_digit && (is_number || (i > 0 && name[i - 1] == '.'));
    if (!is_number) {
      pattern += name[i];
      continue;
    }
    if (number.empty()) {
      pattern += '*';
    }
    number += name[i];
  }
  return {pattern, number};
}

class Description {
 public:
  Description(std::string architecture, const ConfigFields& fields)
      : fields_(fields) {
    model.architecture = std::move(architecture);
  }

  void add(const std::string& key, GgufValue value) {
    model.metadata.emplace_back(
        model.architecture + "." + key, std::move(value));
  }
  void add_size(const std::string& key, int64_t value) {
    add(key, static_cast<uint32_t>(value));
  }
  void add_number(const std::string& key, double value) {
    add(key, static_cast<float>(value));
  }

  /// @throws tessera::Error, saying that llama.cpp lacks it.
  void require(bool holds, const char* field) const {
    TESSERA_CHECK(
        holds,
        fields_.origin(),
        ": llama.cpp's '",
        model.architecture,
        "' does not compute this model's '",
        field,
        "'; it can not be exported as GGUF");
  }

  GgufModel model;

 private:
  const ConfigFields& fields_;
};

void add_rotary(Description& to, const RotaryOptions& rotary) {
  to.add_size("rope.dimension_count", rotary.features);
  to.add_number("rope.freq_base", rotary.base);
  const RotaryScaling& scaling = rotary.scaling;
  switch (scaling.kind) {
    case RotaryScalingKind::kNone:
      return;
    case RotaryScalingKind::kLinear:
      to.add("rope.scaling.type", std::string("linear"));
      to.add_number("rope.scaling.factor", scaling.factor);
      return;
    case RotaryScalingKind::kYarn:
      to.require(
          !scaling.attention_factor && scaling.mscale == 0 &&
              scaling.mscale_all_features == 0 && scaling.truncate,
          "rope_parameters");
      to.add("rope.scaling.type", std::string("yarn"));
      to.add_number("rope.scaling.factor", scaling.factor);
      to.add_size(
          "rope.scaling.original_context_length", scaling.original_positions);
      to.add_number("rope.scaling.yarn_beta_fast", scaling.beta_fast);
      to.add_number("rope.scaling.yarn_beta_slow", scaling.beta_slow);
      return;
    case RotaryScalingKind::kLlama3: {
      // By what each frequency is divided.
      RotaryOptions plain = rotary;
      plain.scaling = {};
      to.model.more.emplace(
          "rope_freqs.weight",
          rotary_frequencies(plain, 1).inverse /
              rotary_frequencies(rotary, 1).inverse);
      return;
    }
    case RotaryScalingKind::kDynamic:
      to.require(false, "rope_parameters (dynamic)");
  }
}

/// LLaMA, Qwen2 and Qwen3.
GgufModel describe_llama_like(
    const std::string& architecture,
    const ConfigFields& fields) {
  Description to(architecture, fields);
  const int64_t features = fields.size({"hidden_size"});
  const int64_t heads = fields.size({"num_attention_heads"});
  const int64_t kv_heads = fields.size({"num_key_value_heads"}, heads);
  const int64_t head = fields.size(
      {"head_dim"}, architecture == "qwen3" ? 128 : features / heads);
  const int64_t positions = fields.size({"max_position_embeddings"}, 2048);
  to.require(
      fields.get<std::string>({"hidden_act"}, "silu") == "silu", "hidden_act");
  to.require(
      !fields.get<bool>({"use_sliding_window"}, false), "use_sliding_window");
  to.require(
      architecture != "qwen3" || !fields.get<bool>({"attention_bias"}, false),
      "attention_bias");
  to.add_size("vocab_size", fields.size({"vocab_size"}));
  to.add_size("context_length", positions);
  to.add_size("embedding_length", features);
  to.add_size("block_count", fields.count({"num_hidden_layers"}));
  to.add_size("feed_forward_length", fields.size({"intermediate_size"}));
  to.add_size("attention.head_count", heads);
  to.add_size("attention.head_count_kv", kv_heads);
  to.add_size("attention.key_length", head);
  to.add_size("attention.value_length", head);
  to.add_number(
      "attention.layer_norm_rms_epsilon",
      fields.positive({"rms_norm_eps"}, 1e-6));
  add_rotary(to, fields.rotary(head, positions));
  if (architecture == "llama") {
    to.model.paired_heads = {{".attn_q", heads}, {".attn_k", kv_heads}};
  }
  return std::move(to.model);
}

GgufModel describe_gpt2(const ConfigFields& fields) {
  Description to("gpt2", fields);
  const int64_t features = fields.size({"n_embd", "hidden_size"});
  const auto activation =
      fields.get<std::string>({"activation_function"}, "gelu_new");
  to.require(
      activation == "gelu_new" || activation == "gelu_pytorch_tanh",
      "activation_function");
  to.require(
      fields.get<bool>({"scale_attn_weights"}, true), "scale_attn_weights");
  to.require(
      !fields.get<bool>({"scale_attn_by_inverse_layer_idx"}, false),
      "scale_attn_by_inverse_layer_idx");
  to.add_size("vocab_size", fields.size({"vocab_size"}));
  to.add_size(
      "context_length",
      fields.size({"n_positions", "max_position_embeddings", "n_ctx"}, 1024));
  to.add_size("embedding_length", features);
  to.add_size("block_count", fields.count({"n_layer", "num_hidden_layers"}));
  to.add_size("feed_forward_length", fields.size({"n_inner"}, 4 * features));
  to.add_size(
      "attention.head_count", fields.size({"n_head", "num_attention_heads"}));
  to.add_number(
      "attention.layer_norm_epsilon",
      fields.positive({"layer_norm_epsilon"}, 1e-5));
  return std::move(to.model);
}

} // namespace

GgufModel describe_gguf(const Model& model) {
  const nlohmann::json& config = model.config();
  const ConfigFields fields(config, "config.json");
  const auto type = fields.get<std::string>({"model_type"}, "");
  const auto architecture = config.at("architectures").at(0).get<std::string>();
  TESSERA_CHECK(
      type == "llama" || type == "qwen2" || type == "qwen3" || type == "gpt2",
      "GGUF export of model_type '",
      type,
      "' is not implemented; there are llama, qwen2, qwen3, gpt2");
  TESSERA_CHECK(
      architecture.ends_with("ForCausalLM") ||
          architecture.ends_with("LMHeadModel"),
      "GGUF export of '",
      architecture,
      "' is not implemented: it is for language models; give one with its "
      "head");
  return type == "gpt2" ? describe_gpt2(fields)
                        : describe_llama_like(type, fields);
}

std::string gguf_name(
    const std::string& architecture,
    const std::string& theirs) {
  const size_t dot = theirs.find_last_of('.');
  const auto [pattern, number] = without_number(theirs.substr(0, dot));
  const auto look = [&](const auto& names) {
    for (const Name& name : names) {
      if (name.theirs == pattern) {
        std::string found(name.ours);
        if (const size_t star = found.find('*'); star != std::string::npos) {
          found.replace(star, 1, number);
        }
        return found + theirs.substr(dot);
      }
    }
    TESSERA_FAIL(
        "GGUF export: llama.cpp's '",
        architecture,
        "' has no tensor for '",
        theirs,
        "'");
  };
  return architecture == "gpt2" ? look(kGpt2Names) : look(kLlamaNames);
}

} // namespace tessera::zoo
