// SPDX-License-Identifier: Apache-2.0
// Encoders against transformers: hidden states, logits, loss, gradients,
// dropout, and the bytes of a folder that is saved again.

#include "support/expect_error.h"
#include "tessera/zoo/inputs/tensor_files.h"
#include "tessera/zoo/models/encoder.h"
#include "zoo/model_fixture.h"

namespace tessera::zoo::encoders_test {
namespace {

class Encoders : public ::testing::TestWithParam<const char*> {};

} // namespace

TEST_P(Encoders, EqualTransformers) {
  expect_equals_transformers(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Encoders,
    ::testing::Values(
        "bert",
        "bert_base",
        "bert_choice",
        "bert_classifier",
        "bert_next",
        "bert_pretraining",
        "bert_questions",
        "bert_tokens",
        "bert_untied",
        "longformer",
        "longformer_base",
        "longformer_choice",
        "longformer_classifier",
        "longformer_questions",
        "longformer_tokens",
        "longformer_wide",
        "roberta",
        "roberta_base",
        "roberta_choice",
        "roberta_classifier",
        "roberta_questions",
        "roberta_tokens",
        "roberta_untied",
        "roformer",
        "roformer_base",
        "roformer_choice",
        "roformer_classifier",
        "roformer_questions",
        "roformer_tokens",
        "roformer_untied"),
    [](const auto& one) { return std::string(one.param); });

// Same probabilities in the same places: the generator gives both the same
// numbers.
TEST(Encoder, DropsWhatTransformersDrops) {
  for (const char* name :
       {"bert_classifier", "roberta_classifier", "roformer_classifier"}) {
    SCOPED_TRACE(name);
    const ModelFixture reference(name);
    const auto model = from_pretrained(reference.folder());
    model->train();
    torch::manual_seed(7);
    expect_near(
        model->forward(reference.input()).loss,
        reference.tensors("train.").at("loss"));
  }
}

TEST(Encoder, ComputesTheLossWithoutHiddenStates) {
  for (const char* name :
       {"bert", "bert_untied", "longformer", "roberta", "roformer"}) {
    SCOPED_TRACE(name);
    const ModelFixture reference(name);
    const auto model = from_pretrained(reference.folder());
    ModelInput input = reference.input();
    input.loss_only = true;
    input.hidden_states = false;
    const ModelOutput output = model->forward(input);
    EXPECT_FALSE(output.logits.defined());
    expect_near(output.loss, reference.tensors("out.").at("loss"));
    output.loss.backward();
    expect_gradients(reference, *model);
  }
}

TEST(Encoder, RecomputesItsLayers) {
  for (const char* name : {"bert", "longformer", "roformer"}) {
    SCOPED_TRACE(name);
    const ModelFixture reference(name);
    const auto model = from_pretrained(reference.folder());
    model->recompute({.layers = model->stage().count()});
    model->forward(reference.input()).loss.backward();
    expect_gradients(reference, *model);
  }
}

// 2 in the attention mask is a global token, as one of global_attention_mask.
TEST(Encoder, TakesGlobalTokensInEitherMask) {
  const ModelFixture reference("longformer");
  const auto model = from_pretrained(reference.folder());
  ModelInput input = reference.input();
  const torch::Tensor global = input.others.at("global_attention_mask");
  input.others.clear();
  input.attention_mask = input.attention_mask * (global + 1);
  EXPECT_EQ(input.attention_mask.max().item<int64_t>(), 2);
  expect_near(model->forward(input).loss, reference.tensors("out.").at("loss"));
}

// Nobody waits for gradients of projections that a batch has no tokens for.
TEST(Encoder, HasGradientsWithoutGlobalTokens) {
  const ModelFixture reference("longformer");
  const auto model = from_pretrained(reference.folder());
  ModelInput input = reference.input();
  input.others.clear();
  model->forward(input).loss.backward();
  const torch::Tensor& gradient =
      model->named_parameters()["layers.0.attention.global_key.weight"].grad();
  ASSERT_TRUE(gradient.defined());
  EXPECT_EQ(gradient.abs().max().item<float>(), 0);
}

// The first checkpoints: names of TensorFlow, saved positions, the tied
// weight once more, and the heads of pre-training.
TEST(Encoder, TakesOldCheckpoints) {
  const ModelFixture reference("bert_classifier");
  const auto file =
      runtime::SafetensorsFile::open(reference.folder() / "model.safetensors");
  NamedTensors old;
  for (const runtime::SafetensorsEntry& entry : file.entries()) {
    std::string name = entry.name;
    for (const auto& [now, then] :
         {std::pair("LayerNorm.weight", "LayerNorm.gamma"),
          std::pair("LayerNorm.bias", "LayerNorm.beta")}) {
      if (const size_t at = name.find(now); at != std::string::npos) {
        name = name.substr(0, at) + then;
      }
    }
    old.emplace(name, fixture_tensor(file, entry.name));
  }
  old["bert.embeddings.position_ids"] = torch::arange(23).unsqueeze(0);
  old["cls.predictions.decoder.weight"] = torch::zeros({61, 24});
  old["cls.predictions.decoder.bias"] = torch::zeros({61});
  old["cls.seq_relationship.weight"] = torch::zeros({2, 24});
  const TemporaryFolder folder;
  write_named_tensors(folder.path() / "model.safetensors", old);
  std::filesystem::copy_file(
      reference.folder() / "config.json", folder.path() / "config.json");
  const auto model = from_pretrained(folder.path());
  expect_outputs(reference, model->forward(reference.input()));
}

// A base model's checkpoint has no prefix and makes every head, fresh; a
// masked LM's has no pooler.
TEST(Encoder, TakesCheckpointsOfOtherHeads) {
  const ModelFixture base("roberta_base");
  const torch::Tensor last = base.tensors("out.").at("last_hidden_state");
  for (const char* head :
       {"ForMaskedLM",
        "ForQuestionAnswering",
        "ForSequenceClassification",
        "ForTokenClassification"}) {
    SCOPED_TRACE(head);
    const auto model = from_pretrained(
        base.folder(), {.architecture = std::string("Roberta") + head});
    const ModelOutput output = model->forward(base.input());
    expect_near(output.hidden_states.back(), last);
  }
  const ModelFixture lm("bert");
  ModelInput input = lm.input();
  input.labels = torch::Tensor();
  const auto pooled =
      from_pretrained(lm.folder(), {.architecture = "BertModel"});
  expect_near(
      pooled->forward(input).last_hidden_state,
      lm.tensors("out.").at("hidden_states.2"));
}

TEST(Encoder, NeedsNoMaskAndNoTypes) {
  const ModelFixture reference("bert");
  const auto model = from_pretrained(reference.folder());
  ModelInput input;
  input.input_ids = reference.input().input_ids;
  const ModelOutput output = model->forward(input);
  input.attention_mask = torch::ones_like(input.input_ids);
  input.token_type_ids = torch::zeros_like(input.input_ids);
  input.position_ids = torch::arange(input.input_ids.size(1)).unsqueeze(0);
  expect_near(model->forward(input).logits, output.logits);
}

TEST(Encoder, NamesWhatIsWrong) {
  const ModelFixture reference("roberta_questions");
  const auto model = from_pretrained(reference.folder());
  ModelInput input;
  input.input_ids = torch::full({2, 20}, 7, torch::kInt64);
  expect_error([&] { model->forward(input); }, {"20 tokens", "19 positions"});
  input.input_ids = input.input_ids.narrow(1, 0, 5);
  input.labels = torch::zeros({2}, torch::kInt64);
  expect_error([&] { model->forward(input); }, {"'labels'", "start_positions"});
  nlohmann::json config = read_json(reference.folder() / "config.json");
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = config;
    changed[key] = value;
    return [changed] { from_config(changed); };
  };
  expect_error(with("num_labels", 3), {"3 labels", "question answering"});
  expect_error(with("is_decoder", true), {"'is_decoder' is true"});
  expect_error(with("pad_token_id", 22), {"pad_token_id", "less than"});
  expect_error(
      with("position_embedding_type", "relative_key"), {"relative_key"});
  config =
      read_json(ModelFixture("longformer_questions").folder() / "config.json");
  expect_error(with("attention_window", 7), {"attention_window", "7", "even"});
  expect_error(
      with("attention_window", {4}), {"1 windows", "num_hidden_layers"});
  expect_error(with("attention_window", {4, -2}), {"-2"});
  expect_error(with("attention_window", "wide"), {"wide"});
}

TEST(Encoder, SaysWhichInputsItsHeadsTake) {
  const ModelFixture choice("bert_choice");
  const auto chooser = from_pretrained(choice.folder());
  ModelInput input;
  input.input_ids = torch::full({2, 5}, 7, torch::kInt64);
  expect_error([&] { chooser->forward(input); }, {"[2, 5]", "[batch, choices"});
  const ModelFixture questions("longformer_questions");
  const auto answering = from_pretrained(questions.folder());
  expect_error(
      [&] { answering->forward(input); },
      {"three separators", "global_attention_mask"});
  input.others["global_attention_mask"] = torch::zeros({2, 4});
  expect_error(
      [&] { answering->forward(input); }, {"global_attention_mask", "[2, 4]"});
  input.others["global_attention_mask"] = torch::zeros({2, 5});
  EXPECT_TRUE(answering->forward(input).others.contains("start_logits"));
}

// As transformers reads them: a tied bias under the decoder's name alone, and
// a decoder that is not the embedding although it could be.
TEST(Encoder, TakesTiedWeightsAsTheFilesHaveThem) {
  for (const auto& [name, decoder] :
       {std::pair("bert", "cls.predictions.decoder"),
        std::pair("roberta", "lm_head.decoder")}) {
    SCOPED_TRACE(name);
    const ModelFixture reference(name);
    const std::string head(decoder);
    const std::string bias = head.substr(0, head.rfind('.')) + ".bias";
    const TemporaryFolder one;
    write_changed(reference.folder(), one.path(), [&](NamedTensors& tensors) {
      auto own = tensors.extract(bias);
      own.key() = head + ".bias";
      tensors.insert(std::move(own));
    });
    const auto model = from_pretrained(one.path());
    expect_outputs(reference, model->forward(reference.input()));

    const TemporaryFolder other;
    const std::string tokens =
        std::string(name) + ".embeddings.word_embeddings.weight";
    write_changed(reference.folder(), other.path(), [&](NamedTensors& tensors) {
      tensors.emplace(head + ".weight", tensors.at(tokens) * 2);
    });
    const auto own = from_pretrained(other.path());
    const at::Tensor bias_value =
        own->named_parameters()["head.decoder.bias"].detach();
    const at::Tensor logits = own->forward(reference.input()).logits.detach();
    expect_near(
        logits - bias_value,
        (reference.tensors("out.").at("logits") - bias_value) * 2);
  }
}

// transformers makes up a pooler where a checkpoint has none.
TEST(Encoder, HasNoPoolerThatTheFilesLack) {
  const ModelFixture reference("bert_base");
  const TemporaryFolder without;
  write_changed(reference.folder(), without.path(), [](NamedTensors& tensors) {
    std::erase_if(tensors, [](const auto& item) {
      return item.first.starts_with("pooler.");
    });
  });
  const auto model = from_pretrained(without.path());
  const ModelOutput output = model->forward(reference.input());
  EXPECT_FALSE(output.pooler_output.defined());
  expect_near(
      without_padding(
          output.last_hidden_state, reference.input().attention_mask),
      without_padding(
          reference.tensors("out.").at("last_hidden_state"),
          reference.input().attention_mask));
  save_pretrained(*model, without.path() / "again");
  EXPECT_TRUE(
      runtime::read_text_file(without.path() / "model.safetensors") ==
      runtime::read_text_file(without.path() / "again" / "model.safetensors"));
}

// The table of a new model is the one that transformers saves, and a folder's
// is used as it is.
TEST(Encoder, RotatesByATable) {
  const ModelFixture reference("roformer");
  const auto saved = from_pretrained(reference.folder());
  const auto fresh = from_config(saved->config());
  const at::Tensor table = saved->named_parameters()["rotary_table"];
  EXPECT_FALSE(table.requires_grad());
  // Sines and cosines of libraries may differ in the last bit.
  EXPECT_TRUE(at::allclose(
      fresh->named_parameters()["rotary_table"], table, 0, 1.2e-7));
  const TemporaryFolder still;
  write_changed(reference.folder(), still.path(), [](NamedTensors& tensors) {
    tensors["roformer.encoder.embed_positions.weight"] =
        at::cat({at::zeros({23, 4}), at::ones({23, 4})}, 1);
  });
  ModelInput input;
  input.input_ids = reference.input().input_ids.narrow(0, 0, 1);
  const ModelInput reversed{.input_ids = input.input_ids.flip(1)};
  const auto apart = [&](Model& model) {
    return (model.forward(input).logits -
            model.forward(reversed).logits.flip(1))
        .abs()
        .max()
        .item<double>();
  };
  // Without rotations tokens have no order; with them, the tolerance of
  // EqualTransformers is a small part of what the order changes.
  EXPECT_LT(apart(*from_pretrained(still.path())), 1e-5);
  EXPECT_GT(apart(*saved), 1e-3);
}

// Without rotated values, the base model computes something else.
TEST(Encoder, RotatesValuesOnRequest) {
  const ModelFixture reference("roformer_base");
  const at::Tensor with = from_pretrained(reference.folder())
                              ->forward(reference.input())
                              .last_hidden_state;
  const at::Tensor without =
      from_pretrained(reference.folder(), {.config = {{"rotary_value", false}}})
          ->forward(reference.input())
          .last_hidden_state;
  EXPECT_GT((with - without).abs().max().item<double>(), 0.1);
}

TEST(Encoder, NamesWhatRoFormerLacks) {
  const ModelFixture reference("roformer_choice");
  ModelInput input = reference.input();
  input.position_ids = at::arange(12).unsqueeze(0);
  const auto model = from_pretrained(reference.folder());
  expect_error([&] { model->forward(input); }, {"'position_ids'"});
  const nlohmann::json config = read_json(reference.folder() / "config.json");
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = config;
    changed[key] = value;
    return [changed] { from_config(changed); };
  };
  expect_error(with("summary_type", "mean"), {"'summary_type' is mean"});
  expect_error(with("summary_use_proj", true), {"'summary_use_proj'"});
  expect_error(with("summary_activation", "tanh"), {"'summary_activation'"});
  expect_error(
      with("num_attention_heads", 8), {"3 features", "even", "hidden_size 24"});
  expect_error(with("is_decoder", true), {"'is_decoder' is true"});
  expect_error(
      with("architectures", {"RoFormerForCausalLM"}),
      {"RoFormerForCausalLM", "not implemented"});
}

} // namespace tessera::zoo::encoders_test
