// SPDX-License-Identifier: Apache-2.0
// Decoders against transformers, or the formulas of those that it does not
// have: hidden states, logits, loss, gradients, and
// the bytes of a folder that is saved again.

#include "support/expect_error.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/inputs/tensor_files.h"
#include "tessera/zoo/layers/key_value_cache.h"
#include "tessera/zoo/models/decoder.h"
#include "tessera/zoo/models/llama_like.h"
#include "zoo/model_fixture.h"

#include <limits>
#include <string>
#include <vector>

namespace tessera::zoo::decoders_test {
namespace {

class Decoders : public ::testing::TestWithParam<const char*> {};

} // namespace

TEST_P(Decoders, EqualTransformers) {
  expect_equals_transformers(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Decoders,
    ::testing::Values(
        "arcee",
        "chatglm",
        "cohere",
        "cohere2",
        "cpm1",
        "cpm1_base",
        "cpm1_tied",
        "cpm3",
        "cpm3_base",
        "cpm3_untied",
        "ernie4_5",
        "exaone4",
        "falcon",
        "gemma",
        "gemma3_text",
        "glm",
        "glm4",
        "glm4_base",
        "glm4_classifier",
        "glm4_tokens",
        "glm_2021",
        "glm_base",
        "glm_classifier",
        "glm_tokens",
        "gpt2",
        "gpt2_base",
        "gpt2_classifier",
        "gpt2_questions",
        "gpt2_tokens",
        "gpt_neo",
        "gptj",
        "gptj_base",
        "gptj_classifier",
        "gptj_questions",
        "granite",
        "helium",
        "llama",
        "llama3",
        "llama_base",
        "llama_classifier",
        "llama_dynamic",
        "llama_linear",
        "llama_questions",
        "llama_tokens",
        "llama_yarn",
        "ministral",
        "mistral",
        "mpt",
        "nemotron",
        "olmo",
        "olmo2",
        "olmo3",
        "opt",
        "opt_350m",
        "opt_base",
        "opt_classifier",
        "opt_questions",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_base",
        "qwen2_classifier",
        "qwen2_moe",
        "qwen2_moe_balance",
        "qwen2_moe_base",
        "qwen2_moe_classifier",
        "qwen2_moe_questions",
        "qwen2_moe_tokens",
        "qwen2_moe_window",
        "qwen2_questions",
        "qwen2_tokens",
        "qwen3",
        "qwen3_base",
        "qwen3_classifier",
        "qwen3_moe",
        "qwen3_moe_base",
        "qwen3_moe_classifier",
        "qwen3_moe_questions",
        "qwen3_moe_tokens",
        "qwen3_moe_window",
        "qwen3_questions",
        "qwen3_tokens",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2"),
    [](const auto& one) { return std::string(one.param); });

// What answers questions has another prefix in LLaMA's files.
TEST(Decoder, AnswersQuestionsWithALanguageModelsWeights) {
  const ModelFixture reference("llama");
  const auto model = from_pretrained(
      reference.folder(), {.architecture = "LlamaForQuestionAnswering"});
  ModelInput input = reference.input();
  input.labels = torch::Tensor();
  expect_near(
      without_padding(
          model->forward(input).hidden_states.back(), input.attention_mask),
      without_padding(
          reference.tensors("out.").at("hidden_states.2"),
          input.attention_mask));
}

// Without a mask another kernel is taken, and no mask is made.
TEST(Decoder, NeedsNoMask) {
  for (const char* name : {"gpt2", "llama", "opt", "qwen2"}) {
    SCOPED_TRACE(name);
    const ModelFixture reference(name);
    const auto model = from_pretrained(reference.folder());
    ModelInput input = reference.input();
    input.attention_mask = torch::Tensor();
    const ModelOutput output = model->forward(input);
    input.attention_mask = torch::ones_like(input.input_ids);
    expect_near(model->forward(input).logits, output.logits);
  }
}

TEST(Decoder, ComputesTheLossWithoutLogits) {
  for (const char* name : {"gpt2", "llama", "gptj"}) {
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

TEST(Decoder, RecomputesItsLayers) {
  const ModelFixture reference("qwen2");
  const auto model = from_pretrained(reference.folder());
  model->recompute({.layers = model->stage().count()});
  model->forward(reference.input()).loss.backward();
  expect_gradients(reference, *model);
}

// A checkpoint without a head makes a classifier with a fresh one, and a
// language model's makes a base model without its head.
TEST(Decoder, TakesCheckpointsOfOtherHeads) {
  const ModelFixture lm("gpt2");
  const auto base = from_pretrained(lm.folder(), {.architecture = "GPT2Model"});
  const auto classifier = from_pretrained(
      lm.folder(), {.architecture = "GPT2ForSequenceClassification"});
  const torch::Tensor last = lm.tensors("out.").at("hidden_states.2");
  ModelInput input = lm.input();
  input.labels = torch::Tensor();
  const torch::Tensor mask = input.attention_mask;
  expect_near(
      without_padding(base->forward(input).last_hidden_state, mask),
      without_padding(last, mask));
  EXPECT_EQ(classifier->forward(input).logits.sizes(), (at::IntArrayRef{3, 2}));
  const TemporaryFolder saved;
  save_pretrained(*base, saved.path() / "base");
  const auto again = from_pretrained(saved.path() / "base");
  expect_near(
      again->forward(input).last_hidden_state,
      base->forward(input).last_hidden_state);
  expect_error(
      [&] { from_pretrained(lm.folder(), {.architecture = "GPT2Foo"}); },
      {"GPT2Foo", "GPT2LMHeadModel"});
}

/// The fixture's weights in several files, some under other names and some that
/// nothing needs, as old versions wrote them.
void write_old_files(
    const std::filesystem::path& from,
    const std::filesystem::path& to) {
  const auto file = runtime::SafetensorsFile::open(from / "model.safetensors");
  nlohmann::json weight_map;
  std::vector<NamedTensors> parts(3);
  size_t next = 0;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    const size_t part = next++ % parts.size();
    parts[part].emplace(name, tensor);
    weight_map[name] = "part-" + std::to_string(part) + ".safetensors";
  };
  for (const runtime::SafetensorsEntry& entry : file.entries()) {
    add(entry.name.substr(std::string("transformer.").size()),
        fixture_tensor(file, entry.name));
  }
  add("h.0.attn.bias", torch::ones({1, 1, 23, 23}));
  add("h.1.attn.masked_bias", torch::full({}, -1e4));
  add("lm_head.weight", fixture_tensor(file, "transformer.wte.weight"));
  for (size_t i = 0; i < parts.size(); ++i) {
    write_named_tensors(
        to / ("part-" + std::to_string(i) + ".safetensors"), parts[i]);
  }
  runtime::write_file_atomically(
      to / "model.safetensors.index.json",
      nlohmann::json({{"weight_map", weight_map}}).dump());
  std::filesystem::copy_file(from / "config.json", to / "config.json");
}

TEST(Decoder, TakesOldCheckpointsInSeveralFiles) {
  const ModelFixture reference("gpt2");
  const TemporaryFolder folder;
  write_old_files(reference.folder(), folder.path());
  const auto model = from_pretrained(folder.path());
  expect_outputs(reference, model->forward(reference.input()));
  save_pretrained(*model, folder.path() / "again");
  expect_same_bytes(reference.folder(), folder.path() / "again");
}

// Files of at most 20 kB, and an index.
TEST(Decoder, IsSavedInSeveralFiles) {
  const ModelFixture reference("qwen2_moe");
  const auto model = from_pretrained(reference.folder());
  const TemporaryFolder folder;
  const auto to = folder.path() / "model";
  save_pretrained(*model, to, {}, {}, /*max_shard_bytes=*/20'000);
  EXPECT_FALSE(std::filesystem::exists(to / "model.safetensors"));
  const nlohmann::json index = read_json(to / "model.safetensors.index.json");
  std::map<std::string, int64_t> bytes;
  const auto full =
      runtime::SafetensorsFile::open(reference.folder() / "model.safetensors");
  EXPECT_EQ(index.at("weight_map").size(), full.entries().size());
  int64_t total = 0;
  for (const runtime::SafetensorsEntry& entry : full.entries()) {
    const auto file = index.at("weight_map").at(entry.name).get<std::string>();
    bytes[file] += static_cast<int64_t>(entry.data.size());
    total += static_cast<int64_t>(entry.data.size());
  }
  EXPECT_EQ(index.at("metadata").at("total_size"), total);
  ASSERT_GT(bytes.size(), 2);
  EXPECT_EQ(
      bytes.begin()->first,
      "model-00001-of-0000" + std::to_string(bytes.size()) + ".safetensors");
  for (const auto& [file, size] : bytes) {
    EXPECT_LE(size, 20'000) << file;
  }
  const auto again = from_pretrained(to);
  save_pretrained(*again, to); // in place of them
  expect_same_bytes(reference.folder(), to);
}

// As transformers reads it: what is tied may be there under one name only, or
// with another value, and is then not tied.
TEST(Decoder, TakesTiedWeightsAsTheFilesHaveThem) {
  const ModelFixture reference("gpt2");
  const TemporaryFolder one;
  write_changed(reference.folder(), one.path(), [](NamedTensors& tensors) {
    auto embedding = tensors.extract("transformer.wte.weight");
    embedding.key() = "lm_head.weight";
    tensors.insert(std::move(embedding));
  });
  const auto model = from_pretrained(one.path());
  expect_outputs(reference, model->forward(reference.input()));
  save_pretrained(*model, one.path() / "again");
  expect_same_bytes(reference.folder(), one.path() / "again");

  const TemporaryFolder other;
  write_changed(reference.folder(), other.path(), [](NamedTensors& tensors) {
    tensors.emplace("lm_head.weight", tensors.at("transformer.wte.weight") * 2);
  });
  const auto own = from_pretrained(other.path());
  const ModelInput input = reference.input();
  expect_near(
      without_padding(own->forward(input).logits, input.attention_mask),
      without_padding(
          reference.tensors("out.").at("logits") * 2, input.attention_mask));
  save_pretrained(*own, other.path() / "again");
  EXPECT_TRUE(
      runtime::read_text_file(other.path() / "model.safetensors") ==
      runtime::read_text_file(other.path() / "again" / "model.safetensors"));
  EXPECT_EQ(
      read_json(other.path() / "again" / "config.json")["tie_word_embeddings"],
      false);
}

TEST(Decoder, IsSavedInTheTypeThatItHas) {
  const ModelFixture reference("llama");
  const TemporaryFolder folder;
  const auto half =
      from_pretrained(reference.folder(), {.dtype = torch::kBFloat16});
  save_pretrained(*half, folder.path() / "half");
  EXPECT_EQ(
      read_json(folder.path() / "half" / "config.json")["dtype"], "bfloat16");
  const auto again = from_pretrained(folder.path() / "half");
  const auto parameters = again->named_parameters();
  for (const auto& item : half->named_parameters()) {
    EXPECT_TRUE(parameters[item.key()].equal(item.value().to(torch::kFloat)));
  }
}

// Files of older versions have other field names.
TEST(Decoder, TakesOldConfigurations) {
  for (const std::string name :
       {"llama_linear", "llama_dynamic", "llama3", "llama_yarn", "glm"}) {
    SCOPED_TRACE(name);
    const ModelFixture reference(name);
    nlohmann::json old = read_json(reference.folder() / "config.json");
    nlohmann::json rope = old.at("rope_parameters");
    old.erase("rope_parameters");
    for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
      if (rope.contains(key)) {
        old[key] = rope.at(key);
        rope.erase(key);
      }
    }
    rope["type"] = rope.at("rope_type");
    rope.erase("rope_type");
    if (rope.at("type") != "default") {
      old["rope_scaling"] = rope;
    }
    old["torch_dtype"] = old.at("dtype");
    old.erase("dtype");
    const TemporaryFolder folder;
    runtime::write_file_atomically(folder.path() / "config.json", old.dump());
    std::filesystem::copy_file(
        reference.folder() / "model.safetensors",
        folder.path() / "model.safetensors");
    const auto model = from_pretrained(folder.path());
    expect_outputs(reference, model->forward(reference.input()));
    save_pretrained(*model, folder.path() / "again");
    EXPECT_EQ(
        read_json(folder.path() / "again" / "config.json")["torch_dtype"],
        "float32");
  }
}

// ModelCenter's names make the same model, which is saved with Hugging Face's.
TEST(Decoder, TakesModelCentersConfigurations) {
  const ModelFixture reference("gpt2");
  nlohmann::json config = {
      {"model_type", "gpt2"},
      {"vocab_size", 61},
      {"dim_model", 24},
      {"num_heads", 3},
      {"dim_head", 8},
      {"dim_ff", 96},
      {"num_layers", 2},
      {"position_size", 23},
      {"norm_eps", 1e-5},
      {"dropout_p", 0.1},
      {"ffn_activate_fn", "gelu_new"},
      {"tied", true},
      {"int8", false},
      {"half", true}};
  const auto model = from_config(config);
  load_pretrained(*model, reference.folder());
  model->eval();
  expect_outputs(reference, model->forward(reference.input()));
  EXPECT_EQ(model->config().at("hidden_size"), 24);
  EXPECT_FALSE(model->config().contains("dim_model"));
  config["length_scale"] = true;
  expect_error([&] { from_config(config); }, {"'length_scale' is true"});
  config.erase("model_type");
  expect_error([&] { from_config(config); }, {"dim_model", "gpt2, gptj"});
}

TEST(Decoder, NamesWhatIsWrongWithABatch) {
  const ModelFixture reference("llama");
  const auto model = from_pretrained(reference.folder());
  const auto run = [&](const ModelInput& input) {
    return [&model, input] { model->forward(input); };
  };
  const torch::Tensor ids = torch::full({2, 5}, 7, torch::kInt64);
  ModelInput input;
  expect_error(run(input), {"input_ids is missing"});
  input.input_ids = ids.to(torch::kFloat);
  expect_error(run(input), {"input_ids", "int64 or int32"});
  input.input_ids = ids + 60;
  expect_error(run(input), {"input_ids holds 67", "0 .. 60", "tokenizer"});
  input.input_ids = ids;
  input.attention_mask = torch::ones({2, 4});
  expect_error(run(input), {"attention_mask is [2, 4]", "[2, 5]"});
  input.attention_mask = torch::Tensor();
  input.token_type_ids = ids;
  expect_error(run(input), {"does not take 'token_type_ids'"});
}

TEST(Registry, TakesFamiliesOfUsers) {
  const ModelFamily custom_family = decoder_family(
      {.model_type = "mine",
       .base = "MineModel",
       .causal_lm = "MineForCausalLM",
       .sequence_classification = "",
       .config =
           [](const ConfigFields& fields) {
             return llama_like_config(fields, {});
           },
       .names = [] { return llama_like_names(); }});
  register_model(custom_family);
  expect_error([&] { register_model(custom_family); }, {"'mine' already"});
  const ModelFixture reference("llama");
  nlohmann::json config = read_json(reference.folder() / "config.json");
  config["model_type"] = "mine";
  config.erase("architectures"); // the first one is made
  const auto model = from_config(config);
  load_pretrained(*model, reference.folder());
  model->eval();
  expect_outputs(reference, model->forward(reference.input()));
}

// A few tokens, then the others after what the cache has of them.
TEST_P(Decoders, ContinueFromACache) {
  const ModelFixture reference(GetParam());
  const auto model = from_pretrained(reference.folder());
  const auto* decoder = dynamic_cast<const Decoder*>(model.get());
  if (decoder == nullptr || decoder->head_kind() != DecoderHead::kCausalLm ||
      !model->keeps_cache()) {
    return; // no language model, or the first tokens depend on the others
  }
  const torch::NoGradGuard no_grad;
  const torch::Tensor ids = reference.input().input_ids;
  ModelInput input;
  input.input_ids = ids;
  const torch::Tensor expected = model->forward(input).logits;
  KeyValueCache cache(ids.size(1));
  input.cache = &cache;
  std::vector<torch::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t length : {5, 1, 1, 3, 2}) {
    input.input_ids = ids.narrow(1, begin, length);
    parts.push_back(model->forward(input).logits);
    cache.advance(length);
    begin += length;
  }
  ASSERT_EQ(begin, ids.size(1));
  expect_near(torch::cat(parts, 1), expected);
}

TEST(Registry, RefusesVariantsByTheNameOfTheirField) {
  const auto refuse = [](const char* model,
                         const char* key,
                         const nlohmann::json& value,
                         const char* told) {
    SCOPED_TRACE(std::string(model) + " " + key);
    nlohmann::json config =
        read_json(fixture("models") / model / "config.json");
    config[key] = value;
    expect_error([&] { from_config(config); }, {key, told});
  };
  refuse("cohere", "use_qk_norm", true, "only false");
  refuse("falcon", "alibi", true, "only false");
  refuse("falcon", "multi_query", false, "only true");
  refuse("falcon", "new_decoder_architecture", true, "only false");
  refuse("gemma", "use_bidirectional_attention", true, "only false");
  refuse("gemma3_text", "final_logit_softcapping", 30.0, "null");
  refuse(
      "gpt_neo",
      "attention_layers",
      nlohmann::json::array({"global"}),
      "each of the 2 layers");
  refuse("mpt", "no_bias", false, "only true");
  refuse("olmo", "clip_qkv", 8.0, "null");
  refuse("phi", "tie_word_embeddings", true, "a weight of its own");
  refuse(
      "smollm3",
      "no_rope_layers",
      nlohmann::json::array({1}),
      "each of the 2 layers");
  refuse("stablelm", "qk_layernorm", true, "only false");
}

TEST(Falcon, HasNoDropoutOfAttentionWeights) {
  nlohmann::json config = read_json(fixture("models") / "falcon/config.json");
  config["initializer_range"] = 0.6; // attention is of consequence
  const auto loss_in_training = [&](double dropout) {
    config["attention_dropout"] = dropout;
    torch::manual_seed(1);
    const auto model = from_config(config);
    model->train();
    ModelInput input;
    input.input_ids = torch::arange(12).view({2, 6});
    input.labels = input.input_ids;
    return model->forward(input).loss.item<double>();
  };
  EXPECT_EQ(loss_in_training(0.5), loss_in_training(0));
  // Where transformers has it behind attention.
  config["parallel_attn"] = false;
  expect_error([&] { loss_in_training(0.5); }, {"attention_dropout", "only 0"});
  loss_in_training(0);
}

TEST(WeightNames, SayWhatATableLacks) {
  torch::nn::Sequential module(
      torch::nn::Linear(2, 3), torch::nn::Linear(2, 4));
  expect_error(
      [&] {
        WeightNames(*module, {.base = {{"first", {"0"}}}});
      },
      {"no entry", "'1."});
  expect_error(
      [&] {
        WeightNames(*module, {.base = {{"a.*", {"*"}}, {"b", {"1"}}}});
      },
      {"two entries", "'1.", "'b'"});
  const WeightNames names(*module, {.base = {{"both", {"0", "1"}}}});
  EXPECT_EQ(names.weights().size(), 2); // weight and bias
  size_t place = 0;
  EXPECT_EQ(names.of("1.weight", &place).shape(), (std::vector<int64_t>{7, 2}));
  EXPECT_EQ(place, 1);
  expect_error([&] { names.of("2.weight", nullptr); }, {"'2.weight'"});
}

TEST(Registry, NamesWhatIsWrongWithAConfiguration) {
  const auto with = [](const char* key, nlohmann::json value) {
    return [key, value] {
      nlohmann::json config =
          read_json(fixture("models") / "llama" / "config.json");
      config[key] = value;
      from_config(config);
    };
  };
  expect_error(with("model_type", "lama"), {"model_type 'lama'", "llama"});
  expect_error(with("model_type", nullptr), {"lacks 'model_type'"});
  expect_error(with("architectures", {"LlamaX"}), {"'LlamaX'", "LlamaModel"});
  expect_error(with("hidden_size", nullptr), {"lacks 'hidden_size'"});
  expect_error(with("hidden_size", -4), {"'hidden_size' is -4"});
  expect_error(with("hidden_size", "24"), {"hidden_size", "an integer"});
  expect_error(with("num_key_value_heads", 3), {"num_key_value_heads", "3"});
  expect_error(with("hidden_act", "sliu"), {"'sliu'", "'silu'"});
  expect_error(
      with("rope_parameters", {{"rope_type", "longrope"}, {"factor", 2}}),
      {"'longrope'", "yarn"});
  expect_error(with("pad_token_id", 61), {"'pad_token_id' is 61"});
  expect_error(with("head_dim", 7), {"7 features", "even"});
  expect_error(with("num_hidden_layers", 1 << 20), {"at most 10000"});
}

// Whatever a file says, there is a model or an error that names it: no crash,
// and no memory but for small tensors.
TEST(Registry, SurvivesHostileConfigurations) {
  const std::vector<nlohmann::json> values = {
      nullptr,
      true,
      -1,
      0,
      1,
      7,
      1 << 28,
      1 << 30,
      std::numeric_limits<int64_t>::max(),
      std::numeric_limits<uint64_t>::max(),
      1e300,
      -0.5,
      "",
      "x",
      nlohmann::json::array(),
      {1, "x", nullptr},
      nlohmann::json::object(),
      {{"x", 1}}};
  int refused = 0;
  for (const char* name :
       {"arcee",       "bert",       "chatglm",   "cohere",
        "cohere2",     "cpm1",       "cpm2",      "cpm3",
        "ernie4_5",    "exaone4",    "falcon",    "gemma",
        "gemma3_text", "glm4",       "glm_2021",  "gpt2",
        "gpt_neo",     "gptj",       "granite",   "helium",
        "llama3",      "llama_yarn", "ministral", "mistral",
        "mpt",         "nemotron",   "olmo",      "olmo2",
        "olmo3",       "opt_350m",   "phi",       "phi3",
        "qwen2",       "qwen2_moe",  "qwen3",     "roberta_questions",
        "roformer",    "seed_oss",   "smollm3",   "stablelm",
        "starcoder2",  "t5"}) {
    const nlohmann::json config =
        read_json(fixture("models") / name / "config.json");
    for (const auto& [key, old] : config.items()) {
      for (const nlohmann::json& value : values) {
        SCOPED_TRACE(std::string(name) + " " + key + " " + value.dump());
        nlohmann::json changed = config;
        changed[key] = value;
        try {
          lazy([&] { return from_config(changed); });
        } catch (const Error&) {
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(refused, 500);
}

} // namespace tessera::zoo::decoders_test
