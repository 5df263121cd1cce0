// SPDX-License-Identifier: Apache-2.0
// Encoder-decoders against transformers, and CPM-2 against its formulas:
// hidden states of both halves, logits, loss, gradients, dropout, and the bytes
// of a folder that is saved again.

#include "support/expect_error.h"
#include "tessera/zoo/inputs/tensor_files.h"
#include "zoo/model_fixture.h"

namespace tessera::zoo::encoder_decoders_test {
namespace {

class EncoderDecoders : public ::testing::TestWithParam<const char*> {};

torch::Tensor expected_loss(const ModelFixture& reference) {
  return reference.tensors("out.").at("loss");
}

} // namespace

TEST_P(EncoderDecoders, EqualTransformers) {
  expect_equals_transformers(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    All,
    EncoderDecoders,
    ::testing::Values(
        "cpm2",
        "cpm2_base",
        "cpm2_scaled",
        "mt5",
        "mt5_base",
        "mt5_classifier",
        "mt5_encoder",
        "mt5_questions",
        "mt5_tokens",
        "t5",
        "t5_base",
        "t5_classifier",
        "t5_encoder",
        "t5_questions",
        "t5_tokens",
        "t5_v1_1"),
    [](const auto& one) { return std::string(one.param); });

// Same probabilities in the same places: the generator gives both the same
// numbers.
TEST(EncoderDecoder, DropsWhatTransformersDrops) {
  const ModelFixture reference("t5");
  const auto model = from_pretrained(reference.folder());
  model->train();
  torch::manual_seed(7);
  expect_near(
      model->forward(reference.input()).loss,
      reference.tensors("train.").at("loss"));
}

TEST(EncoderDecoder, ComputesTheLossWithoutLogits) {
  for (const char* name : {"t5", "mt5"}) {
    SCOPED_TRACE(name);
    const ModelFixture reference(name);
    const auto model = from_pretrained(reference.folder());
    ModelInput input = reference.input();
    input.loss_only = true;
    input.hidden_states = false;
    const ModelOutput output = model->forward(input);
    EXPECT_FALSE(output.logits.defined());
    expect_near(output.loss, expected_loss(reference));
    output.loss.backward();
    expect_gradients(reference, *model);
  }
}

// The bias goes to recomputed layers with a gradient of its own.
TEST(EncoderDecoder, RecomputesItsLayers) {
  const ModelFixture reference("t5");
  const auto model = from_pretrained(reference.folder());
  model->recompute({.layers = 3});
  model->forward(reference.input()).loss.backward();
  expect_gradients(reference, *model);
}

TEST(EncoderDecoder, MovesLabelsToTheDecodersInput) {
  const ModelFixture reference("t5");
  const auto model = from_pretrained(reference.folder());
  ModelInput input = reference.input();
  const int64_t length = input.labels.size(1);
  input.decoder_input_ids = torch::cat(
      {torch::full({input.labels.size(0), 1}, 3, torch::kInt64),
       input.labels.narrow(1, 0, length - 1).clamp_min(3)},
      1); // -100 becomes the padding token, which is 3
  expect_near(model->forward(input).loss, expected_loss(reference));
}

// Published folders of T5 v1.1 say that nothing is tied, those that
// transformers 5 writes say that all is: the checkpoint decides.
TEST(EncoderDecoder, FindsOutWhetherTheHeadIsTied) {
  const ModelFixture reference("t5_v1_1");
  const TemporaryFolder folder;
  nlohmann::json config = read_json(reference.folder() / "config.json");
  config["tie_word_embeddings"] = false;
  config.erase("scale_decoder_outputs");
  runtime::write_file_atomically(folder.path() / "config.json", config.dump());
  std::filesystem::copy_file(
      reference.folder() / "model.safetensors",
      folder.path() / "model.safetensors");
  const auto model = from_pretrained(folder.path());
  expect_outputs(reference, model->forward(reference.input()));
  const auto has_head = [](const Model& one) {
    return one.named_parameters().contains("head.weight");
  };
  EXPECT_TRUE(has_head(*from_config(config)));
  const ModelFixture tied("t5");
  EXPECT_FALSE(has_head(*from_pretrained(tied.folder())));
}

// As transformers writes it in float16, with a float32 `wo`.
TEST(EncoderDecoder, KeepsTheTypeOfEachTensor) {
  const ModelFixture reference("t5");
  const TemporaryFolder mixed;
  write_changed(reference.folder(), mixed.path(), [](NamedTensors& tensors) {
    for (auto& [name, tensor] : tensors) {
      tensor = name.ends_with(".wo.weight") ? tensor : tensor.to(torch::kHalf);
    }
  });
  const auto model = from_pretrained(mixed.path(), {.dtype = std::nullopt});
  save_pretrained(*model, mixed.path() / "again");
  EXPECT_TRUE(
      runtime::read_text_file(mixed.path() / "model.safetensors") ==
      runtime::read_text_file(mixed.path() / "again" / "model.safetensors"));
}

// The whole model's checkpoint makes the encoder; what is tied may be in it
// several times.
TEST(EncoderDecoder, TakesOldCheckpointsAndThoseOfOtherHeads) {
  const ModelFixture reference("t5");
  const auto file =
      runtime::SafetensorsFile::open(reference.folder() / "model.safetensors");
  NamedTensors old;
  for (const runtime::SafetensorsEntry& entry : file.entries()) {
    old.emplace(entry.name, fixture_tensor(file, entry.name));
  }
  for (const char* again :
       {"encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight"}) {
    old[again] = old.at("shared.weight").clone();
  }
  old["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias."
      "weight"] = torch::ones({8, 4});
  const TemporaryFolder folder;
  write_named_tensors(folder.path() / "model.safetensors", old);
  std::filesystem::copy_file(
      reference.folder() / "config.json", folder.path() / "config.json");
  const auto model = from_pretrained(folder.path());
  expect_outputs(reference, model->forward(reference.input()));

  const auto encoder =
      from_pretrained(folder.path(), {.architecture = "T5EncoderModel"});
  ModelInput input;
  input.input_ids = reference.input().input_ids;
  input.attention_mask = reference.input().attention_mask;
  expect_near(
      without_padding(
          encoder->forward(input).last_hidden_state, input.attention_mask),
      without_padding(
          reference.tensors("out.").at("encoder_last_hidden_state"),
          input.attention_mask));
}

// ModelCenter's names make the same model.
TEST(EncoderDecoder, TakesModelCentersConfigurations) {
  const ModelFixture reference("cpm2");
  const auto model = from_config(
      {{"model_type", "cpm2"},
       {"vocab_size", 61},
       {"dim_model", 16},
       {"num_heads", 4},
       {"dim_head", 6},
       {"dim_ff", 20},
       {"num_encoder_layers", 2},
       {"num_decoder_layers", 2},
       {"position_bias_num_buckets", 8},
       {"position_bias_max_distance", 10},
       {"norm_eps", 1e-6},
       {"dropout_p", 0},
       {"ffn_activate_fn", "gated_gelu"},
       {"attn_scale", false},
       {"half", true}});
  load_pretrained(*model, reference.folder());
  model->eval();
  expect_outputs(reference, model->forward(reference.input()));
}

TEST(EncoderDecoder, NamesWhatIsWrong) {
  const ModelFixture reference("t5");
  const auto model = from_pretrained(reference.folder());
  ModelInput input;
  input.input_ids = torch::full({2, 5}, 7, torch::kInt64);
  expect_error(
      [&] { model->forward(input); },
      {"decoder_input_ids are missing", "labels"});
  input.decoder_input_ids = torch::full({3, 4}, 7, torch::kInt64);
  expect_error([&] { model->forward(input); }, {"the same number of rows"});
  input.decoder_input_ids = torch::full({2, 4}, 99, torch::kInt64);
  expect_error([&] { model->forward(input); }, {"decoder_input_ids holds 99"});
  nlohmann::json config = read_json(reference.folder() / "config.json");
  config["relative_attention_num_buckets"] = 3;
  expect_error([&] { from_config(config); }, {"is 3", "at least 4"});
  config["relative_attention_num_buckets"] = 8;
  config["feed_forward_proj"] = "gated-gleu";
  expect_error([&] { from_config(config); }, {"'gated-gleu'", "gated-gelu"});
}

} // namespace tessera::zoo::encoder_decoders_test
