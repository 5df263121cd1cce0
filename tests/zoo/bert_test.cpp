// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/bert.h"

#include "support/expect_error.h"
#include "tessera/zoo/bert_folder.h"
#include "tessera/zoo/tokenizer/bert_tokenizer.h"
#include "zoo/support.h"
#include "zoo/tensor_support.h"

#include <set>

namespace tessera {
namespace {

BertInput input_of(const SafetensorsFile& file) {
  return {
      .input_ids = fixture_tensor(file, "input_ids"),
      .attention_mask = fixture_tensor(file, "attention_mask"),
      .token_type_ids = fixture_tensor(file, "token_type_ids")};
}

torch::Tensor tensor_of_rows(
    const std::vector<std::int64_t>& flat,
    std::int64_t rows) {
  return torch::tensor(flat, torch::kInt64).view({rows, -1});
}

BertForSequenceClassification tiny_bert() {
  auto model = load_bert_for_sequence_classification(fixture("tiny_bert"));
  model->eval();
  return model;
}

} // namespace

TEST(Bert, EqualsTransformersOnTheRealModel) {
  const auto reference = SafetensorsFile::open(fixture("minilm.safetensors"));
  // From the text on: the tokenizer and the model together.
  const auto tokenizer = BertTokenizer::from_folder(minilm_folder());
  std::vector<Encoding> rows;
  for (const auto& texts :
       nlohmann::json::parse(reference.metadata().at("texts"))) {
    const auto first = texts.at(0).get<std::string>();
    rows.push_back(
        texts.size() == 1
            ? tokenizer.encode(first, {.max_length = 16})
            : tokenizer.encode_pair(
                  first, texts.at(1).get<std::string>(), {.max_length = 16}));
  }
  const EncodedBatch batch = tokenizer.pad(rows, {.length = 16});
  const BertInput input = {
      .input_ids = tensor_of_rows(batch.input_ids, batch.rows),
      .attention_mask = tensor_of_rows(batch.attention_mask, batch.rows),
      .token_type_ids = tensor_of_rows(batch.token_type_ids, batch.rows)};
  const BertInput expected = input_of(reference);
  ASSERT_TRUE(input.input_ids.equal(expected.input_ids));
  ASSERT_TRUE(input.attention_mask.equal(expected.attention_mask));
  ASSERT_TRUE(input.token_type_ids.equal(expected.token_type_ids));

  BertModel model = load_bert(minilm_folder());
  model->eval();
  const torch::NoGradGuard no_grad;
  const BertOutput output = model->forward(input, true);
  ASSERT_EQ(output.hidden_states.size(), 7);
  expect_near(
      output.hidden_states[1], fixture_tensor(reference, "hidden_states.1"));
  expect_near(
      output.hidden_states[4], fixture_tensor(reference, "hidden_states.4"));
  expect_near(output.last_hidden, fixture_tensor(reference, "last_hidden"));
  expect_near(output.pooled, fixture_tensor(reference, "pooled"));
  EXPECT_TRUE(output.hidden_states[6].equal(output.last_hidden));
}

TEST(Bert, EqualsTransformersInLogitsLossAndGradients) {
  const auto reference =
      SafetensorsFile::open(fixture("tiny_bert.safetensors"));
  BertForSequenceClassification model = tiny_bert();
  const torch::Tensor logits = model->forward(input_of(reference));
  expect_near(logits, fixture_tensor(reference, "logits.gelu_new"));
  const torch::Tensor loss = torch::nn::functional::cross_entropy(
      logits, fixture_tensor(reference, "labels"));
  expect_near(loss, fixture_tensor(reference, "loss"));
  loss.backward();
  int compared = 0;
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    if (reference.contains("grad." + item.key())) {
      SCOPED_TRACE(item.key());
      expect_near(
          item.value().grad(), fixture_tensor(reference, "grad." + item.key()));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 5);
}

TEST(Bert, EqualsTransformersForEveryActivation) {
  const auto reference =
      SafetensorsFile::open(fixture("tiny_bert.safetensors"));
  const BertForSequenceClassification weights = tiny_bert();
  for (const char* activation : {"gelu", "gelu_new", "relu"}) {
    SCOPED_TRACE(activation);
    BertConfig config = weights->config();
    config.hidden_act = activation;
    BertForSequenceClassification model(config);
    model->eval();
    const torch::NoGradGuard no_grad;
    const auto parameters = weights->named_parameters();
    for (auto& item : model->named_parameters()) {
      item.value().copy_(parameters[item.key()]);
    }
    expect_near(
        model->forward(input_of(reference)),
        fixture_tensor(reference, std::string("logits.") + activation));
  }
}

TEST(Bert, NamesItsParametersAsTheCheckpointDoes) {
  const auto file =
      SafetensorsFile::open(fixture("tiny_bert") / "model.safetensors");
  std::set<std::string> expected;
  for (const SafetensorsEntry& entry : file.entries()) {
    expected.insert(entry.name);
  }
  std::set<std::string> found;
  for (const std::string& name : tiny_bert()->named_parameters().keys()) {
    found.insert(name);
  }
  EXPECT_EQ(found, expected);
}

TEST(Bert, NeedsNoMaskAndNoTypes) {
  const auto reference =
      SafetensorsFile::open(fixture("tiny_bert.safetensors"));
  BertForSequenceClassification model = tiny_bert();
  const torch::Tensor ids = fixture_tensor(reference, "input_ids");
  const torch::Tensor full = model->forward(
      {.input_ids = ids,
       .attention_mask = torch::ones_like(ids),
       .token_type_ids = torch::zeros_like(ids)});
  expect_near(model->forward({.input_ids = ids}), full);
  expect_near(model->forward({.input_ids = ids.to(torch::kInt32)}), full);
}

TEST(Bert, IsBlindToPadding) {
  const auto reference =
      SafetensorsFile::open(fixture("tiny_bert.safetensors"));
  BertForSequenceClassification model = tiny_bert();
  BertInput input = input_of(reference);
  const torch::Tensor before = model->forward(input);
  input.input_ids =
      torch::where(input.attention_mask.eq(0), 7, input.input_ids);
  EXPECT_TRUE(model->forward(input).equal(before));
}

TEST(Bert, StaysFiniteWhereAllIsPadding) {
  for (const bool training : {false, true}) {
    const auto reference =
        SafetensorsFile::open(fixture("tiny_bert.safetensors"));
    BertForSequenceClassification model = tiny_bert();
    model->train(training); // with dropout another kernel is taken
    BertInput input = input_of(reference);
    const torch::Tensor before = model->forward(input);
    input.attention_mask[2].zero_();
    const torch::Tensor logits = model->forward(input);
    EXPECT_TRUE(logits.isfinite().all().item<bool>());
    if (!training) {
      EXPECT_TRUE(logits[0].equal(before[0]));
    }
    logits.sum().backward();
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>())
          << item.key();
    }
  }
}

TEST(Bert, DropsOutOnlyInTraining) {
  const auto reference =
      SafetensorsFile::open(fixture("tiny_bert.safetensors"));
  BertForSequenceClassification model = tiny_bert();
  const BertInput input = input_of(reference);
  EXPECT_TRUE(model->forward(input).equal(model->forward(input)));
  model->train();
  EXPECT_FALSE(model->forward(input).equal(model->forward(input)));
}

// Each probability has a place of its own: with the others at 0, a model in
// training still varies.
TEST(Bert, HonoursEachDropout) {
  const auto varies = [](double hidden, double attention, double classifier) {
    BertConfig config = BertConfig::from_folder(fixture("tiny_bert"));
    config.hidden_dropout_prob = hidden;
    config.attention_probs_dropout_prob = attention;
    config.classifier_dropout = classifier;
    config.initializer_range = 0.5;
    BertForSequenceClassification model(config);
    const torch::Tensor ids = torch::randint(3, 61, {2, 9});
    return !model->forward({.input_ids = ids})
                .equal(model->forward({.input_ids = ids}));
  };
  EXPECT_FALSE(varies(0, 0, 0));
  EXPECT_TRUE(varies(0.5, 0, 0));
  EXPECT_TRUE(varies(0, 0.5, 0));
  EXPECT_TRUE(varies(0, 0, 0.5));
}

TEST(Bert, StartsFromTheInitializerRange) {
  torch::manual_seed(3);
  BertConfig config = BertConfig::from_folder(fixture("tiny_bert"));
  config.vocab_size = 2000; // 60,000 numbers: a deviation known to 1 %
  config.initializer_range = 0.07;
  const BertForSequenceClassification model(config);
  const auto parameters = model->named_parameters();
  const torch::Tensor words =
      parameters["bert.embeddings.word_embeddings.weight"];
  EXPECT_NEAR(words.std().item<double>(), 0.07, 0.07 * 0.01);
  EXPECT_EQ(words[config.pad_token_id].abs().sum().item<double>(), 0);
  // 900 and 150 numbers: five sigmas of the estimate.
  EXPECT_NEAR(
      parameters["bert.encoder.layer.0.attention.self.query.weight"]
          .std()
          .item<double>(),
      0.07,
      0.07 * 5 / std::sqrt(2 * 900));
  EXPECT_NEAR(
      parameters["classifier.weight"].std().item<double>(),
      0.07,
      0.07 * 5 / std::sqrt(2 * 150));
  EXPECT_EQ(parameters["classifier.bias"].abs().sum().item<double>(), 0);
  EXPECT_TRUE(
      parameters["bert.embeddings.LayerNorm.weight"].eq(1).all().item<bool>());
}

TEST(Bert, NamesWhatIsWrongWithABatch) {
  BertForSequenceClassification model = tiny_bert();
  const auto run = [&](const BertInput& input) {
    return [&model, input] { model->forward(input); };
  };
  const torch::Tensor ids = torch::full({2, 5}, 7, torch::kInt64);
  expect_error(run({}), {"input_ids is undefined"});
  expect_error(run({.input_ids = ids[0]}), {"[batch, sequence]"});
  expect_error(run({.input_ids = ids.to(torch::kFloat)}), {"int64 or int32"});
  expect_error(
      run({.input_ids = ids + 54}), {"input_ids holds 61", "tokenizer"});
  expect_error(run({.input_ids = -ids}), {"input_ids holds -7"});
  expect_error(
      run({.input_ids = torch::ones({1, 24}, torch::kInt64)}),
      {"24", "max_length = 23"});
  expect_error(
      run({.input_ids = torch::ones({1, 0}, torch::kInt64)}), {"of 0 tokens"});
  expect_error(
      run({.input_ids = ids, .token_type_ids = ids}),
      {"token_type_ids holds 7"});
  expect_error(
      run({.input_ids = ids, .attention_mask = ids[0]}), {"one shape"});
  BertConfig config = model->config();
  config.num_attention_heads = 4;
  expect_error([&] { BertModel{config}; }, {"num_attention_heads 4"});
}

} // namespace tessera
