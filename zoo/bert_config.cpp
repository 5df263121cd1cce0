// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/bert_config.h"

#include "tessera/zoo/json_fields.h"

#include <set>

namespace tessera {
namespace {

// What a config.json may say that we would otherwise silently compute wrongly.
void check_architecture(const JsonFields& fields) {
  const auto type = fields.get_or<std::string>("model_type", "(absent)");
  TESSERA_CHECK(
      type == "bert",
      fields.origin(),
      ": model_type is '",
      type,
      "'; only 'bert' is implemented");
  const auto positions =
      fields.get_or<std::string>("position_embedding_type", "absolute");
  TESSERA_CHECK(
      positions == "absolute",
      fields.origin(),
      ": position_embedding_type is '",
      positions,
      "'; only 'absolute' is implemented");
  for (const char* key : {"is_decoder", "add_cross_attention"}) {
    TESSERA_CHECK(
        !fields.get_or(key, false),
        fields.origin(),
        ": '",
        key,
        "' is true; only the encoder is implemented");
  }
}

std::vector<std::string> read_labels(const JsonFields& fields) {
  const nlohmann::json names = fields.section("id2label").object();
  if (names.empty()) {
    const auto count = fields.get_or<std::int64_t>("num_labels", 2);
    TESSERA_CHECK(
        count >= 1 && count <= 1'000'000,
        fields.origin(),
        ": 'num_labels' is ",
        count,
        "; it must be between 1 and 1000000");
    return default_bert_labels(count);
  }
  std::vector<std::string> labels;
  for (std::size_t id = 0; id < names.size(); ++id) {
    const auto found = names.find(std::to_string(id));
    TESSERA_CHECK(
        found != names.end() && found->is_string(),
        fields.origin(),
        ": 'id2label' has ",
        names.size(),
        " entries, but no name for class ",
        id,
        "; ids must be 0 .. ",
        names.size() - 1);
    labels.push_back(found->get<std::string>());
  }
  return labels;
}

} // namespace

std::vector<std::string> default_bert_labels(std::int64_t count) {
  std::vector<std::string> labels;
  for (std::int64_t id = 0; id < count; ++id) {
    labels.push_back("LABEL_" + std::to_string(id));
  }
  return labels;
}

BertConfig BertConfig::from_folder(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  TESSERA_CHECK(
      std::filesystem::exists(path),
      path,
      " does not exist; give the folder of an unpacked Hugging Face BERT");
  const auto fields = JsonFields::from_file(path);
  check_architecture(fields);
  BertConfig config;
  // The sizes have no safe default: guessing them hides a damaged file.
  config.vocab_size = fields.require<std::int64_t>("vocab_size");
  config.hidden_size = fields.require<std::int64_t>("hidden_size");
  config.num_hidden_layers = fields.require<std::int64_t>("num_hidden_layers");
  config.num_attention_heads =
      fields.require<std::int64_t>("num_attention_heads");
  config.intermediate_size = fields.require<std::int64_t>("intermediate_size");
  const auto read = [&](const char* key, auto& field) {
    field = fields.get_or(key, field);
  };
  read("hidden_act", config.hidden_act);
  read("hidden_dropout_prob", config.hidden_dropout_prob);
  read("attention_probs_dropout_prob", config.attention_probs_dropout_prob);
  config.classifier_dropout = fields.get<double>("classifier_dropout");
  read("max_position_embeddings", config.max_position_embeddings);
  read("type_vocab_size", config.type_vocab_size);
  read("initializer_range", config.initializer_range);
  read("layer_norm_eps", config.layer_norm_eps);
  read("pad_token_id", config.pad_token_id);
  config.labels = read_labels(fields);
  try {
    config.validate();
  } catch (const Error& error) {
    TESSERA_FAIL(fields.origin(), ": ", error.what());
  }
  return config;
}

void BertConfig::validate() const {
  struct Size {
    const char* name;
    std::int64_t value;
  };
  // The bound keeps every product of two sizes inside an int64.
  for (const Size& size :
       {Size{"vocab_size", vocab_size},
        Size{"hidden_size", hidden_size},
        Size{"num_hidden_layers", num_hidden_layers},
        Size{"num_attention_heads", num_attention_heads},
        Size{"intermediate_size", intermediate_size},
        Size{"max_position_embeddings", max_position_embeddings},
        Size{"type_vocab_size", type_vocab_size},
        Size{"the number of labels", num_labels()}}) {
    TESSERA_CHECK(
        size.value >= 1 && size.value <= (std::int64_t{1} << 30),
        size.name,
        " is ",
        size.value,
        "; it must be between 1 and 2^30");
  }
  TESSERA_CHECK(
      hidden_size % num_attention_heads == 0,
      "hidden_size ",
      hidden_size,
      " can not be divided by num_attention_heads ",
      num_attention_heads,
      "; choose a number of heads that divides it");
  TESSERA_CHECK(
      hidden_act == "gelu" || hidden_act == "gelu_new" || hidden_act == "relu",
      "hidden_act is '",
      hidden_act,
      "'; implemented are gelu, gelu_new and relu");
  struct Probability {
    const char* name;
    double value;
  };
  for (const Probability& dropout :
       {Probability{"hidden_dropout_prob", hidden_dropout_prob},
        Probability{
            "attention_probs_dropout_prob", attention_probs_dropout_prob},
        Probability{"classifier_dropout", classifier_dropout.value_or(0)}}) {
    TESSERA_CHECK(
        dropout.value >= 0 && dropout.value < 1,
        dropout.name,
        " is ",
        dropout.value,
        "; it must be at least 0 and less than 1");
  }
  TESSERA_CHECK(
      layer_norm_eps > 0 && layer_norm_eps < 1,
      "layer_norm_eps is ",
      layer_norm_eps,
      "; it must be between 0 and 1, usually 1e-12");
  TESSERA_CHECK(
      initializer_range >= 0 && initializer_range < 100,
      "initializer_range is ",
      initializer_range,
      "; it must be 0 or more, usually 0.02");
  TESSERA_CHECK(
      pad_token_id >= 0 && pad_token_id < vocab_size,
      "pad_token_id is ",
      pad_token_id,
      ", outside the vocabulary of ",
      vocab_size,
      " tokens");
  const std::set<std::string> distinct(labels.begin(), labels.end());
  TESSERA_CHECK(
      distinct.size() == labels.size(),
      "two of the ",
      labels.size(),
      " labels have one name; label2id could not tell them apart");
}

nlohmann::json BertConfig::to_json() const {
  nlohmann::json id2label = nlohmann::json::object();
  nlohmann::json label2id = nlohmann::json::object();
  for (std::size_t id = 0; id < labels.size(); ++id) {
    id2label[std::to_string(id)] = labels[id];
    label2id[labels[id]] = id;
  }
  nlohmann::json json = {
      {"architectures", {"BertForSequenceClassification"}},
      {"model_type", "bert"},
      {"vocab_size", vocab_size},
      {"hidden_size", hidden_size},
      {"num_hidden_layers", num_hidden_layers},
      {"num_attention_heads", num_attention_heads},
      {"intermediate_size", intermediate_size},
      {"hidden_act", hidden_act},
      {"hidden_dropout_prob", hidden_dropout_prob},
      {"attention_probs_dropout_prob", attention_probs_dropout_prob},
      {"classifier_dropout", nullptr},
      {"max_position_embeddings", max_position_embeddings},
      {"type_vocab_size", type_vocab_size},
      {"initializer_range", initializer_range},
      {"layer_norm_eps", layer_norm_eps},
      {"pad_token_id", pad_token_id},
      {"position_embedding_type", "absolute"},
      {"id2label", id2label},
      {"label2id", label2id}};
  if (classifier_dropout) {
    json["classifier_dropout"] = *classifier_dropout;
  }
  return json;
}

} // namespace tessera
