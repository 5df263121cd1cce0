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

/// What a type of model calls what ModelCenter calls the same everywhere.
struct TypeNames {
  const char* model_type;
  const char* inner;
  const char* eps;
  const char* positions;
  const char* activation;
  std::vector<const char*> dropouts;
  /// Features of a head; null where they follow from the others.
  const char* head;
  bool scaled; ///< attention
};

/// GPT-2 and GPT-J.
TypeNames gpt_names(const char* type) {
  return {
      type,
      "n_inner",
      "layer_norm_epsilon",
      "n_positions",
      "activation_function",
      {"attn_pdrop", "resid_pdrop"},
      nullptr,
      true};
}

TypeNames bert_names(const char* type) {
  return {
      type,
      "intermediate_size",
      "layer_norm_eps",
      "max_position_embeddings",
      "hidden_act",
      {"attention_probs_dropout_prob", "hidden_dropout_prob"},
      nullptr,
      true};
}

/// T5, CPM-1 and CPM-2.
TypeNames t5_names(const char* type) {
  return {
      type,
      "d_ff",
      "layer_norm_epsilon",
      "n_positions",
      "feed_forward_proj",
      {"dropout_rate"},
      "d_kv",
      false};
}

const TypeNames& names_of(const ConfigFields& fields) {
  static const std::vector<TypeNames> kTypes = {
      bert_names("bert"),
      t5_names("cpm1"),
      t5_names("cpm2"),
      gpt_names("gpt2"),
      gpt_names("gptj"),
      {"llama",
       "intermediate_size",
       "rms_norm_eps",
       "max_position_embeddings",
       "hidden_act",
       {"attention_dropout"},
       "head_dim",
       true},
      bert_names("roberta"),
      t5_names("t5")};
  const auto type = fields.get<std::string>({"model_type"}, "");
  std::string list;
  for (const TypeNames& one : kTypes) {
    if (type == one.model_type) {
      return one;
    }
    list += (list.empty() ? "" : ", ") + std::string(one.model_type);
  }
  TESSERA_FAIL(
      fields.origin(),
      " has ModelCenter's names ('dim_model') and model_type '",
      type,
      "'; add 'model_type', one of ",
      list);
}

std::vector<Renamed> renamed_fields(const TypeNames& names) {
  return {
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
  for (const char* name : {"length_scale", "int8", "post_layer_norm"}) {
    fields.require_only(name, false);
  }
  fields.require_only("attn_scale", names.scaled);
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
      origin,
      ": dim_head ",
      head,
      " times num_heads ",
      heads,
      " is not dim_model ",
      features,
      ", as it is in every ",
      names.model_type);
  auto activation = fields.get<std::string>({"ffn_activate_fn"}, "gelu");
  const std::string gated = "gated_";
  const bool is_gated = activation.starts_with(gated);
  if (is_gated) {
    activation = activation.substr(gated.size());
  }
  if (!names.scaled) { // T5's field says whether there is a gate.
    result[names.activation] = (is_gated ? "gated-" : "") + activation;
    return result;
  }
  // ModelCenter's is the one with tanh.
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
