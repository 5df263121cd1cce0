// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/model_center.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/models/config_fields.h"

#include <vector>

namespace tessera::zoo {

namespace {

struct Renamed {
  const char* theirs;
  std::vector<const char*> ours;
};

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
  /// Fixed properties of the type, which a file may repeat.
  bool post_norm = false;
  bool norm_bias = true;
  bool attention_bias = true;
  bool inner_bias = true;
  const char* position_kind = "none"; ///< the only pos_bias_type of the type
  std::vector<Renamed> more = {};
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
      .position_kind = "rotary"};
}

TypeNames opt_keys() {
  return {
      .model_type = "opt",
      .inner = "ffn_dim",
      .eps = "layer_norm_eps", // 1e-5 in all of them
      .positions = "max_position_embeddings",
      .activation = "activation_function",
      .dropouts = {"dropout", "attention_dropout"},
      .more = {{"pad_token_id", {"pad_token_id"}}}};
}

/// T5, CPM-1 and CPM-2.
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
      .position_kind = "relative"};
}

const TypeNames& names_of(const ConfigFields& fields) {
  static const std::vector<TypeNames> kTypes = {
      bert_keys("bert"),
      t5_keys("cpm1"),
      t5_keys("cpm2"),
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
      "{} has ModelCenter's names ('dim_model') and model_type '{}'; add 'model_type', one of {}",
      fields.origin(),
      type,
      list);
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
  fields.require_only("length_scale", false);
  fields.require_only("int8", false);
  fields.require_only("post_layer_norm", names.post_norm);
  fields.require_only("attn_scale", names.scaled);
  fields.require_only("norm_bias", names.norm_bias);
  fields.require_only("att_bias", names.attention_bias);
  fields.require_only("ffn_bias", names.inner_bias);
  fields.require_only("pos_bias_type", std::string(names.position_kind));
}

} // namespace

bool is_model_center(const nlohmann::json& config) {
  return config.is_object() && config.contains("dim_model");
}

nlohmann::json from_model_center(
    const nlohmann::json& config,
    const std::string& origin) {
  const ConfigFields fields(config, origin);
  const TypeNames& names = names_of(fields);
  check_variant(fields, names);
  nlohmann::json result = {{"model_type", names.model_type}};
  for (const Renamed& renamed : renamed_fields(names)) {
    if (const auto value = fields.json(renamed.theirs)) {
      for (const char* ours : renamed.ours) {
        result[ours] = *value;
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
  auto activation = fields.get<std::string>({"ffn_activate_fn"}, "gelu");
  const std::string gated = "gated_";
  const bool is_gated = activation.starts_with(gated);
  if (is_gated) {
    activation = activation.substr(gated.size());
  }
  if (!names.scaled) { // T5's field includes the gate
    result[names.activation] = (is_gated ? "gated-" : "") + activation;
    return result;
  }
  // ModelCenter's gelu is the tanh approximation.
  result[names.activation] = activation == "gelu" ? "gelu_new" : activation;
  return result;
}

std::string model_center_names(
    const nlohmann::json& config,
    const std::string& origin) {
  std::string text;
  for (const Renamed& renamed :
       renamed_fields(names_of(ConfigFields(config, origin)))) {
    if (!config.contains(renamed.theirs)) {
      continue;
    }
    for (const std::string ours : renamed.ours) {
      if (ours != renamed.theirs) {
        text +=
            (text.empty() ? "" : ", ") + ours + " is '" + renamed.theirs + "'";
      }
    }
  }
  return text;
}

} // namespace tessera::zoo
