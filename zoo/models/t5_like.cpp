// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/t5_like.h"

#include "tessera/zoo/layers/activation.h"

#include <cmath>
#include <memory>
#include <utility>

namespace tessera::zoo {

namespace {

double inverse_root(int64_t count) {
  return 1 / std::sqrt(static_cast<double>(count));
}

/// "relu", or "gated-gelu".
void read_activation(
    const ConfigFields& fields,
    const std::string& otherwise,
    FeedForwardOptions& options) {
  options.activation =
      fields.get<std::string>({"feed_forward_proj"}, otherwise);
  const std::string gated = "gated-";
  if (options.activation.starts_with(gated)) {
    options.gated = true;
    options.activation = options.activation.substr(gated.size());
    // gated-gelu means gelu_new; all others are named after the prefix.
    if (options.activation == "gelu") {
      options.activation = "gelu_new";
    }
  }
  try {
    activation(options.activation); // throws if unknown
  } catch (const Error& error) {
    TESSERA_FAIL(
        "{}: 'feed_forward_proj' is '{}'; {}; it can be gated, as in gated-gelu",
        fields.origin(),
        fields.get<std::string>({"feed_forward_proj"}, ""),
        error.what());
  }
}

void add_head(NameTable& table, EncoderDecoderHead head) {
  table.other_prefix = "transformer."; // of the classifiers
  switch (head) {
    case EncoderDecoderHead::kSequenceClassification:
      table.prefix = "transformer.";
      table.head = {
          {"classification_head.dense", {"pooler"}},
          {"classification_head.out_proj", {"classifier"}}};
      break;
    case EncoderDecoderHead::kTokenClassification:
      table.prefix = "transformer.";
      table.head = {{"classifier", {"classifier"}}};
      [[fallthrough]];
    case EncoderDecoderHead::kEncoderOnly:
      table.ignored.emplace_back("decoder.*");
      break;
    case EncoderDecoderHead::kQuestionAnswering:
      table.head = {{"qa_outputs", {"classifier"}}};
      break;
    default:
      break;
  }
  for (const char* const other :
       {"classification_head.*", "classifier.*", "qa_outputs.*"}) {
    table.ignored.emplace_back(other);
  }
}

} // namespace

EncoderDecoderConfig t5_like_config(
    const ConfigFields& fields,
    const T5LikeDefaults& defaults) {
  EncoderDecoderConfig model;
  model.vocab = fields.size({"vocab_size"});
  model.features = fields.size({"d_model", "hidden_size"});
  model.dropout = fields.probability({"dropout_rate"}, defaults.dropout);
  model.padding_token =
      fields.token({"pad_token_id"}, model.vocab, 0).value_or(0);
  model.start_token =
      fields.token({"decoder_start_token_id"}, model.vocab, model.padding_token)
          .value_or(model.padding_token);
  const double factor = fields.deviation({"initializer_factor"}, 1);
  model.embedding_deviation = model.head_deviation = factor;

  TransformerLayerOptions layer;
  layer.norm.kind = NormKind::kRmsNorm;
  layer.norm.features = model.features;
  layer.norm.eps = fields.positive({"layer_norm_epsilon"}, 1e-6);
  layer.dropout = model.dropout;
  AttentionOptions& attention = layer.attention;
  attention.features = model.features;
  attention.heads = fields.size({"num_heads", "num_attention_heads"});
  attention.head_features = fields.size({"d_kv"}, 64);
  attention.query_bias = attention.key_bias = false;
  attention.value_bias = attention.output_bias = false;
  attention.scale = 1;
  attention.dropout = model.dropout;
  attention.deviation = factor * inverse_root(model.features);
  attention.query_deviation =
      attention.deviation * inverse_root(attention.head_features);
  attention.output_deviation = factor * inverse_root(attention.heads) *
                               inverse_root(attention.head_features);
  layer.feed_forward.features = model.features;
  layer.feed_forward.inner = fields.size({"d_ff"});
  layer.feed_forward.bias = false;
  layer.feed_forward.dropout = model.dropout;
  layer.feed_forward.deviation = attention.deviation;
  layer.feed_forward.output_deviation =
      factor * inverse_root(layer.feed_forward.inner);
  read_activation(fields, defaults.activation, layer.feed_forward);

  RelativeStackOptions& encoder = model.encoder;
  encoder.buckets.buckets =
      fields.size({"relative_attention_num_buckets"}, defaults.buckets.buckets);
  encoder.buckets.max_distance = fields.size(
      {"relative_attention_max_distance"}, defaults.buckets.max_distance);
  TESSERA_CHECK(
      encoder.buckets.buckets >= 4 &&
          encoder.buckets.max_distance > encoder.buckets.buckets / 2,
      "{}: relative_attention_num_buckets is {} and relative_attention_max_distance {}; the first must be at least 4, the second greater than half of the first",
      fields.origin(),
      encoder.buckets.buckets,
      encoder.buckets.max_distance);
  encoder.bias_deviation = attention.deviation;
  encoder.norm = layer.norm;
  encoder.dropout = model.dropout;
  const int64_t count = fields.count({"num_layers", "num_hidden_layers"});
  encoder.layers = equal_layers(layer, count);
  model.decoder = encoder;
  model.decoder.buckets.bidirectional = false;
  layer.cross_attention = attention;
  model.decoder.layers =
      equal_layers(layer, fields.count({"num_decoder_layers"}, count));
  model.tied_head = true;
  model.class_deviation = layer.attention.deviation;
  model.end_token = fields.token({"eos_token_id"}, model.vocab, 1).value_or(1);
  model.classifier = ClassifierOptions::from_config(fields);
  model.classifier_dropout = fields.probability({"classifier_dropout"});
  return model;
}

MakeModel make_encoder_decoder(
    EncoderDecoderConfigOf config,
    EncoderDecoderNamesOf names,
    EncoderDecoderHead head) {
  return [=](const ConfigFields& fields,
             const LayerContext& context,
             nlohmann::json json) -> std::shared_ptr<Model> {
    NameTable table = names();
    add_head(table, head);
    return std::make_shared<EncoderDecoder>(
        config(fields), head, context, std::move(json), std::move(table));
  };
}

} // namespace tessera::zoo
