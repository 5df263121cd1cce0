// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/bert_like.h"

#include "tessera/zoo/models/layer_stack.h"

#include <utility>

namespace tessera::zoo {

EncoderConfig bert_like_config(
    const ConfigFields& fields,
    int64_t padding_id,
    int64_t positions) {
  fields.require_only("is_decoder", false);
  fields.require_only("add_cross_attention", false);
  fields.require_only("position_embedding_type", std::string("absolute"));
  EncoderConfig encoder;
  encoder.vocab = fields.size({"vocab_size"});
  encoder.features = fields.size({"hidden_size"});
  encoder.positions = fields.size({"max_position_embeddings"}, positions);
  encoder.token_types = fields.size({"type_vocab_size"}, 2);
  encoder.padding_id =
      fields.is_null("pad_token_id")
          ? padding_id
          : fields.token({"pad_token_id"}, encoder.vocab, padding_id);
  encoder.norm.features = encoder.features;
  encoder.norm.eps = fields.positive({"layer_norm_eps"}, 1e-12);
  encoder.embedding_dropout = fields.probability({"hidden_dropout_prob"}, 0.1);
  encoder.deviation = fields.deviation({"initializer_range"});

  TransformerLayerOptions layer;
  layer.placement = NormPlacement::kPost;
  layer.norm = encoder.norm;
  layer.dropout = encoder.embedding_dropout;
  layer.attention.features = encoder.features;
  layer.attention.heads =
      fields.heads({"num_attention_heads"}, encoder.features, "hidden_size");
  layer.attention.dropout =
      fields.probability({"attention_probs_dropout_prob"}, 0.1);
  layer.attention.deviation = encoder.deviation;
  layer.feed_forward.features = encoder.features;
  layer.feed_forward.inner = fields.size({"intermediate_size"});
  layer.feed_forward.activation = fields.activation({"hidden_act"}, "gelu");
  layer.feed_forward.deviation = encoder.deviation;
  encoder.layers = equal_layers(layer, fields.count({"num_hidden_layers"}));

  encoder.head_activation = layer.feed_forward.activation;
  encoder.tied_head = fields.get<bool>({"tie_word_embeddings"}, true);
  encoder.classifier = ClassifierOptions::from_config(fields);
  encoder.classifier_dropout =
      fields.probability({"classifier_dropout"}, encoder.embedding_dropout);
  encoder.choice_dropout = encoder.classifier_dropout;
  return encoder;
}

NameTable bert_like_names(std::string prefix, EncoderHead head) {
  return {
      .prefix = std::move(prefix),
      .base =
          {{"embeddings.word_embeddings", {"embeddings.tokens"}},
           {"embeddings.position_embeddings", {"embeddings.positions"}},
           {"embeddings.token_type_embeddings", {"embeddings.token_types"}},
           {"embeddings.LayerNorm", {"embeddings.norm"}},
           {"encoder.layer.*.attention.self.query",
            {"layers.*.attention.query"}},
           {"encoder.layer.*.attention.self.key", {"layers.*.attention.key"}},
           {"encoder.layer.*.attention.self.value",
            {"layers.*.attention.value"}},
           {"encoder.layer.*.attention.output.dense",
            {"layers.*.attention.output"}},
           {"encoder.layer.*.attention.output.LayerNorm",
            {"layers.*.attention_norm"}},
           {"encoder.layer.*.intermediate.dense", {"layers.*.feed_forward.up"}},
           {"encoder.layer.*.output.dense", {"layers.*.feed_forward.down"}},
           {"encoder.layer.*.output.LayerNorm", {"layers.*.feed_forward_norm"}},
           {"pooler.dense", {"pooler"}}},
      .is_base = head == EncoderHead::kBase,
      // Positions saved by old versions, and weights of other heads; with a
      // masked LM also duplicates of the embedding and the bias.
      .ignored = {
          "embeddings.position_ids",
          "pooler.*",
          "cls.*",
          "lm_head.*",
          "classifier.*",
          "qa_outputs.*"}};
}

std::vector<NameRule> bert_like_prediction_names() {
  return {
      {"cls.predictions", {"head"}},
      {"cls.predictions.decoder", {"head.decoder"}},
      {"cls.predictions.transform.dense", {"head.dense"}},
      {"cls.predictions.transform.LayerNorm", {"head.norm"}}};
}

EncoderConfig roberta_like_config(const ConfigFields& fields) {
  EncoderConfig encoder = bert_like_config(fields, /*padding_id=*/1);
  TESSERA_CHECK(
      encoder.padding_id && *encoder.padding_id < encoder.positions - 1,
      "{}: positions start after pad_token_id, which must be set and less than max_position_embeddings {} - 1",
      fields.origin(),
      encoder.positions);
  encoder.positions_skip_padding = true;
  encoder.head_activation = "gelu";
  encoder.dropout_before_pooler = true;
  encoder.choice_dropout = encoder.embedding_dropout;
  return encoder;
}

NameTable roberta_like_names(std::string prefix, EncoderHead head) {
  NameTable table = bert_like_names(std::move(prefix), head);
  table.head = {
      {"lm_head", {"head"}},
      {"lm_head.decoder", {"head.decoder"}},
      {"lm_head.dense", {"head.dense"}},
      {"lm_head.layer_norm", {"head.norm"}}};
  switch (head) {
    case EncoderHead::kSequenceClassification:
      std::erase_if(table.base, [](const NameRule& rule) {
        return rule.native.front() == "pooler";
      });
      table.head.push_back({"classifier.dense", {"pooler"}});
      table.head.push_back({"classifier.out_proj", {"classifier"}});
      break;
    case EncoderHead::kQuestionAnswering:
      table.head.push_back({"qa_outputs", {"classifier"}});
      break;
    default:
      table.head.push_back({"classifier", {"classifier"}});
  }
  return table;
}

namespace {

constexpr const char* kTokens = "embeddings.word_embeddings.weight";

/// The name of the output matrix of masked language models.
std::string decoder_in(const NameTable& names) {
  for (const NameRule& rule : names.head) {
    if (rule.native.front() == "head.decoder") {
      return rule.foreign;
    }
  }
  TESSERA_FAIL("an encoder's names lack 'head.decoder'");
}

bool has_own_head(const NameTable& names, const ConfigFields& fields) {
  return has_own_head(
      fields,
      {names.prefix + kTokens, kTokens},
      {decoder_in(names) + ".weight"});
}

/// Fills in NameTable::tied.
void add_tied(NameTable& names) {
  const std::string decoder = decoder_in(names);
  const std::string bias =
      decoder.substr(0, decoder.find_last_of('.')) + ".bias";
  names.tied = {
      {decoder + ".weight", kTokens},
      {decoder + ".bias", bias},
      {bias, decoder + ".bias"}};
}

} // namespace

MakeModel make_encoder(
    EncoderConfigOf config,
    EncoderNamesOf names,
    EncoderHead head) {
  return [=](const ConfigFields& fields,
             const LayerContext& context,
             nlohmann::json json) -> std::shared_ptr<Model> {
    EncoderConfig encoder = config(fields);
    NameTable table = names(head);
    add_tied(table);
    encoder.has_pooler =
        encoder.has_pooler && has_pooler(fields.checkpoint(), table.prefix);
    if (encoder.tied_head && has_own_head(table, fields)) {
      encoder.tied_head = false;
      json["tie_word_embeddings"] = false;
    }
    TESSERA_CHECK(
        head != EncoderHead::kQuestionAnswering ||
            encoder.classifier.labels == 2,
        "{}: there are {} labels; question answering has 2, start and end",
        fields.origin(),
        encoder.classifier.labels);
    return std::make_shared<Encoder>(
        encoder, head, context, std::move(json), std::move(table));
  };
}

ModelFamily encoder_family(const EncoderFamily& family) {
  const auto architecture = [&](const char* name, EncoderHead head) {
    return Architecture{
        family.classes + name, make_encoder(family.config, family.names, head)};
  };
  return {
      .model_type = family.model_type,
      .architectures =
          {architecture("ForMaskedLM", EncoderHead::kMaskedLm),
           architecture("Model", EncoderHead::kBase),
           architecture(
               "ForSequenceClassification",
               EncoderHead::kSequenceClassification),
           architecture(
               "ForTokenClassification", EncoderHead::kTokenClassification),
           architecture(
               "ForQuestionAnswering", EncoderHead::kQuestionAnswering),
           architecture("ForMultipleChoice", EncoderHead::kMultipleChoice)},
      .position_limit = [config = family.config](const ConfigFields& fields) {
        return std::optional(config(fields).position_limit());
      }};
}

} // namespace tessera::zoo
