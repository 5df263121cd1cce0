// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/megatron_weights.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/weights/file_regions.h"
#include "tessera/zoo/formats/config_fields.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tessera::zoo {

namespace {

using nlohmann::json;
using sharding::WeightEntry;

constexpr const char* kBias = ".bias";

/// What a tensor of a layer is.
enum class Role {
  kAttentionNorm,
  kFeedForwardNorm,
  kQueryNorm,
  kKeyNorm,
  kQueryKeyValue,
  kAttentionOutput,
  kUp, ///< with the gate in front of it, if there is one
  kDown,
};

struct RoleRow {
  std::string_view foreign; ///< behind the number of the layer
  Role role;
  std::string_view end; ///< ".weight", ".bias"
};

/// Names of Megatron's layers, Megatron-Core's, and Transformer Engine's,
/// which has norms in the linear layers behind them.
constexpr std::array kRoles{
    RoleRow{"input_layernorm", Role::kAttentionNorm, ""},
    RoleRow{"input_norm", Role::kAttentionNorm, ""},
    RoleRow{
        "self_attention.linear_qkv.layer_norm_weight",
        Role::kAttentionNorm,
        ".weight"},
    RoleRow{
        "self_attention.linear_qkv.layer_norm_bias",
        Role::kAttentionNorm,
        kBias},
    RoleRow{
        "self_attention.layernorm_qkv.layer_norm_weight",
        Role::kAttentionNorm,
        ".weight"},
    RoleRow{
        "self_attention.layernorm_qkv.layer_norm_bias",
        Role::kAttentionNorm,
        kBias},
    RoleRow{"post_attention_layernorm", Role::kFeedForwardNorm, ""},
    RoleRow{"post_attention_norm", Role::kFeedForwardNorm, ""},
    RoleRow{"pre_mlp_layernorm", Role::kFeedForwardNorm, ""},
    RoleRow{
        "mlp.linear_fc1.layer_norm_weight",
        Role::kFeedForwardNorm,
        ".weight"},
    RoleRow{"mlp.linear_fc1.layer_norm_bias", Role::kFeedForwardNorm, kBias},
    RoleRow{
        "layernorm_mlp.layer_norm_weight",
        Role::kFeedForwardNorm,
        ".weight"},
    RoleRow{"layernorm_mlp.layer_norm_bias", Role::kFeedForwardNorm, kBias},
    RoleRow{"self_attention.q_layernorm", Role::kQueryNorm, ""},
    RoleRow{"self_attention.k_layernorm", Role::kKeyNorm, ""},
    RoleRow{"attention.query_key_value", Role::kQueryKeyValue, ""},
    RoleRow{"self_attention.query_key_value", Role::kQueryKeyValue, ""},
    RoleRow{"self_attention.linear_qkv", Role::kQueryKeyValue, ""},
    RoleRow{"self_attention.layernorm_qkv", Role::kQueryKeyValue, ""},
    RoleRow{"attention.dense", Role::kAttentionOutput, ""},
    RoleRow{"self_attention.dense", Role::kAttentionOutput, ""},
    RoleRow{"self_attention.proj", Role::kAttentionOutput, ""},
    RoleRow{"self_attention.linear_proj", Role::kAttentionOutput, ""},
    RoleRow{"mlp.dense_h_to_4h", Role::kUp, ""},
    RoleRow{"mlp.linear_fc1", Role::kUp, ""},
    RoleRow{"layernorm_mlp.fc1_weight", Role::kUp, ".weight"},
    RoleRow{"layernorm_mlp.fc1_bias", Role::kUp, kBias},
    RoleRow{"mlp.dense_4h_to_h", Role::kDown, ""},
    RoleRow{"mlp.linear_fc2", Role::kDown, ""},
    RoleRow{"layernorm_mlp.fc2_weight", Role::kDown, ".weight"},
    RoleRow{"layernorm_mlp.fc2_bias", Role::kDown, kBias},
};

struct LayerTensor {
  Role role;
  std::string end; ///< ".weight" or ".bias"
};

std::optional<LayerTensor> layer_tensor(std::string_view rest) {
  for (const RoleRow& row : kRoles) {
    if (!row.end.empty() ? rest == row.foreign
                         : rest.starts_with(row.foreign)) {
      const std::string end(
          row.end.empty() ? rest.substr(row.foreign.size()) : row.end);
      if (end == ".weight" || end == kBias) {
        return LayerTensor{row.role, end};
      }
    }
  }
  return std::nullopt;
}

/// The architecture, as config.json has it.
struct GptShape {
  bool is_gpt2 = false;
  bool is_tied = false;
  int64_t vocab = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
};

GptShape gpt_shape_of(
    const json& config,
    const MegatronCheckpoint& checkpoint) {
  const ConfigFields fields(config, checkpoint.path().string());
  const std::string type = fields.get<std::string>({"model_type"}, "");
  TESSERA_CHECK(
      type == "gpt2" || type == "llama" || type == "qwen2" || type == "qwen3",
      "{}: a checkpoint of Megatron-LM can be read as gpt2, llama, qwen2 or qwen3; 'model_type' of config.json is '{}'",
      checkpoint.path(),
      type);
  GptShape shape;
  shape.is_gpt2 = type == "gpt2";
  shape.is_tied = fields.get<bool>({"tie_word_embeddings"}, shape.is_gpt2);
  shape.vocab = fields.size({"vocab_size"});
  shape.heads = fields.size({"num_attention_heads", "n_head"});
  shape.kv_heads = shape.is_gpt2
                       ? shape.heads
                       : fields.size({"num_key_value_heads"}, shape.heads);
  const auto check_same = [&](const char* option, int64_t expected) {
    TESSERA_CHECK(
        checkpoint.integer(option).value_or(expected) == expected,
        "{}: the run had {} = {}, but config.json says {}; give the config.json of this model",
        checkpoint.path(),
        option,
        checkpoint.integer(option).value_or(0),
        expected);
  };
  check_same("num_attention_heads", shape.heads);
  if (checkpoint.flag("group_query_attention").value_or(false)) {
    check_same("num_query_groups", shape.kv_heads);
  }
  return shape;
}

/// Converts tensor by tensor.
class MegatronConversion {
 public:
  MegatronConversion(const MegatronCheckpoint& checkpoint, const json& config)
      : checkpoint_(checkpoint), shape_(gpt_shape_of(config, checkpoint)) {
    const int64_t ranks = checkpoint.tensor_ranks();
    TESSERA_CHECK(
        shape_.heads % shape_.kv_heads == 0 && shape_.kv_heads % ranks == 0,
        "{}: {} heads with {} keys cannot have been divided over {} tensor-parallel ranks; give the config.json of this model",
        checkpoint.path(),
        shape_.heads,
        shape_.kv_heads,
        ranks);
  }

  sharding::WeightSet convert() {
    for (const auto& [name, parts] : checkpoint_.tensors()) {
      add(name, parts);
    }
    return {std::move(entries_), checkpoint_.files()};
  }

 private:
  using Parts = std::vector<WeightEntry>;

  void add(const std::string& name, const Parts& parts) {
    const bool is_gpt2 = shape_.is_gpt2;
    if (name == "embedding.word_embeddings.weight") {
      put(is_gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight",
          without_padding(concatenated(name, parts, 0)));
    } else if (name == "embedding.position_embeddings.weight" && is_gpt2) {
      put("transformer.wpe.weight", parts.front());
    } else if (name == "output_layer.weight") {
      if (!shape_.is_tied) { // else a copy for the last pipeline stage
        put("lm_head.weight", without_padding(concatenated(name, parts, 0)));
      }
    } else if (
        name.starts_with("decoder.final_layernorm.") ||
        name.starts_with("decoder.final_norm.")) {
      put((is_gpt2 ? "transformer.ln_f" : "model.norm") +
              name.substr(name.rfind('.')),
          parts.front());
    } else if (name.starts_with(kMegatronLayers)) {
      const size_t end = name.find('.', kMegatronLayers.size());
      const auto tensor = layer_tensor(
          std::string_view(name).substr(std::min(end, name.size() - 1) + 1));
      if (!tensor) {
        fail(name);
      }
      add_of_layer(
          (is_gpt2 ? "transformer.h." : "model.layers.") +
              name.substr(
                  kMegatronLayers.size(), end - kMegatronLayers.size()) +
              ".",
          *tensor,
          name,
          parts);
    } else {
      fail(name);
    }
  }

  void add_of_layer(
      const std::string& layer,
      const LayerTensor& tensor,
      const std::string& name,
      const Parts& parts) {
    const auto put_as =
        [&](const char* gpt2, const char* llama, const WeightEntry& entry) {
          if (shape_.is_gpt2 && *gpt2 == '\0') {
            fail(name);
          }
          put(layer + (shape_.is_gpt2 ? gpt2 : llama) + tensor.end, entry);
        };
    // Megatron's matrices have one row for each output, GPT-2's one column.
    const auto matrix = [&](const WeightEntry& entry) {
      return shape_.is_gpt2 ? transposed(entry) : entry;
    };
    // What is divided along its inputs has one bias for all ranks.
    const auto of_inputs = [&] {
      return tensor.end == kBias ? parts.front() : concatenated(name, parts, 1);
    };
    switch (tensor.role) {
      case Role::kAttentionNorm:
        put_as("ln_1", "input_layernorm", parts.front());
        return;
      case Role::kFeedForwardNorm:
        put_as("ln_2", "post_attention_layernorm", parts.front());
        return;
      case Role::kQueryNorm:
        put_as("", "self_attn.q_norm", parts.front());
        return;
      case Role::kKeyNorm:
        put_as("", "self_attn.k_norm", parts.front());
        return;
      case Role::kAttentionOutput:
        put_as("attn.c_proj", "self_attn.o_proj", matrix(of_inputs()));
        return;
      case Role::kDown:
        put_as("mlp.c_proj", "mlp.down_proj", matrix(of_inputs()));
        return;
      case Role::kUp:
        if (shape_.is_gpt2) {
          put_as("mlp.c_fc", "", matrix(concatenated(name, parts, 0)));
        } else {
          put_as("", "mlp.gate_proj", half_of_each(name, parts, 0));
          put_as("", "mlp.up_proj", half_of_each(name, parts, 1));
        }
        return;
      case Role::kQueryKeyValue:
        add_query_key_value(layer, tensor, name, parts);
        return;
    }
  }

  void add_query_key_value(
      const std::string& layer,
      const LayerTensor& tensor,
      const std::string& name,
      const Parts& parts) {
    std::array<Parts, 3> projections; // of all ranks
    for (const WeightEntry& part : parts) {
      auto rank_parts = divided(name, part);
      for (size_t i = 0; i < rank_parts.size(); ++i) {
        projections[i].push_back(std::move(rank_parts[i]));
      }
    }
    Parts full;
    for (const Parts& of_ranks : projections) {
      full.push_back(concatenated(name, of_ranks, 0));
    }
    if (shape_.is_gpt2) {
      put(layer + "attn.c_attn" + tensor.end,
          transposed(concatenated(name, full, 0)));
      return;
    }
    constexpr std::array kNames{"q_proj", "k_proj", "v_proj"};
    for (size_t i = 0; i < kNames.size(); ++i) {
      put(layer + "self_attn." + kNames[i] + tensor.end, full[i]);
    }
  }

  /// Queries, keys and values of one rank.
  std::array<WeightEntry, 3> divided(
      const std::string& name,
      const WeightEntry& part) const {
    const int64_t groups = shape_.kv_heads / checkpoint_.tensor_ranks();
    const int64_t queries = shape_.heads / shape_.kv_heads; // of a group
    const int64_t rows = part.shape.empty() ? 0 : part.shape.front();
    const int64_t features = rows / (groups * (queries + 2));
    TESSERA_CHECK(
        features > 0 && rows == features * groups * (queries + 2) &&
            (queries == 1 || is_by_group()),
        "{}: '{}' has the sizes {} on a rank, which does not fit {} heads with {} keys and values over {} ranks (version {}); give the config.json of this model",
        checkpoint_.path(),
        name,
        at::IntArrayRef(part.shape),
        shape_.heads,
        shape_.kv_heads,
        checkpoint_.tensor_ranks(),
        checkpoint_.version());
    if (!is_by_group()) {
      const int64_t third = rows / 3;
      return checkpoint_.version() >= 1
                 ? std::
                       array{every(part, 0, 0, 3), every(part, 0, 1, 3), every(part, 0, 2, 3)}
                 : std::array{
                       narrowed(part, 0, 0, third),
                       narrowed(part, 0, third, 2 * third),
                       narrowed(part, 0, 2 * third, rows)};
    }
    std::array<Parts, 3> found;
    for (int64_t group = 0; group < groups; ++group) {
      int64_t row = group * (queries + 2) * features;
      for (size_t i = 0; i < found.size(); ++i) {
        const int64_t end = row + (i == 0 ? queries : 1) * features;
        found[i].push_back(narrowed(part, 0, row, end));
        row = end;
      }
    }
    return {
        concatenated(name, found[0], 0),
        concatenated(name, found[1], 0),
        concatenated(name, found[2], 0)};
  }

  bool is_by_group() const {
    return checkpoint_.version() >= 2;
  }

  /// Gates or what they multiply: a half of what each rank has.
  static WeightEntry half_of_each(
      const std::string& name,
      const Parts& parts,
      int64_t half) {
    Parts halves;
    for (const WeightEntry& part : parts) {
      const int64_t rows = part.shape.empty() ? 0 : part.shape.front() / 2;
      halves.push_back(narrowed(part, 0, half * rows, (half + 1) * rows));
    }
    return concatenated(name, halves, 0);
  }

  WeightEntry without_padding(const WeightEntry& table) const {
    return narrowed(table, 0, 0, shape_.vocab);
  }

  void put(const std::string& name, WeightEntry entry) {
    entry.name = name;
    TESSERA_CHECK(
        entries_.emplace(name, std::move(entry)).second,
        "{}: two tensors are '{}'",
        checkpoint_.path(),
        name);
  }

  [[noreturn]] void fail(const std::string& name) const {
    TESSERA_FAIL(
        "{}: '{}' is no tensor of a {} of Megatron-LM that could be converted; give the config.json of this model",
        checkpoint_.path(),
        name,
        shape_.is_gpt2 ? "GPT" : "LLaMA");
  }

  const MegatronCheckpoint& checkpoint_;
  GptShape shape_;
  std::map<std::string, WeightEntry> entries_;
};

/// The activation of GPT's feed-forward layers.
std::string activation_of(const MegatronCheckpoint& checkpoint) {
  if (checkpoint.flag("squared_relu").value_or(false)) {
    return "relu2";
  }
  // Fused with the bias, it is the approximation by tanh.
  return checkpoint.flag("openai_gelu").value_or(false)        ? "gelu_new"
         : checkpoint.flag("bias_gelu_fusion").value_or(false) ? "gelu_fast"
                                                               : "gelu";
}

} // namespace

json megatron_config(const MegatronCheckpoint& checkpoint) {
  TESSERA_CHECK(
      checkpoint.has_options(),
      "{}: the checkpoint does not have the options of its run; give the folder of a model with the same config.json (tessera convert --from), and the checkpoint as weights (--weights)",
      checkpoint.path());
  const auto size = [&](const char* option) {
    const auto value = checkpoint.integer(option);
    TESSERA_CHECK(
        value,
        "{}: the options of the run have no number '{}'; give a config.json (tessera convert --from)",
        checkpoint.path(),
        option);
    return *value;
  };
  const auto is_set = [&](const char* option) {
    return checkpoint.flag(option).value_or(false);
  };
  for (const char* option :
       {"apply_layernorm_1p",
        "multi_latent_attention",
        "rotary_interleaved",
        "use_rope_scaling"}) {
    TESSERA_CHECK(
        !is_set(option),
        "{}: the run had {}, which is not supported",
        checkpoint.path(),
        option);
  }
  TESSERA_CHECK(
      checkpoint.integer("num_experts").value_or(0) == 0 &&
          checkpoint.number("rotary_percent").value_or(1) == 1,
      "{}: the run had experts, or rotated a part of the features only, which is not supported",
      checkpoint.path());
  int64_t vocab = size("padded_vocab_size");
  for (const char* option : {"vocab_size", "orig_vocab_size"}) {
    vocab = checkpoint.integer(option).value_or(vocab);
  }
  const std::string positions =
      checkpoint.text("position_embedding_type").value_or("learned_absolute");
  const std::string norm =
      checkpoint.text("normalization").value_or("LayerNorm");
  const double eps =
      checkpoint.number("norm_epsilon")
          .value_or(checkpoint.number("layernorm_epsilon").value_or(1e-5));
  json config{
      {"vocab_size", vocab},
      {"initializer_range",
       checkpoint.number("init_method_std").value_or(0.02)},
      {"tie_word_embeddings", !is_set("untie_embeddings_and_output_weights")}};
  if (positions == "learned_absolute" && norm == "LayerNorm" &&
      !is_set("swiglu") && !is_set("group_query_attention")) {
    config.update(
        {{"model_type", "gpt2"},
         {"architectures", {"GPT2LMHeadModel"}},
         {"n_positions", size("max_position_embeddings")},
         {"n_embd", size("hidden_size")},
         {"n_layer", size("num_layers")},
         {"n_head", size("num_attention_heads")},
         {"n_inner", size("ffn_hidden_size")},
         {"activation_function", activation_of(checkpoint)},
         {"layer_norm_epsilon", eps},
         {"resid_pdrop", checkpoint.number("hidden_dropout").value_or(0.1)},
         {"embd_pdrop", checkpoint.number("hidden_dropout").value_or(0.1)},
         {"attn_pdrop", checkpoint.number("attention_dropout").value_or(0.1)}});
    return config;
  }
  TESSERA_CHECK(
      positions == "rope" && norm == "RMSNorm" && is_set("swiglu") &&
          !checkpoint.flag("add_bias_linear").value_or(true),
      "{}: neither a GPT-2 nor a LLaMA: position_embedding_type is '{}', normalization '{}', swiglu {}, group_query_attention {}, add_bias_linear {}; GPT-2 has learned positions and LayerNorm, LLaMA rope, RMSNorm and swiglu, without biases",
      checkpoint.path(),
      positions,
      norm,
      is_set("swiglu"),
      is_set("group_query_attention"),
      checkpoint.flag("add_bias_linear").value_or(true));
  const int64_t heads = size("num_attention_heads");
  const bool has_norms = is_set("qk_layernorm");
  const bool has_biases = is_set("add_qkv_bias");
  TESSERA_CHECK(
      !has_norms || !has_biases,
      "{}: the run had qk_layernorm and add_qkv_bias, which no supported model has together",
      checkpoint.path());
  config.update(
      {{"model_type",
        has_norms    ? "qwen3"
        : has_biases ? "qwen2"
                     : "llama"},
       {"architectures",
        {has_norms    ? "Qwen3ForCausalLM"
         : has_biases ? "Qwen2ForCausalLM"
                      : "LlamaForCausalLM"}},
       {"hidden_size", size("hidden_size")},
       {"intermediate_size", size("ffn_hidden_size")},
       {"num_hidden_layers", size("num_layers")},
       {"num_attention_heads", heads},
       {"num_key_value_heads",
        is_set("group_query_attention") ? size("num_query_groups") : heads},
       {"max_position_embeddings", size("max_position_embeddings")},
       {"rms_norm_eps", eps},
       {"rope_theta", checkpoint.number("rotary_base").value_or(10000)}});
  if (const auto features = checkpoint.integer("kv_channels")) {
    config["head_dim"] = *features;
  }
  return config;
}

sharding::WeightFiles megatron_weights(
    const MegatronCheckpoint& checkpoint,
    const json& config) {
  return sharding::WeightFiles::of(
      checkpoint.path(), MegatronConversion(checkpoint, config).convert());
}

} // namespace tessera::zoo
