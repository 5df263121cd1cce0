// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/model_center.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/formats/config_fields.h"

#include <string_view>
#include <vector>

namespace tessera::zoo {

namespace {

struct Renamed {
  const char* foreign;
  std::vector<const char*> native;
};

/// Converts what is not just renamed.
using Convert = void (*)(const ConfigFields& fields, nlohmann::json& result);

/// The field names of one model type for what ModelCenter names uniformly.
struct TypeNames {
  const char* model_type;
  const char* inner;
  const char* eps;
  const char* positions;
  const char* activation;
  std::vector<const char*> dropouts;
  /// Head size; null if it follows from the other fields.
  const char* head = nullptr;
  bool scaled = true; ///< attention scores are scaled
  bool chooses_scales = false; ///< the model has length_scale and attn_scale
  /// Fixed properties of the type, which a file may repeat.
  bool post_norm = false;
  bool norm_bias = true;
  bool attention_bias = true;
  bool inner_bias = true;
  const char* position_kind = "none"; ///< the only pos_bias_type of the type
  std::vector<Renamed> more = {};
  const char* default_activation = "gelu"; ///< of ffn_activate_fn
  Convert convert = nullptr;
};

/// GPT-2 and GPT-J.
TypeNames gpt_keys(const char* type) {
  return {
      .model_type = type,
      .inner = "n_inner",
      .eps = "layer_norm_epsilon",
      .positions = "n_positions",
      .activation = "activation_function",
      .dropouts = {"attn_pdrop", "resid_pdrop"}};
}

TypeNames gptj_keys() {
  TypeNames names = gpt_keys("gptj");
  names.attention_bias = false;
  names.position_kind = "rotary";
  return names;
}

/// BERT, RoBERTa and Longformer.
TypeNames bert_keys(const char* type, const std::vector<Renamed>& more = {}) {
  return {
      .model_type = type,
      .inner = "intermediate_size",
      .eps = "layer_norm_eps",
      .positions = "max_position_embeddings",
      .activation = "hidden_act",
      .dropouts = {"attention_probs_dropout_prob", "hidden_dropout_prob"},
      .post_norm = true,
      .more = more};
}

TypeNames llama_keys() {
  return {
      .model_type = "llama",
      .inner = "intermediate_size",
      .eps = "rms_norm_eps",
      .positions = "max_position_embeddings",
      .activation = "hidden_act",
      .dropouts = {"attention_dropout"},
      .head = "head_dim",
      .norm_bias = false,
      .attention_bias = false,
      .inner_bias = false,
      .position_kind = "rotary",
      .default_activation = "gated_silu"};
}

TypeNames opt_keys() {
  return {
      .model_type = "opt",
      .inner = "ffn_dim",
      .eps = "layer_norm_eps", // 1e-5 in all of them
      .positions = "max_position_embeddings",
      .activation = "activation_function",
      .dropouts = {"dropout", "attention_dropout"},
      .more = {{"pad_token_id", {"pad_token_id"}}},
      .default_activation = "relu"};
}

/// @throws tessera::Error if tokens are classified.
void refuse_classes(const ConfigFields& fields, nlohmann::json& result) {
  const auto classes = fields.json("cls_head");
  TESSERA_CHECK(
      !classes || *classes == 0,
      "{}: 'cls_head' is {}; a {} has no head that classifies tokens",
      fields.origin(),
      runtime::show_json(*classes),
      result.at("model_type").get<std::string>());
  result.erase("num_labels");
}

/// GLM of 2021. Its inner features are four times its features, and its gelu is
/// the approximation, which the weights were trained with; ModelCenter computes
/// the exact one.
void convert_glm(const ConfigFields& fields, nlohmann::json& result) {
  const int64_t features = fields.size({"dim_model"});
  const int64_t inner = fields.size({"dim_ff"}, 4096);
  TESSERA_CHECK(
      inner == 4 * features,
      "{}: 'dim_ff' is {}; in a glm it must be four times 'dim_model', {}",
      fields.origin(),
      inner,
      4 * features);
  refuse_classes(fields, result);
  const auto activation = result.at("hidden_act").get<std::string>();
  TESSERA_CHECK(
      activation.starts_with("gelu"),
      "{}: 'ffn_activate_fn' is {}; in a glm only gelu is implemented",
      fields.origin(),
      activation);
  // One position is of padding in GLM's own files.
  const int64_t positions = fields.size({"position_size"}, 1025);
  TESSERA_CHECK(
      positions > 1,
      "{}: 'position_size' is {}; it must be at least 2",
      fields.origin(),
      positions);
  result["max_sequence_length"] = positions - 1;
  result.erase("hidden_act");
  result.erase("intermediate_size");
  result.erase("tie_word_embeddings"); // always
  if (!result.contains("architectures")) {
    // GLM-4 has the same type.
    result["architectures"] = {"GLMForConditionalGeneration"};
  }
}

TypeNames glm_keys() {
  return {
      .model_type = "glm",
      .inner = "intermediate_size",
      .eps = "layernorm_epsilon",
      .positions = "max_sequence_length",
      .activation = "hidden_act",
      .dropouts =
          {"embedding_dropout_prob",
           "attention_dropout_prob",
           "output_dropout_prob"},
      .convert = convert_glm};
}

/// T5.
TypeNames t5_keys(const char* type) {
  return {
      .model_type = type,
      .inner = "d_ff",
      .eps = "layer_norm_epsilon",
      .positions = "n_positions",
      .activation = "feed_forward_proj",
      .dropouts = {"dropout_rate"},
      .head = "d_kv",
      .scaled = false,
      .norm_bias = false,
      .attention_bias = false,
      .inner_bias = false,
      .position_kind = "relative",
      .default_activation = "relu"};
}

/// CPM-1, CPM-2 and CPM-3.
TypeNames cpm_keys(const char* type, const std::vector<Renamed>& more = {}) {
  TypeNames names = t5_keys(type);
  names.chooses_scales = true;
  names.convert = refuse_classes;
  names.default_activation = "gated_gelu";
  names.more = more;
  names.more.push_back({"length_scale", {"length_scale"}});
  names.more.push_back({"attn_scale", {"attn_scale"}});
  return names;
}

TypeNames cpm3_keys() {
  std::vector<Renamed> same;
  for (const char* name :
       {"prompt_types",
        "prompt_length",
        "segment_types",
        "absolute_inner_segment"}) {
    same.push_back({name, {name}});
  }
  return cpm_keys("cpm3", same);
}

const TypeNames& names_of(const ConfigFields& fields) {
  static const std::vector<TypeNames> kTypes = {
      bert_keys("bert"),
      cpm_keys("cpm1"),
      cpm_keys("cpm2"),
      cpm3_keys(),
      glm_keys(),
      gpt_keys("gpt2"),
      gptj_keys(),
      llama_keys(),
      bert_keys(
          "longformer",
          {{"attention_window", {"attention_window"}},
           {"sep_tok_id", {"sep_token_id"}},
           {"pad_token_id", {"pad_token_id"}}}),
      opt_keys(),
      bert_keys("roberta", {{"pad_token_id", {"pad_token_id"}}}),
      t5_keys("t5")};
  const auto type = fields.get<std::string>({"model_type"}, "");
  std::string list;
  for (const TypeNames& one : kTypes) {
    if (type == one.model_type) {
      return one;
    }
    list += (list.empty() ? "" : ", ") + std::string(one.model_type);
  }
  TESSERA_FAIL(
      "{} has ModelCenter's names ('dim_model') and model_type '{}'; add 'model_type', one of {}, or vit for one with 'mlp_size'",
      fields.origin(),
      type,
      list);
}

/// ViT's fields, which have names of their own, and their defaults.
struct VitField {
  const char* foreign;
  std::vector<const char*> native;
  nlohmann::json otherwise;
};

const std::vector<VitField>& vit_fields() {
  static const std::vector<VitField> kFields = {
      {"img_size", {"image_size"}, 224},
      {"patch_size", {"patch_size"}, 16},
      {"channels_in", {"num_channels"}, 3},
      {"num_classes", {"num_labels"}, 1000},
      {"hidden_size", {"hidden_size"}, 768},
      {"num_layers", {"num_hidden_layers"}, 12},
      {"num_heads", {"num_attention_heads"}, 12},
      {"mlp_size", {"intermediate_size"}, 3072},
      {"drop", {"hidden_dropout_prob", "attention_probs_dropout_prob"}, 0.0}};
  return kFields;
}

bool is_vit(const nlohmann::json& config) {
  return config.contains("mlp_size") && !config.contains("dim_model");
}

nlohmann::json from_vit(const ConfigFields& fields) {
  const auto type = fields.get<std::string>({"model_type"}, "");
  TESSERA_CHECK(
      type == "vit",
      "{} has the names of ModelCenter's ViT ('mlp_size') and model_type '{}'; the 'model_type' must be vit",
      fields.origin(),
      type);
  // Hugging Face's `qkv_bias` leaves the bias of the output projection.
  fields.require_only("attn_bias", true);
  fields.require_only("norm_bias", true);
  fields.require_only("ffn_bias", true);
  const auto layer = fields.json("representation_size");
  TESSERA_CHECK(
      !layer,
      "{}: 'representation_size' is {}; a vit has no layer before its classifier",
      fields.origin(),
      runtime::show_json(*layer));
  nlohmann::json result = {
      {"model_type", "vit"}, {"layer_norm_eps", 1e-5}, {"hidden_act", "gelu"}};
  for (const VitField& field : vit_fields()) {
    for (const char* native : field.native) {
      result[native] = fields.json_or(field.foreign, field.otherwise);
    }
  }
  if (const auto names = fields.json("architectures")) {
    result["architectures"] = *names;
  }
  return result;
}

std::vector<Renamed> renamed_fields(const TypeNames& names) {
  std::vector<Renamed> fields = {
      {"vocab_size", {"vocab_size"}},
      {"dim_model", {"hidden_size"}},
      {"num_layers", {"num_hidden_layers"}},
      {"num_encoder_layers", {"num_hidden_layers"}},
      {"num_decoder_layers", {"num_decoder_layers"}},
      {"num_heads", {"num_attention_heads"}},
      {"dim_ff", {names.inner}},
      {"norm_eps", {names.eps}},
      {"position_size", {names.positions}},
      {"type_size", {"type_vocab_size"}},
      {"position_bias_num_buckets", {"relative_attention_num_buckets"}},
      {"position_bias_max_distance", {"relative_attention_max_distance"}},
      {"pos_rotary_dim", {"rotary_dim"}},
      {"dropout_p", names.dropouts},
      {"att_init_std", {"initializer_range"}},
      {"tied", {"tie_word_embeddings"}},
      {"architectures", {"architectures"}},
      {"cls_head", {"num_labels"}},
      {"ffn_activate_fn", {names.activation}},
      {"dim_head", {names.head == nullptr ? "dim_head" : names.head}}};
  fields.insert(fields.end(), names.more.begin(), names.more.end());
  return fields;
}

/// @throws tessera::Error if the file has a property that no model of the type
///     has.
void check_variant(const ConfigFields& fields, const TypeNames& names) {
  if (!names.chooses_scales) {
    fields.require_only("length_scale", false);
    fields.require_only("attn_scale", names.scaled);
  }
  fields.require_only("int8", false);
  fields.require_only("post_layer_norm", names.post_norm);
  fields.require_only("norm_bias", names.norm_bias);
  fields.require_only("att_bias", names.attention_bias);
  fields.require_only("ffn_bias", names.inner_bias);
  fields.require_only("pos_bias_type", std::string(names.position_kind));
}

} // namespace

bool is_model_center(const nlohmann::json& config) {
  return config.is_object() && (config.contains("dim_model") || is_vit(config));
}

nlohmann::json from_model_center(
    const nlohmann::json& config,
    const std::string& origin) {
  const ConfigFields fields(config, origin);
  if (is_vit(config)) {
    return from_vit(fields);
  }
  const TypeNames& names = names_of(fields);
  check_variant(fields, names);
  nlohmann::json result = {{"model_type", names.model_type}};
  for (const Renamed& renamed : renamed_fields(names)) {
    if (const auto value = fields.json(renamed.foreign)) {
      for (const char* native : renamed.native) {
        result[native] = *value;
      }
    }
  }
  result.erase("dim_head");
  const int64_t features = fields.size({"dim_model"});
  const int64_t heads = fields.size({"num_heads"});
  const int64_t head = fields.size({"dim_head"}, features / heads);
  if (names.head != nullptr) {
    result[names.head] = head;
  }
  TESSERA_CHECK(
      names.head != nullptr || head * heads == features,
      "{}: dim_head {} times num_heads {} is not dim_model {}, as it must be in a {}",
      origin,
      head,
      heads,
      features,
      names.model_type);
  auto activation =
      fields.get<std::string>({"ffn_activate_fn"}, names.default_activation);
  const std::string gated = "gated_";
  const bool is_gated = activation.starts_with(gated);
  if (is_gated) {
    activation = activation.substr(gated.size());
  }
  if (!names.scaled) { // T5's field includes the gate
    result[names.activation] = (is_gated ? "gated-" : "") + activation;
  } else {
    const bool must_be_gated =
        std::string_view(names.default_activation).starts_with(gated);
    TESSERA_CHECK(
        is_gated == must_be_gated,
        "{}: 'ffn_activate_fn' is {}; feed-forward layers of a {} {} gated",
        origin,
        fields.get<std::string>({"ffn_activate_fn"}, ""),
        names.model_type,
        must_be_gated ? "must be" : "are not");
    // As in Hugging Face's files, gelu is the exact one and gelu_new an
    // approximation.
    result[names.activation] = activation;
  }
  if (names.convert != nullptr) {
    names.convert(fields, result);
  }
  return result;
}

std::string model_center_names(
    const nlohmann::json& config,
    const std::string& origin) {
  std::vector<Renamed> all;
  if (is_vit(config)) {
    for (const VitField& field : vit_fields()) {
      all.push_back({field.foreign, field.native});
    }
  } else {
    all = renamed_fields(names_of(ConfigFields(config, origin)));
  }
  std::string text;
  for (const Renamed& renamed : all) {
    if (!config.contains(renamed.foreign)) {
      continue;
    }
    for (const std::string native : renamed.native) {
      if (native != renamed.foreign) {
        text += (text.empty() ? "" : ", ") + native + " is '" +
                renamed.foreign + "'";
      }
    }
  }
  return text;
}

} // namespace tessera::zoo
