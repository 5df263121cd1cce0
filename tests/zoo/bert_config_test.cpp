// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/bert_config.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

namespace tessera {

TEST(BertConfig, ReadsTheRealFolder) {
  const BertConfig config = BertConfig::from_folder(minilm_folder());
  EXPECT_EQ(config.vocab_size, 30522);
  EXPECT_EQ(config.hidden_size, 384);
  EXPECT_EQ(config.num_hidden_layers, 6);
  EXPECT_EQ(config.num_attention_heads, 12);
  EXPECT_EQ(config.intermediate_size, 1536);
  EXPECT_EQ(config.hidden_act, "gelu");
  EXPECT_EQ(config.layer_norm_eps, 1e-12);
  EXPECT_FALSE(config.classifier_dropout.has_value());
  EXPECT_EQ(config.num_labels(), 2);
}

TEST(BertConfig, SurvivesItsOwnJson) {
  BertConfig config = BertConfig::from_folder(fixture("tiny_bert"));
  config.labels = {"admin", "games", "science", "web", "x11"};
  const TemporaryFolder folder;
  write_file_atomically(folder / "config.json", config.to_json().dump());
  const BertConfig again = BertConfig::from_folder(folder.path());
  EXPECT_EQ(again.to_json(), config.to_json());
  EXPECT_EQ(again.labels, config.labels);
  EXPECT_EQ(again.classifier_dropout, 0.25);
  EXPECT_EQ(again.hidden_act, "gelu_new");
  EXPECT_EQ(again.pad_token_id, 2);
}

TEST(BertConfig, CountsLabelsWithoutNames) {
  const TemporaryFolder folder;
  nlohmann::json json = BertConfig().to_json();
  json.erase("id2label");
  json["num_labels"] = 3;
  write_file_atomically(folder / "config.json", json.dump());
  EXPECT_EQ(
      BertConfig::from_folder(folder.path()).labels,
      (std::vector<std::string>{"LABEL_0", "LABEL_1", "LABEL_2"}));
}

TEST(BertConfig, NamesWhatIsWrong) {
  struct Case {
    const char* patch; // merged into a good config.json
    const char* part;
    const char* other_part = "config.json";
  };
  const std::vector<Case> cases = {
      {R"({"model_type": "roberta"})", "model_type", "'roberta'"},
      {R"({"model_type": null})", "model_type", "absent"},
      {R"({"position_embedding_type": "relative_key"})", "relative_key"},
      {R"({"is_decoder": true})", "is_decoder"},
      {R"({"add_cross_attention": true})", "add_cross_attention"},
      {R"({"hidden_size": null})", "lacks 'hidden_size'"},
      {R"({"hidden_size": "768"})", "'hidden_size'", "an integer"},
      {R"({"hidden_size": 768.5})", "768.5", "an integer"},
      {R"({"hidden_size": 770})", "770", "num_attention_heads 12"},
      {R"({"num_attention_heads": 0})", "num_attention_heads is 0"},
      {R"({"num_hidden_layers": -1})", "num_hidden_layers is -1"},
      {R"({"vocab_size": 99999999999})", "vocab_size is 99999999999"},
      {R"({"hidden_act": "swish"})", "'swish'", "gelu_new"},
      {R"({"hidden_dropout_prob": 1})", "hidden_dropout_prob is 1"},
      {R"({"classifier_dropout": -0.5})", "classifier_dropout is -0.5"},
      {R"({"layer_norm_eps": 0})", "layer_norm_eps is 0"},
      {R"({"initializer_range": -1})", "initializer_range is -1"},
      {R"({"pad_token_id": 30522})", "pad_token_id is 30522"},
      {R"({"id2label": {"0": null, "2": "b"}})", "class 0"},
      {R"({"id2label": {"0": "a", "1": "a"}})", "one name"},
      {R"({"id2label": ["a", "b"]})", "id2label", "not a JSON object"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.patch);
    nlohmann::json json = BertConfig().to_json();
    json.merge_patch(nlohmann::json::parse(one.patch));
    const TemporaryFolder folder;
    write_file_atomically(folder / "config.json", json.dump());
    expect_error(
        [&] { BertConfig::from_folder(folder.path()); },
        {one.part, one.other_part});
  }
  expect_error(
      [] { BertConfig::from_folder("/nonexistent"); }, {"does not exist"});
}

} // namespace tessera
