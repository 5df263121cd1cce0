// SPDX-License-Identifier: Apache-2.0
// ModelCenter's configurations make the models of the fixtures.

#include "tessera/zoo/formats/model_center.h"
#include "support/expect_error.h"
#include "zoo/model_fixture.h"

namespace tessera::zoo::model_center_test {
namespace {

using nlohmann::json;

/// The fixture's weights in the model of a configuration.
std::shared_ptr<Model> load(const char* fixture_name, const json& config) {
  const auto model = from_config(config);
  load_pretrained(*model, fixture("models") / fixture_name);
  model->eval();
  return model;
}

void expect_makes(const char* fixture_name, const json& config) {
  SCOPED_TRACE(fixture_name);
  const ModelFixture reference(fixture_name);
  const auto model = load(fixture_name, config);
  expect_outputs(reference, model->forward(reference.input()));
  EXPECT_FALSE(model->config().contains("dim_model"));
}

void expect_refused(
    const json& config,
    const char* key,
    const json& value,
    std::initializer_list<const char*> words) {
  SCOPED_TRACE(key);
  json changed = config;
  changed[key] = value;
  const std::string quoted = "'" + std::string(key) + "'";
  expect_error([&] { from_config(changed); }, {quoted.c_str()});
  expect_error([&] { from_config(changed); }, words);
}

json cpm(const char* type) {
  return {
      {"model_type", type},
      {"vocab_size", 61},
      {"dim_model", 16},
      {"num_heads", 4},
      {"dim_head", 6},
      {"dim_ff", 20},
      {"num_layers", 2},
      {"pos_bias_type", "relative"},
      {"position_bias_num_buckets", 8},
      {"position_bias_max_distance", 10},
      {"norm_eps", 1e-6},
      {"norm_bias", false},
      {"att_mask_value", "-inf"},
      {"half", true}};
}

json cpm3() {
  json config = cpm("cpm3");
  config["prompt_types"] = 4;
  config["prompt_length"] = 3;
  config["segment_types"] = 5;
  return config;
}

json glm() {
  return {
      {"model_type", "glm"},
      {"vocab_size", 61},
      {"dim_model", 24},
      {"num_heads", 4},
      {"dim_head", 6},
      {"dim_ff", 96},
      {"num_layers", 2},
      {"position_size", 24},
      {"norm_eps", 1e-5},
      {"dropout_p", 0.3},
      {"ffn_activate_fn", "gelu"},
      {"tied", true},
      {"mask_tok_id", 50}};
}

json vit() {
  return {
      {"model_type", "vit"},
      {"img_size", {12, 20}},
      {"patch_size", 4},
      {"num_classes", 4},
      {"hidden_size", 24},
      {"num_layers", 2},
      {"num_heads", 3},
      {"mlp_size", 36},
      {"drop", 0.2},
      {"attn_bias", true},
      {"half", true}};
}

} // namespace

TEST(ModelCenter, ScalesCpm1AndCpm2AsTheFileSays) {
  json first = cpm("cpm1");
  first.update({{"tied", true}, {"length_scale", true}, {"attn_scale", true}});
  expect_makes("cpm1_tied", first);
  json second = cpm("cpm2");
  second.erase("num_layers");
  second.update(
      {{"num_encoder_layers", 2},
       {"num_decoder_layers", 2},
       {"length_scale", true},
       {"attn_scale", true},
       {"ffn_activate_fn", "gated_gelu"}});
  expect_makes("cpm2_scaled", second);
  second["length_scale"] = false;
  const ModelFixture reference("cpm2_scaled");
  EXPECT_FALSE(load("cpm2_scaled", second)
                   ->forward(reference.input())
                   .logits.allclose(reference.tensors("out.").at("logits")));
}

// What the file leaves out is as in ModelCenter: tied, with both scales.
TEST(ModelCenter, ConfiguresCpm3) {
  expect_makes("cpm3", cpm3());
  json plain = cpm3();
  plain.update(
      {{"tied", false},
       {"length_scale", false},
       {"attn_scale", false},
       {"absolute_inner_segment", false}});
  expect_makes("cpm3_untied", plain);
  for (const char* key : {"norm_bias", "att_bias", "ffn_bias", "int8"}) {
    expect_refused(cpm3(), key, true, {"true"});
  }
  expect_refused(cpm3(), "cls_head", 3, {"is 3", "cpm3"});
  expect_refused(cpm3(), "pos_bias_type", "rotary", {"relative"});
  expect_refused(cpm3(), "segment_types", 5000, {"at most 4096"});
  expect_refused(cpm3(), "prompt_types", 1 << 27, {"'prompt_length' 3"});
}

TEST(ModelCenter, ConfiguresGlm) {
  expect_makes("glm_2021", glm());
  const json kept = from_model_center(glm(), "config.json");
  EXPECT_EQ(kept.at("max_sequence_length"), 23);
  for (const char* key :
       {"embedding_dropout_prob",
        "attention_dropout_prob",
        "output_dropout_prob"}) {
    EXPECT_EQ(kept.at(key), 0.3) << key;
  }
  expect_refused(glm(), "dim_ff", 36, {"is 36", "96"});
  expect_refused(glm(), "cls_head", 3, {"is 3"});
  expect_refused(glm(), "ffn_activate_fn", "relu", {"relu"});
  expect_refused(glm(), "ffn_activate_fn", "gated_gelu", {"not gated"});
  expect_refused(glm(), "position_size", 1, {"at least 2"});
  expect_refused(glm(), "length_scale", true, {"true"});
  expect_refused(glm(), "pos_bias_type", "relative", {"none"});
  json without = glm();
  without.erase("dim_ff"); // ModelCenter's default
  expect_error([&] { from_config(without); }, {"'dim_ff' is 4096"});
}

TEST(ModelCenter, ConfiguresVit) {
  const ModelFixture reference("vit_classifier");
  // ModelCenter's norms have another epsilon than the fixture's.
  json same = read_json(reference.folder() / "config.json");
  same["layer_norm_eps"] = 1e-5;
  const auto expected =
      load("vit_classifier", same)->forward(reference.input()).logits;
  EXPECT_FALSE(expected.equal(reference.tensors("out.").at("logits")));
  const auto model = load("vit_classifier", vit());
  EXPECT_TRUE(model->forward(reference.input()).logits.equal(expected));
  const json& kept = model->config();
  EXPECT_FALSE(kept.contains("mlp_size"));
  EXPECT_EQ(kept.at("architectures"), json({"ViTForImageClassification"}));
  EXPECT_EQ(kept.at("hidden_dropout_prob"), 0.2);
  EXPECT_EQ(kept.at("attention_probs_dropout_prob"), 0.2);

  // What is left out has ModelCenter's values.
  const json defaults =
      from_model_center({{"model_type", "vit"}, {"mlp_size", 3072}}, "x");
  EXPECT_EQ(defaults.at("num_labels"), 1000);
  EXPECT_EQ(defaults.at("num_hidden_layers"), 12);
  EXPECT_EQ(defaults.at("image_size"), 224);

  for (const char* key : {"attn_bias", "norm_bias", "ffn_bias"}) {
    expect_refused(vit(), key, false, {"false"});
  }
  expect_refused(vit(), "representation_size", 8, {"before its classifier"});
  expect_refused(vit(), "model_type", "bert", {"must be vit"});
  // Names of the file in errors.
  expect_refused(vit(), "num_layers", -2, {"num_hidden_layers is"});
}

// As in Hugging Face's files, gelu is the exact one.
TEST(ModelCenter, KeepsTheActivation) {
  const json bert = {
      {"model_type", "bert"},
      {"vocab_size", 61},
      {"dim_model", 24},
      {"num_heads", 3},
      {"dim_ff", 36},
      {"num_layers", 2},
      {"position_size", 23},
      {"norm_eps", 1e-12},
      {"type_size", 2}};
  expect_makes("bert", bert);
  const auto activation_of = [&](const char* type, const char* native) {
    json config = bert;
    config["model_type"] = type;
    return from_model_center(config, "config.json").at(native);
  };
  EXPECT_EQ(activation_of("opt", "activation_function"), "relu");
  EXPECT_EQ(activation_of("llama", "hidden_act"), "silu");
  EXPECT_EQ(activation_of("t5", "feed_forward_proj"), "relu");
  EXPECT_EQ(activation_of("cpm2", "feed_forward_proj"), "gated-gelu");
  expect_refused(bert, "ffn_activate_fn", "gated_gelu", {"not gated"});
}

} // namespace tessera::zoo::model_center_test
