// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/config_fields.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/io/known_keys.h"
#include "tessera/zoo/layers/activation.h"

#include <algorithm>
#include <cmath>

namespace tessera::zoo {

namespace {

/// Fields that describe no layer: of the library and the training program, of
/// generation, which reads them itself, of tasks and heads that this model may
/// not have, and of old versions.
const runtime::KnownKeys& unread_keys() {
  static const runtime::KnownKeys keys{
      .read = {},
      .without_effect =
          {"architectures",
           "architecture",
           "attn_implementation",
           "auto_map",
           "cache_implementation",
           "dtype",
           "gradient_checkpointing",
           "is_encoder_decoder",
           "language",
           "license",
           "model_type",
           "onnx_export",
           "output_attentions",
           "output_hidden_states",
           "output_past",
           "pretraining_tp",
           "return_dict",
           "tie_word_embeddings",
           "tokenizer_class",
           "torch_dtype",
           "torchscript",
           "transformers.js_config",
           "transformers_version",
           "unsloth_fixed",
           "unsloth_version",
           "use_bfloat16",
           "use_cache",
           "vocab_size_or_config_json_file",
           // generation
           "bad_words_ids",
           "begin_suppress_tokens",
           "bos_token_id",
           "decoder_start_token_id",
           "diversity_penalty",
           "do_sample",
           "early_stopping",
           "encoder_no_repeat_ngram_size",
           "eos_token_id",
           "exponential_decay_length_penalty",
           "forced_bos_token_id",
           "forced_eos_token_id",
           "length_penalty",
           "max_length",
           "max_new_tokens",
           "min_length",
           "no_repeat_ngram_size",
           "num_beam_groups",
           "num_beams",
           "num_return_sequences",
           "output_scores",
           "pad_token_id",
           "prefix",
           "remove_invalid_values",
           "repetition_penalty",
           "return_dict_in_generate",
           "sep_token_id",
           "suppress_tokens",
           "task_specific_params",
           "temperature",
           "top_k",
           "top_p",
           "typical_p",
           // tasks and their heads
           "classifier_dropout",
           "classifier_dropout_prob",
           "finetuning_task",
           "id2label",
           "keys_to_ignore_at_inference",
           "label2id",
           "num_labels",
           "output_router_logits",
           "problem_type",
           "router_aux_loss_coef",
           "summary_activation",
           "summary_first_dropout",
           "summary_hidden_size",
           "summary_proj_to_labels",
           "summary_type",
           "summary_use_proj",
           "decoder_hidden_size",
           "decoder_intermediate_size",
           "decoder_num_attention_heads",
           "decoder_num_hidden_layers",
           // computed from other fields, or read only where they count
           "dense_act_fn",
           "hidden_size",
           "is_gated_act",
           "max_window_layers",
           "num_layers",
           "sliding_window",
           // backbones, which are other classes
           "out_features",
           "out_indices",
           "stage_names",
           // conversions of the first models
           "directionality",
           "initializer_range",
           "n_ctx",
           "n_special",
           "pooler_fc_size",
           "pooler_num_attention_heads",
           "pooler_num_fc_layers",
           "pooler_size_per_head",
           "pooler_type",
           "predict_special_tokens",
           "reorder_and_upcast_attn",
           "total_flos"},
      .neutral = {
          {"add_cross_attention", {false}},
          {"chunk_size_feed_forward", {0}},
          {"is_decoder", {false}},
          {"pruned_heads", {nlohmann::json::object()}},
          {"tie_encoder_decoder", {false}},
          {"use_sliding_window", {false}}}};
  return keys;
}

/// A field that changes what a model computes.
struct RefusedField {
  const char* name;
  std::vector<nlohmann::json> neutral; ///< values that change nothing
};

/// Of the stored weights: what reads them as they are gets other numbers.
const std::vector<RefusedField>& quantization_fields() {
  static const std::vector<RefusedField> fields{
      {"quantization_config", {nlohmann::json::object()}},
      {"compression_config", {nlohmann::json::object()}},
      {"quantization_bit", {0}}};
  return fields;
}

/// Of layers, which families that have them read themselves.
const std::vector<RefusedField>& computation_fields() {
  static const std::vector<RefusedField> fields{
      {"final_logit_softcapping", {0}},
      {"attn_logit_softcapping", {0}},
      {"logits_soft_cap", {0}},
      {"logit_scale", {1}},
      {"logits_scaling", {1}},
      {"attention_multiplier", {}},
      {"embedding_multiplier", {1}},
      {"residual_multiplier", {1}},
      {"query_pre_attn_scalar", {}},
      {"clip_qkv", {0}},
      {"qk_layernorm", {false}},
      {"use_qk_norm", {false}},
      {"alibi", {false}},
      {"use_parallel_residual", {false}},
      {"scale_emb", {1}},
      {"scale_depth", {}},
      {"dim_model_base", {}}};
  return fields;
}

/// Takes the fields of the list out.
/// @throws Error on one that is there and not neutral.
void refuse_fields(
    nlohmann::json& unread,
    const std::string& origin,
    const std::vector<RefusedField>& fields,
    const char* problem) {
  for (const RefusedField& field : fields) {
    const auto found = unread.find(field.name);
    TESSERA_CHECK(
        found == unread.end() || found->is_null() ||
            std::find(field.neutral.begin(), field.neutral.end(), *found) !=
                field.neutral.end(),
        "{}: '{}' is {}: {}",
        origin,
        field.name,
        runtime::show_json(*found),
        problem);
    unread.erase(field.name);
  }
}

} // namespace

void check_unread_fields(
    const nlohmann::json& config,
    const std::string& origin,
    const FieldRecord& record) {
  nlohmann::json unread = config;
  for (const auto& item : config.items()) {
    const bool is_full =
        item.key() == "layer_types" &&
        std::all_of(
            item.value().begin(), item.value().end(), [](const auto& one) {
              return one == "full_attention";
            });
    if (record.has(item.key()) || is_full) {
      unread.erase(item.key());
    }
  }
  refuse_fields(
      unread,
      origin,
      quantization_fields(),
      "quantized weights are not implemented, and would be read as if they were plain ones; use the model before quantization, or remove the field if the weights are plain");
  refuse_fields(
      unread,
      origin,
      computation_fields(),
      "it changes what the model computes, and is not implemented for this model_type; remove it if the weights were trained without it");
  runtime::log_ignored_keys(
      runtime::json_object(std::move(unread), origin), unread_keys());
}

bool has_own_head(
    const ConfigFields& fields,
    const std::vector<std::string>& embeddings,
    const std::vector<std::string>& heads) {
  if (fields.head_weight() == HeadWeight::kOwn) {
    return true;
  }
  const CheckpointTensors* checkpoint = fields.checkpoint();
  if (checkpoint == nullptr) {
    return false;
  }
  const auto is_there = [&](const std::string& name) {
    return checkpoint->has(name);
  };
  const auto embedding =
      std::find_if(embeddings.begin(), embeddings.end(), is_there);
  const auto head = std::find_if(heads.begin(), heads.end(), is_there);
  return embedding != embeddings.end() && head != heads.end() &&
         checkpoint->differ(*embedding, *head);
}

bool has_pooler(
    const CheckpointTensors* checkpoint,
    const std::string& prefix) {
  const std::string weight = "pooler.dense.weight";
  return checkpoint == nullptr || checkpoint->has(weight) ||
         checkpoint->has(prefix + weight);
}

namespace {

// Keeps the bytes of a matrix of two such sizes, one of them times four, within
// an int64.
constexpr int64_t kMaxSize = int64_t{1} << 28;
constexpr int64_t kMaxCount = 10'000;

std::string shown(FieldNames names) {
  std::string text;
  for (const char* name : names) {
    text += (text.empty() ? "'" : "' or '") + std::string(name);
  }
  return text + "'";
}

RotaryScalingKind scaling_kind(
    const std::string& name,
    const std::string& origin) {
  if (name == "default") {
    return RotaryScalingKind::kNone;
  }
  if (name == "linear") {
    return RotaryScalingKind::kLinear;
  }
  if (name == "dynamic") {
    return RotaryScalingKind::kDynamic;
  }
  if (name == "llama3") {
    return RotaryScalingKind::kLlama3;
  }
  if (name == "yarn") {
    return RotaryScalingKind::kYarn;
  }
  TESSERA_FAIL(
      "{}: rotary positions of type '{}' ('rope_type') are not implemented; default, linear, dynamic, llama3 and yarn are",
      origin,
      name);
}

} // namespace

int64_t ConfigFields::size(FieldNames names, std::optional<int64_t> otherwise)
    const {
  const auto value = find_or<int64_t>(names, otherwise);
  TESSERA_CHECK(
      value.has_value(),
      "{} lacks {}; does it belong to this kind of model?",
      origin(),
      shown(names));
  TESSERA_CHECK(
      *value >= 1 && *value <= kMaxSize,
      "{}: {} is {}; it must be between 1 and 2^28",
      origin(),
      shown(names),
      *value);
  return *value;
}

int64_t ConfigFields::count(FieldNames names, std::optional<int64_t> otherwise)
    const {
  const int64_t value = size(names, otherwise);
  TESSERA_CHECK(
      value <= kMaxCount,
      "{}: {} is {}; it must be at most {}",
      origin(),
      shown(names),
      value,
      kMaxCount);
  return value;
}

double ConfigFields::number(FieldNames names, double otherwise) const {
  const auto value = get<double>(names, otherwise);
  TESSERA_CHECK(
      std::isfinite(value),
      "{}: {} is {}; it must be a finite number",
      origin(),
      shown(names),
      value);
  return value;
}

double ConfigFields::deviation(FieldNames names, double otherwise) const {
  const double value = number(names, otherwise);
  TESSERA_CHECK(
      value >= 0 && value < 100,
      "{}: {} is {}; it must be 0 or more, usually 0.02",
      origin(),
      shown(names),
      value);
  return value;
}

double ConfigFields::probability(FieldNames names, double otherwise) const {
  const double value = number(names, otherwise);
  TESSERA_CHECK(
      value >= 0 && value < 1,
      "{}: {} is {}; it must be at least 0 and less than 1",
      origin(),
      shown(names),
      value);
  return value;
}

double ConfigFields::positive(FieldNames names, std::optional<double> otherwise)
    const {
  const auto value = find_or<double>(names, otherwise);
  TESSERA_CHECK(
      value && *value > 0 && *value < 1e30,
      "{}: {} is {}; it must be a number above 0",
      origin(),
      shown(names),
      value ? std::to_string(*value) : "absent");
  return *value;
}

std::string ConfigFields::activation(
    FieldNames names,
    const std::string& otherwise) const {
  const auto name = get<std::string>(names, otherwise);
  const auto known = activation_names();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    const std::string nearest = runtime::nearest_name(name, known);
    TESSERA_FAIL(
        "{}: {} is '{}', an activation that is not implemented; {}",
        origin(),
        shown(names),
        name,
        nearest.empty() ? "the supported ones are " + runtime::join_names(known)
                        : "the nearest is '" + nearest + "'");
  }
  return name;
}

int64_t ConfigFields::heads(
    FieldNames names,
    int64_t features,
    const char* features_name) const {
  const int64_t heads = size(names);
  TESSERA_CHECK(
      features % heads == 0,
      "{}: {} is {}, which does not divide '{}', {}; each head must have the same number of features",
      origin(),
      shown(names),
      heads,
      features_name,
      features);
  return heads;
}

int64_t ConfigFields::kv_heads(
    FieldNames names,
    int64_t heads,
    int64_t otherwise) const {
  const int64_t value = size(names, otherwise);
  TESSERA_CHECK(
      heads % value == 0,
      "{}: {} is {}, and {} key/value heads do not divide 'num_attention_heads', {}; each must serve the same number of query heads",
      origin(),
      shown(names),
      value,
      value,
      heads);
  return value;
}

std::optional<int64_t> ConfigFields::token(
    FieldNames names,
    int64_t bound,
    std::optional<int64_t> otherwise) const {
  const bool is_usable =
      otherwise && *otherwise < bound && !is_null(*names.begin());
  const auto value =
      find_or<int64_t>(names, is_usable ? otherwise : std::nullopt);
  if (!value || *value == -1) {
    return std::nullopt;
  }
  TESSERA_CHECK(
      *value >= 0 && *value < bound,
      "{}: {} is {}, outside the vocabulary of {} tokens",
      origin(),
      shown(names),
      *value,
      bound);
  return value;
}

std::optional<nlohmann::json> ConfigFields::given(const char* name) const {
  return fields_.value().contains(name) ? json(name) : std::nullopt;
}

std::optional<nlohmann::json> ConfigFields::json(const char* name) const {
  const auto found = fields_.value().find(name);
  if (found == fields_.value().end()) {
    record_->add_default(name, nullptr);
    return std::nullopt;
  }
  if (found->is_null()) {
    record_->add(name, nullptr);
    return std::nullopt;
  }
  record_->add(name, *found);
  return *found;
}

nlohmann::json ConfigFields::json_or(const char* name, nlohmann::json otherwise)
    const {
  if (auto value = json(name)) {
    return *value;
  }
  record_->add_default(name, otherwise);
  return otherwise;
}

int64_t ConfigFields::labels() const {
  const auto names = json("id2label");
  TESSERA_CHECK(
      !names || names->is_object(),
      "{}: 'id2label' is {}; it must be an object with a name for each label",
      origin(),
      runtime::show_json(names.value_or(nullptr)));
  if (names && !names->empty()) {
    return static_cast<int64_t>(names->size());
  }
  const int64_t count = size({"num_labels"}, 2);
  record_->add_default("id2label", formatted("{} labels", count));
  return count;
}

/// Both say the same where transformers reads one of them.
void ConfigFields::check_rope_fields() const {
  const auto value_of = [&](const char* key) {
    return fields_.value().value(key, nlohmann::json());
  };
  const nlohmann::json modern = value_of("rope_parameters");
  const nlohmann::json older = value_of("rope_scaling");
  if (!modern.is_object() || !older.is_object()) {
    return;
  }
  for (const auto& item : older.items()) {
    const std::string key = item.key() == "type" ? "rope_type" : item.key();
    TESSERA_CHECK(
        modern.value(key, nlohmann::json()) == item.value(),
        "{}: there are both 'rope_parameters' and 'rope_scaling', and '{}' is {} in one and {} in the other; remove one of them, 'rope_scaling' after moving its values",
        origin(),
        item.key(),
        runtime::show_json(modern.value(key, nlohmann::json())),
        runtime::show_json(item.value()));
  }
}

RotaryOptions ConfigFields::rotary(
    int64_t features,
    int64_t max_positions,
    double base) const {
  check_rope_fields();
  const char* const section =
      json("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const ConfigFields rope(
      json(section).value_or(nlohmann::json::object()),
      origin() + ": '" + section + "'");
  RotaryOptions options;
  options.features = features;
  options.max_positions = max_positions;
  options.base = rope.positive(
      {"rope_theta"}, positive({"rope_theta", "rotary_emb_base"}, base));
  TESSERA_CHECK(
      options.base > 1,
      "{}: 'rope_theta' is {}; it must be above 1",
      origin(),
      options.base);
  RotaryScaling& scaling = options.scaling;
  scaling.kind = scaling_kind(
      rope.get<std::string>({"rope_type", "type"}, "default"), rope.origin());
  if (scaling.kind == RotaryScalingKind::kNone) {
    return options;
  }
  scaling.original_positions = size(
      {"original_max_position_embeddings"},
      rope.size({"original_max_position_embeddings"}, max_positions));
  std::optional<double> stretched;
  if (scaling.kind == RotaryScalingKind::kYarn) {
    stretched = static_cast<double>(max_positions) /
                static_cast<double>(scaling.original_positions);
  }
  scaling.factor = rope.positive({"factor"}, stretched);
  scaling.low_frequency_factor = rope.positive({"low_freq_factor"}, 1.0);
  scaling.high_frequency_factor = rope.positive({"high_freq_factor"}, 4.0);
  TESSERA_CHECK(
      scaling.kind != RotaryScalingKind::kLlama3 ||
          scaling.high_frequency_factor > scaling.low_frequency_factor,
      "{}: 'high_freq_factor' is {}; it must be above 'low_freq_factor', {}",
      rope.origin(),
      scaling.high_frequency_factor,
      scaling.low_frequency_factor);
  scaling.beta_fast = rope.positive({"beta_fast"}, 32.0);
  scaling.beta_slow = rope.positive({"beta_slow"}, 1.0);
  if (rope.find<double>({"attention_factor"})) {
    scaling.attention_factor = rope.positive({"attention_factor"});
  }
  scaling.mscale = rope.number({"mscale"}, 0.0);
  scaling.mscale_all_features = rope.number({"mscale_all_dim"}, 0.0);
  scaling.truncate = rope.get<bool>({"truncate"}, true);
  return options;
}

} // namespace tessera::zoo
