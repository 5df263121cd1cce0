// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/gguf/gguf_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/layers/rotary.h"
#include "tessera/zoo/models/decoder.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::zoo {

namespace {

/// transformers' model_type and llama.cpp's architecture.
constexpr std::pair<const char*, const char*> kArchitectures[] = {
    {"chatglm", "chatglm"},
    {"glm", "chatglm"},
    {"glm4", "glm4"},
    {"gpt2", "gpt2"},
    {"llama", "llama"},
    {"qwen2", "qwen2"},
    {"qwen2_moe", "qwen2moe"},
    {"qwen3", "qwen3"},
    {"qwen3_moe", "qwen3moe"}};

std::string architecture_of(const std::string& model_type) {
  std::string known;
  for (const auto& [foreign, native] : kArchitectures) {
    if (model_type == foreign) {
      return native;
    }
    known += (known.empty() ? "" : ", ") + std::string(foreign);
  }
  TESSERA_FAIL(
      "GGUF export of model_type '{}' is not implemented; the supported ones are {}",
      model_type,
      known);
}

class Description {
 public:
  Description(std::string architecture, const DecoderConfig& decoder)
      : decoder_(decoder), layer_(decoder.layers.front()) {
    model_.architecture = std::move(architecture);
    model_.vocab = decoder.vocab;
  }

  GgufModel made() && {
    require(!decoder_.prefix, "bidirectional attention over a prefix");
    require(decoder_.final_norm.has_value(), "missing final norm");
    require(decoder_.window == 0, "sliding windows (use_sliding_window)");
    add_sizes();
    if (model_.architecture == "gpt2") {
      require_gpt2();
    } else {
      require_llama_like();
      add_rotary(*decoder_.rotary);
    }
    if (model_.architecture == "llama") {
      model_.paired_heads = {
          {".attn_q", layer_.attention.heads}, {".attn_k", kv_heads()}};
    }
    add_experts();
    return std::move(model_);
  }

 private:
  void add(const std::string& key, GgufValue value) {
    model_.metadata.emplace_back(
        model_.architecture + "." + key, std::move(value));
  }
  void add_size(const std::string& key, int64_t value) {
    add(key, static_cast<uint32_t>(value));
  }
  void add_number(const std::string& key, double value) {
    add(key, static_cast<float>(value));
  }

  void require(bool holds, const std::string& part) const {
    TESSERA_CHECK(
        holds,
        "llama.cpp's '{}' does not support this model's {}; it cannot be exported as GGUF",
        model_.architecture,
        part);
  }

  int64_t kv_heads() const {
    const AttentionOptions& attention = layer_.attention;
    return attention.kv_heads == 0 ? attention.heads : attention.kv_heads;
  }

  int64_t head_features() const {
    const AttentionOptions& attention = layer_.attention;
    return attention.head_features == 0 ? attention.features / attention.heads
                                        : attention.head_features;
  }

  void add_sizes() {
    const bool is_gpt2 = model_.architecture == "gpt2";
    add_size("vocab_size", decoder_.vocab);
    add_size(
        "context_length",
        is_gpt2 ? decoder_.learned_positions : decoder_.rotary->max_positions);
    add_size("embedding_length", decoder_.features);
    add_size("block_count", static_cast<int64_t>(decoder_.layers.size()));
    add_size("feed_forward_length", layer_.feed_forward.inner);
    add_size("attention.head_count", layer_.attention.heads);
    if (is_gpt2) {
      add_number("attention.layer_norm_epsilon", layer_.norm.eps);
      return;
    }
    add_size("attention.head_count_kv", kv_heads());
    add_size("attention.key_length", head_features());
    add_size("attention.value_length", head_features());
    add_number("attention.layer_norm_rms_epsilon", layer_.norm.eps);
  }

  void require_gpt2() const {
    const std::string& activation = layer_.feed_forward.activation;
    require(
        activation == "gelu_new" || activation == "gelu_pytorch_tanh",
        "activation_function");
    const double scale = 1 / std::sqrt(static_cast<double>(head_features()));
    require(
        std::all_of(
            decoder_.layers.begin(),
            decoder_.layers.end(),
            [&](const TransformerLayerOptions& layer) {
              return layer.attention.scale.value_or(scale) == scale;
            }),
        "attention scale (scale_attn_weights, "
        "scale_attn_by_inverse_layer_idx)");
  }

  void require_llama_like() const {
    require(layer_.feed_forward.activation == "silu", "hidden_act");
    const AttentionOptions& attention = layer_.attention;
    require(
        !attention.query_key_norm || !attention.query_bias,
        "norms after biases (attention_bias)");
    require(
        model_.architecture == "llama" ||
            (!attention.output_bias && !layer_.feed_forward.bias),
        "biases (attention_bias, add_bias_linear)");
  }

  void add_rotary(const RotaryOptions& rotary) {
    add_size("rope.dimension_count", rotary.features);
    add_number("rope.freq_base", rotary.base);
    const RotaryScaling& scaling = rotary.scaling;
    switch (scaling.kind) {
      case RotaryScalingKind::kNone:
        return;
      case RotaryScalingKind::kLinear:
        add("rope.scaling.type", std::string("linear"));
        add_number("rope.scaling.factor", scaling.factor);
        return;
      case RotaryScalingKind::kYarn:
        require(
            !scaling.attention_factor && scaling.mscale == 0 &&
                scaling.mscale_all_features == 0 && scaling.truncate,
            "rope_parameters");
        add("rope.scaling.type", std::string("yarn"));
        add_number("rope.scaling.factor", scaling.factor);
        add_size(
            "rope.scaling.original_context_length", scaling.original_positions);
        add_number("rope.scaling.yarn_beta_fast", scaling.beta_fast);
        add_number("rope.scaling.yarn_beta_slow", scaling.beta_slow);
        return;
      case RotaryScalingKind::kLlama3: {
        require(model_.architecture == "llama", "rope_parameters (llama3)");
        // The divisor of each frequency.
        RotaryOptions plain = rotary;
        plain.scaling = {};
        model_.more.emplace(
            "rope_freqs.weight",
            rotary_frequencies(plain, 1).inverse /
                rotary_frequencies(rotary, 1).inverse);
        return;
      }
      case RotaryScalingKind::kDynamic:
        require(false, "rope_parameters (dynamic)");
    }
  }

  void add_experts() {
    const auto with_experts = std::count_if(
        decoder_.layers.begin(), decoder_.layers.end(), [](const auto& layer) {
          return layer.experts.has_value();
        });
    if (with_experts == 0) {
      return;
    }
    require(
        with_experts == std::ssize(decoder_.layers),
        "layers without experts (decoder_sparse_step, mlp_only_layers)");
    const ExpertsOptions& experts = *layer_.experts;
    require(
        experts.normalise == (model_.architecture == "qwen3moe"),
        "norm_topk_prob");
    require(!experts.capacity_factor, "expert_capacity_factor");
    model_.experts = experts.experts;
    add_size("expert_count", experts.experts);
    add_size("expert_used_count", experts.experts_per_token);
    add_size("expert_feed_forward_length", experts.expert.inner);
    if (experts.shared) {
      add_size("expert_shared_feed_forward_length", experts.shared->inner);
    }
  }

  const DecoderConfig& decoder_;
  const TransformerLayerOptions& layer_;
  GgufModel model_;
};

} // namespace

GgufModel describe_gguf(const Model& model) {
  const nlohmann::json& config = model.config();
  std::string architecture =
      architecture_of(config.value("model_type", std::string()));
  const auto* decoder = dynamic_cast<const Decoder*>(&model);
  TESSERA_CHECK(
      decoder != nullptr && decoder->head_kind() == DecoderHead::kCausalLm,
      "GGUF export of '{}' is not implemented; only language models with their head can be exported",
      config.at("architectures").at(0).get<std::string>());
  return Description(std::move(architecture), decoder->decoder_config()).made();
}

} // namespace tessera::zoo
