// SPDX-License-Identifier: Apache-2.0
// Adapters against PEFT: what models compute with them, gradients, folders, and
// merged weights.

#include "tessera/zoo/adapters/lora.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/core/name_patterns.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/weights/weight_files.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/adapters/lora_layer.h"
#include "tessera/zoo/adapters/lora_targets.h"
#include "tools/example_data.h"
#include "zoo/lora_fixture.h"

#include <ATen/ops/linalg_svdvals.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace tessera::tasks::lora_test {
namespace {

class Lora : public ::testing::TestWithParam<const char*> {};

/// transformers' tensor of a model's weights.
torch::Tensor full_weight(const zoo::Model& model, const std::string& foreign) {
  const zoo::WeightNames names(model, model.names());
  const auto parameters = model.named_parameters();
  for (const zoo::NamedWeight& weight : names.weights()) {
    if (weight.name == foreign) {
      std::vector<torch::Tensor> native;
      for (const std::string& name : weight.native) {
        native.push_back(parameters[name].detach());
      }
      return weight.assemble(native);
    }
  }
  ADD_FAILURE() << foreign;
  return {};
}

zoo::LoraConfig for_queries(int64_t r = 2) {
  zoo::LoraConfig config;
  config.r = r;
  config.alpha = 4;
  config.target_modules.names = {"query", "value"};
  return config;
}

/// Large enough to be without memory.
std::shared_ptr<zoo::Model> large_lazy_bert() {
  nlohmann::json config =
      read_json(fixture("models") / "bert_classifier" / "config.json");
  config["hidden_size"] = 96;
  return lazy([&] { return zoo::from_config(config); });
}

std::shared_ptr<zoo::Model> small_bert() {
  return zoo::from_pretrained(fixture("models") / "bert_classifier");
}

/// With TESSERA_EXPORT_TO set, adapters stay there for
/// tests/fixture_makers/check_lora.py.
std::filesystem::path exported(
    const std::filesystem::path& folder,
    const char* name) {
  const char* kept = std::getenv("TESSERA_EXPORT_TO");
  return kept != nullptr ? std::filesystem::path(kept) / name : folder;
}

/// PEFT's outputs, gradients and files, and its outputs once more from
/// `folder`, to which the adapter is written.
/// @param make_base a new model for each adapter.
void expect_equals_peft(
    const zoo::LoraFixture& reference,
    const std::filesystem::path& folder,
    const std::function<std::shared_ptr<zoo::Model>()>& make_base) {
  const auto model = make_base();
  zoo::load_lora(*model, reference.folder());
  const zoo::ModelOutput output = model->forward(reference.input());
  zoo::expect_outputs(reference, output);
  output.loss.backward();
  zoo::expect_gradients(reference, *model);

  zoo::save_lora(*model, folder);
  zoo::expect_same_adapter(reference, folder);
  const auto again = make_base();
  zoo::load_lora(*again, folder);
  zoo::expect_outputs(reference, again->forward(reference.input()));
}

} // namespace

TEST_P(Lora, EqualsPeft) {
  const zoo::LoraFixture reference(GetParam());
  const TemporaryFolder saved;
  expect_equals_peft(reference, exported(saved / "adapter", GetParam()), [&] {
    return zoo::from_pretrained(reference.base().folder());
  });
}

TEST_P(Lora, IsMergedAsByPeft) {
  const zoo::LoraFixture reference(GetParam());
  const auto model = zoo::from_pretrained(reference.base().folder());
  zoo::load_lora(*model, reference.folder());
  const TemporaryFolder saved;
  zoo::save_merged(*model, saved / "merged");
  zoo::merge_lora(*model);
  EXPECT_FALSE(zoo::has_lora(*model));
  zoo::expect_outputs(reference, model->forward(reference.input()));
  for (const std::string& name : reference.names("merged.")) {
    SCOPED_TRACE(name);
    expect_near(
        full_weight(*model, name), reference.expected("merged." + name));
  }
  for (const torch::Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.requires_grad());
  }
  // Written without being merged, and merged and written: the same.
  zoo::save_pretrained(*model, saved / "again");
  zoo::expect_same_bytes(saved / "merged", saved / "again");
  const auto loaded = zoo::from_pretrained(saved / "merged");
  zoo::expect_outputs(reference, loaded->forward(reference.input()));
}

TEST_P(Lora, LoadsIntoALazyModel) {
  const zoo::LoraFixture reference(GetParam());
  const auto model =
      zoo::from_pretrained(reference.base().folder(), {.lazy = true});
  zoo::load_lora(*model, reference.folder());
  materialize(*model);
  zoo::expect_outputs(reference, model->forward(reference.input()));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Lora,
    ::testing::Values(
        "bert",
        "bert_biases",
        "bert_dora",
        "glm4",
        "gpt2",
        "gpt2_dora",
        "gpt2_pissa",
        "llama",
        "t5"),
    [](const auto& one) { return std::string(one.param); });

/// An embedding and a head that share their weight, and are trained apart or,
/// with ensure_weight_tying, as one.
class TiedLora : public ::testing::TestWithParam<const char*> {
 protected:
  static std::shared_ptr<zoo::Model> base(const zoo::LoraFixture& reference) {
    zoo::FromPretrainedOptions options;
    options.unties = unties_of(zoo::read_lora_config(reference.folder()));
    return zoo::from_pretrained(reference.base().folder(), options);
  }

  /// PEFT ties nothing that it does not know by name, as in
  /// "gpt2_tied_embedding".
  static bool is_tied() {
    return GetParam() == std::string("gpt2_tied_head");
  }
};

TEST_P(TiedLora, EqualsPeft) {
  const zoo::LoraFixture reference(GetParam());
  const TemporaryFolder saved;
  const auto folder = exported(saved / "adapter", GetParam());
  expect_equals_peft(reference, folder, [&] { return base(reference); });
  const auto native = read_json(folder / "adapter_config.json");
  EXPECT_EQ(native.at("ensure_weight_tying"), is_tied());
  // With the name by which PEFT will tie them when it loads this.
  const auto foreign = read_json(reference.folder() / "adapter_config.json");
  auto saved_modules = foreign.at("modules_to_save");
  if (is_tied()) {
    saved_modules.push_back("lm_head");
  }
  EXPECT_EQ(native.at("modules_to_save"), saved_modules);
}

TEST_P(TiedLora, IsMergedAsByPeft) {
  const zoo::LoraFixture reference(GetParam());
  const auto model = base(reference);
  zoo::load_lora(*model, reference.folder());
  const TemporaryFolder saved;
  zoo::save_merged(*model, saved / "merged");
  const auto merged = zoo::from_pretrained(saved / "merged");
  EXPECT_EQ(merged->has_tied_head(), is_tied());
  zoo::expect_outputs(reference, merged->forward(reference.input()));
  const auto weights =
      runtime::SafetensorsFile::open(saved / "merged" / "model.safetensors");
  for (const std::string& name : reference.names("merged.")) {
    if (is_tied() && name == "lm_head.weight") {
      EXPECT_FALSE(weights.contains(name));
      continue;
    }
    expect_near(
        fixture_tensor(weights, name), reference.expected("merged." + name));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TiedLora,
    ::testing::Values(
        "gpt2_embedding",
        "gpt2_head",
        "gpt2_both",
        "gpt2_tied_embedding",
        "gpt2_tied_head",
        "t5_head",
        "bert_embedding",
        "bert_decoder",
        "bert_predictions"),
    [](const auto& one) { return std::string(one.param); });

TEST(LoraModel, SharesNoWeightThatPeftTrainsApart) {
  const auto model = zoo::from_pretrained(fixture("models") / "gpt2");
  zoo::LoraConfig config;
  config.target_modules.names = {"c_attn"};
  config.modules_to_save = {"lm_head"};
  expect_error(
      [&] { zoo::apply_lora(*model, config); },
      {"'transformer.wte'", "'lm_head'", "ensure_weight_tying"});
  config.ensure_weight_tying = true;
  zoo::apply_lora(*model, config);
  EXPECT_TRUE(
      model->named_parameters()["embeddings.tokens.weight"].requires_grad());
  EXPECT_EQ(
      zoo::lora_config(*model).modules_to_save,
      (std::vector<std::string>{"lm_head", "transformer.wte"}));
  const auto other = zoo::from_pretrained(fixture("models") / "gpt2");
  config.modules_to_save = {"wte"};
  zoo::apply_lora(*other, config);
  EXPECT_EQ(
      zoo::lora_config(*other).modules_to_save,
      (std::vector<std::string>{"wte", "lm_head"}));
}

TEST(LoraModel, TiesWhatPeftCanTie) {
  // T5 has its embedding three times, of which PEFT would replace one.
  zoo::LoraConfig config;
  config.target_modules.names = {"q"};
  config.modules_to_save = {"shared"};
  zoo::FromPretrainedOptions options;
  options.unties = unties_of(config);
  expect_error(
      [&] { zoo::from_pretrained(fixture("models") / "t5", options); },
      {"modules_to_save",
       "shared, encoder.embed_tokens, decoder.embed_tokens",
       "'lm_head'"});
  config.ensure_weight_tying = true;
  const auto t5 = zoo::from_pretrained(fixture("models") / "t5");
  expect_error([&] { zoo::apply_lora(*t5, config); }, {"ensure_weight_tying"});

  // It does not know BERT's names.
  const auto bert = zoo::from_pretrained(fixture("models") / "bert");
  config.target_modules.names = {"query"};
  config.modules_to_save = {"word_embeddings"};
  expect_error(
      [&] { zoo::apply_lora(*bert, config); },
      {"ensure_weight_tying",
       "'cls.predictions.decoder'",
       "embed_tokens and lm_head"});
}

// As PEFT saves modules_to_save ["lm_head"] of a RoBERTa with
// ensure_weight_tying: the embedding's name, and both weights.
TEST(LoraModel, RefusesATiedDecoderThatItCannotTie) {
  const auto saved = [](const char* module, bool ensures) {
    const TemporaryFolder folder;
    runtime::write_file_atomically(
        folder / "adapter_config.json",
        nlohmann::json{
            {"peft_type", "LORA"},
            {"target_modules", {"query"}},
            {"ensure_weight_tying", ensures},
            {"modules_to_save", {module}}}
            .dump());
    tests::write_examples(
        folder / "adapter_model.safetensors",
        {{"base_model.model.lm_head.decoder.weight",
          {runtime::SafetensorsDtype::kF32, {2, 2}, [](int64_t, int64_t) {
             return 0.0;
           }}}});
    return zoo::read_lora_config(folder.path());
  };
  const char* embedding = "roberta.embeddings.word_embeddings";
  expect_error(
      [&] { saved(embedding, true); },
      {"adapter_config.json",
       "'ensure_weight_tying'",
       "lm_head.decoder",
       "merge_and_unload"});
  EXPECT_FALSE(saved(embedding, false).ensure_weight_tying);
  EXPECT_FALSE(saved("decoder", true).ensure_weight_tying);
}

TEST(LoraModel, StartsFromTheModelItself) {
  const zoo::ModelFixture reference("bert_classifier");
  const auto model = small_bert();
  const auto names = zoo::apply_lora(*model, for_queries());
  EXPECT_EQ(names.size(), 4U); // two layers
  EXPECT_EQ(names.front(), "bert.encoder.layer.0.attention.self.query");
  EXPECT_EQ(*zoo::lora_config(*model).task_type, "SEQ_CLS");
  zoo::ModelInput input = reference.input();
  input.hidden_states = false;
  const zoo::ModelOutput output = model->forward(input);
  expect_near(output.logits, reference.tensors("out.").at("logits"));
  zoo::remove_lora(*model);
  EXPECT_TRUE(model->forward(input).logits.equal(output.logits)); // B is zeros
  // Another seed, other numbers; the same one, the same.
  std::vector<torch::Tensor> first;
  for (const uint64_t seed : {1, 1, 2}) {
    const auto one = small_bert();
    zoo::apply_lora(*one, for_queries(), seed);
    for (const auto& item : one->named_parameters()) {
      if (item.key().ends_with("lora_A")) {
        first.push_back(item.value().detach());
      }
    }
  }
  ASSERT_EQ(first.size(), 12U);
  EXPECT_TRUE(first[0].equal(first[4]));
  EXPECT_FALSE(first[0].equal(first[8]));
  EXPECT_FALSE(first[0].equal(first[1])); // another layer
}

TEST(LoraModel, TrainsAndSavesWhatIsNewlyInitialized) {
  const auto classifier = [](const char* folder, const char* architecture) {
    zoo::FromPretrainedOptions options;
    options.architecture = architecture;
    options.config = class_fields({"a", "b", "c", "d"}, "");
    options.fresh_heads = true;
    return zoo::from_pretrained(fixture("models") / folder, options);
  };
  struct Case {
    const char* folder;
    const char* architecture;
    const char* target;
    std::vector<std::string> saved; ///< modules
    std::vector<std::string> weights; ///< in the adapter's file
  };
  const std::vector<Case> cases{
      {"bert",
       "BertForSequenceClassification",
       "query",
       {"classifier", "score", "bert.pooler"},
       {"bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "classifier.weight",
        "classifier.bias"}},
      {"t5",
       "T5ForSequenceClassification",
       "q",
       {"classifier", "score", "classification_head"},
       {"classification_head.dense.weight",
        "classification_head.dense.bias",
        "classification_head.out_proj.weight",
        "classification_head.out_proj.bias"}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.architecture);
    zoo::LoraConfig config;
    config.r = 2;
    config.target_modules.names = {one.target};
    const auto model = classifier(one.folder, one.architecture);
    zoo::apply_lora(*model, config);
    auto saved = zoo::lora_config(*model).modules_to_save;
    std::sort(saved.begin(), saved.end());
    auto expected = one.saved;
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(saved, expected);
    const TemporaryFolder folder;
    zoo::save_lora(*model, folder / "adapter");
    const auto files = sharding::WeightFiles::open(
        folder / "adapter" / "adapter_model.safetensors");
    for (const std::string& weight : one.weights) {
      EXPECT_NE(files.find("base_model.model." + weight), nullptr) << weight;
    }
    const zoo::WeightNames names = zoo::lora_names(*model);
    for (const auto& item : model->named_parameters()) {
      EXPECT_EQ(item.value().requires_grad(), names.has(item.key()))
          << item.key();
    }
    // Another base, whose new weights have other values.
    torch::manual_seed(7);
    const auto again = classifier(one.folder, one.architecture);
    zoo::load_lora(*again, folder / "adapter");
    zoo::ModelInput input;
    input.input_ids = torch::tensor({{3, 5, 2}}); // T5 classifies at its end
    input.attention_mask = torch::ones_like(input.input_ids);
    EXPECT_TRUE(
        again->forward(input).logits.equal(model->forward(input).logits));
  }
  // An adapter that was trained without them loads as it is.
  const auto model = classifier("bert", "BertForSequenceClassification");
  const TemporaryFolder folder;
  const auto trained = small_bert();
  zoo::apply_lora(*trained, for_queries());
  zoo::save_lora(*trained, folder / "adapter");
  EXPECT_EQ(
      zoo::lora_config(*trained).modules_to_save,
      (std::vector<std::string>{"classifier", "score"}));
  zoo::load_lora(*model, folder / "adapter");
  EXPECT_EQ(
      zoo::lora_config(*model).modules_to_save,
      zoo::lora_config(*trained).modules_to_save);
}

// transformers calls LLaMA's decoder `transformer` where it answers questions,
// and so does PEFT.
TEST(LoraModel, HasTheNamesOfClassesThatAnswerQuestions) {
  const TemporaryFolder folder;
  zoo::LoraConfig config;
  config.r = 2;
  config.target_modules.names = {"q_proj"};
  for (const char* name : {"llama", "llama_questions"}) {
    const auto model = zoo::from_pretrained(fixture("models") / name);
    zoo::apply_lora(*model, config);
    zoo::save_lora(*model, folder / name);
  }
  const auto files = sharding::WeightFiles::open(
      folder / "llama_questions" / "adapter_model.safetensors");
  for (const char* weight :
       {"transformer.layers.0.self_attn.q_proj.lora_A.weight",
        "qa_outputs.weight"}) {
    EXPECT_NE(files.find(std::string("base_model.model.") + weight), nullptr)
        << weight;
  }
  const auto model =
      zoo::from_pretrained(fixture("models") / "llama_questions");
  expect_error(
      [&] { zoo::load_lora(*model, folder / "llama"); },
      {"'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'"});
  zoo::load_lora(*model, folder / "llama_questions");
}

// An adapter of a classifier on a model of language, which has another head.
TEST(LoraModel, NamesTheHeadThatTheBaseLacks) {
  const TemporaryFolder folder;
  const auto trained = small_bert();
  zoo::apply_lora(*trained, for_queries());
  zoo::save_lora(*trained, folder / "adapter");
  const auto base = [&](const char* architecture) {
    zoo::FromPretrainedOptions options;
    options.architecture = architecture;
    return zoo::from_pretrained(fixture("models") / "bert", options);
  };
  const auto load = [&](zoo::Model& model) {
    return [&] { zoo::load_lora(model, folder / "adapter"); };
  };
  expect_error(
      load(*base("")),
      {"trained whole, classifier, and its base, a BertForMaskedLM,",
       "--architecture",
       "`tessera export RUN model.lora.merge=true`"});
  // A newly initialized head, of two classes.
  expect_error(
      load(*base("BertForSequenceClassification")),
      {"has classifier for another number of classes",
       "newly initialized",
       "id2label"});
  // What neither of them has is not written.
  zoo::FromPretrainedOptions options;
  options.architecture = "BertForSequenceClassification";
  options.config = class_fields({"a", "b", "c", "d"}, "");
  options.fresh_heads = true;
  const auto model = zoo::from_pretrained(fixture("models") / "bert", options);
  zoo::load_lora(*model, folder / "adapter");
  expect_error(
      [&] { zoo::save_merged(*model, folder / "merged"); },
      {"random values",
       "bert.pooler.dense.weight",
       "modules_to_save",
       "`tessera export RUN model.lora.merge=true`"});
  EXPECT_FALSE(std::filesystem::exists(folder / "merged"));
  const auto full = small_bert();
  zoo::load_lora(*full, folder / "adapter");
  zoo::save_merged(*full, folder / "merged");
}

TEST(LoraModel, TrainsInAPlainProgram) {
  const zoo::ModelFixture reference("llama");
  const auto model = zoo::from_pretrained(reference.folder());
  zoo::LoraConfig config;
  config.r = 4;
  config.init = zoo::LoraInit::kGaussian;
  config.target_modules.pattern = "all-linear";
  zoo::apply_lora(*model, config);
  std::vector<torch::Tensor> trained;
  zoo::NamedTensors frozen;
  for (const auto& item : model->named_parameters()) {
    if (item.value().requires_grad()) {
      trained.push_back(item.value());
    } else {
      frozen.emplace(item.key(), item.value().detach().clone());
    }
  }
  EXPECT_EQ(trained.size(), 2U * 7 * 2); // A, B of two layers
  torch::optim::AdamW optimizer(
      trained, torch::optim::AdamWOptions(0.03).weight_decay(0));
  zoo::ModelInput input = reference.input();
  input.hidden_states = false;
  const double before = model->forward(input).loss.item<double>();
  double after = 0;
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = model->forward(input).loss;
    loss.backward();
    optimizer.step();
    after = loss.item<double>();
  }
  EXPECT_LT(after, 0.8 * before);
  const auto parameters = model->named_parameters();
  for (const auto& [name, value] : frozen) {
    EXPECT_TRUE(parameters[name].equal(value)) << name;
  }
}

TEST(LoraModel, RecomputesItsLayers) {
  const zoo::LoraFixture reference("llama");
  const auto model = zoo::from_pretrained(reference.base().folder());
  zoo::load_lora(*model, reference.folder());
  model->recompute({.layers = model->stage().count()});
  model->forward(reference.input()).loss.backward();
  zoo::expect_gradients(reference, *model);
}

TEST(LoraModel, AdaptersOfALazyModelAreLazy) {
  const auto model = large_lazy_bert();
  zoo::apply_lora(*model, for_queries());
  size_t adapters = 0;
  for (const auto& item : model->named_parameters()) {
    if (zoo::is_adapter_parameter(item.key())) {
      EXPECT_TRUE(sharding::is_deferred(item.value())) << item.key();
      ++adapters;
    }
  }
  EXPECT_EQ(adapters, 8U);
  materialize(*model);
  EXPECT_EQ(
      model->forward({.input_ids = torch::full({2, 5}, 7, torch::kInt64)})
          .logits.size(0),
      2);
}

// What B and A see is dropped, the layer's own product is not.
TEST(LoraModel, DropsInputsOfAdaptersOnly) {
  const auto model = zoo::from_pretrained(fixture("models") / "llama");
  zoo::LoraConfig config;
  config.r = 2;
  config.dropout = 0.5;
  config.init = zoo::LoraInit::kRandom;
  config.target_modules.names = {"q_proj"};
  zoo::apply_lora(*model, config);
  for (const auto& module : model->modules()) {
    auto* layer = dynamic_cast<zoo::LinearLayer*>(module.get());
    if (layer == nullptr || zoo::LoraLayer::of(*layer) == nullptr) {
      continue;
    }
    const torch::NoGradGuard no_grad;
    zoo::LoraLayer& adapter = *zoo::LoraLayer::of(*layer);
    const torch::Tensor x = torch::ones({500, 24});
    const torch::Tensor none = torch::zeros({500, 24});
    const torch::Tensor full = adapter.forward(x, none);
    layer->train();
    torch::manual_seed(3);
    const torch::Tensor dropped = adapter.forward(x, none);
    EXPECT_FALSE(dropped.allclose(full));
    // The mean over 500 rows of features that are 0 or 2.
    EXPECT_TRUE(dropped.mean(0).allclose(full.mean(0), 0, 0.2));
    layer->eval();
    EXPECT_TRUE(adapter.forward(x, none).equal(full));
  }
}

// As in PEFT: the layer's own product stays, and what magnitudes change is
// computed from the dropped input.
TEST(LoraModel, DropsInputsOfMagnitudesToo) {
  const auto model =
      zoo::from_pretrained(fixture("models") / "bert_classifier");
  zoo::LoraConfig config = for_queries();
  config.dropout = 0.5;
  config.use_dora = true;
  zoo::apply_lora(*model, config);
  size_t compared = 0;
  for (const auto& module : model->modules()) {
    auto* layer = dynamic_cast<zoo::LinearLayer*>(module.get());
    if (layer == nullptr || zoo::LoraLayer::of(*layer) == nullptr) {
      continue;
    }
    const torch::NoGradGuard no_grad;
    zoo::LoraLayer& adapter = *zoo::LoraLayer::of(*layer);
    const auto parameters = adapter.named_parameters();
    const torch::Tensor b = parameters["lora_B"].uniform_(-1, 1);
    const torch::Tensor m = parameters["lora_magnitude"].uniform_(1, 2);
    const torch::Tensor a =
        parameters.contains("lora_A") ? parameters["lora_A"] : torch::Tensor();
    ASSERT_TRUE(a.defined());
    const torch::Tensor x = torch::rand({5, 24});
    const torch::Tensor product = torch::linear(x, layer->weight, layer->bias);
    layer->train();
    torch::manual_seed(3);
    const torch::Tensor result = adapter.forward(x, product);
    torch::manual_seed(3);
    const torch::Tensor dropped = torch::dropout(x, 0.5, true);
    const torch::Tensor update = 2 * b.matmul(a); // alpha / r
    const torch::Tensor factor =
        m / (layer->weight + update).square().sum(1).sqrt();
    expect_near(
        result,
        product + torch::linear(dropped, layer->weight) * (factor - 1) +
            torch::linear(dropped, update) * factor);
    ++compared;
  }
  EXPECT_EQ(compared, 4U);
}

TEST(LoraModel, MagnitudesStartAsLengthsOfRows) {
  const zoo::LoraFixture reference("bert_dora");
  zoo::LoraConfig config = for_queries();
  config.use_dora = true;
  config.target_modules.names = {"query", "output.dense"};
  const auto model = zoo::from_pretrained(reference.base().folder());
  const auto plain = zoo::from_pretrained(reference.base().folder());
  zoo::apply_lora(*model, config);
  const auto parameters = model->named_parameters();
  size_t compared = 0;
  for (const auto& item : parameters) {
    const std::string& name = item.key();
    const size_t end = name.rfind(".adapter.lora_magnitude");
    if (end != std::string::npos) {
      EXPECT_TRUE(item.value().requires_grad());
      expect_near(
          item.value().detach(),
          parameters[name.substr(0, end) + ".weight"]
              .detach()
              .square()
              .sum(1)
              .sqrt());
      ++compared;
    }
  }
  EXPECT_EQ(compared, 6U);
  expect_near(
      model->forward(reference.input()).logits,
      plain->forward(reference.input()).logits);
}

// What is computed from weights is the same of those that are read later.
TEST(LoraModel, AdaptsLazyWeightsAlike) {
  const zoo::LoraFixture reference("bert_dora");
  const TemporaryFolder folder;
  zoo::write_large_bert(folder / "base");
  zoo::LoraConfig config = for_queries();
  config.target_modules.names = {"query", "output.dense"};
  const auto plain = zoo::from_pretrained(folder / "base");
  for (const bool use_dora : {true, false}) {
    SCOPED_TRACE(use_dora);
    config.use_dora = use_dora;
    config.init = use_dora ? zoo::LoraInit::kDefault : zoo::LoraInit::kPissa;
    const auto model = zoo::from_pretrained(folder / "base");
    zoo::apply_lora(*model, config);
    const auto later = zoo::from_pretrained(folder / "base", {.lazy = true});
    zoo::apply_lora(*later, config);
    const auto expected = model->named_parameters();
    for (const auto& item : later->named_parameters()) {
      if (item.key().ends_with("query.weight")) {
        EXPECT_TRUE(sharding::is_deferred(item.value())) << item.key();
      }
    }
    materialize(*later);
    for (const auto& item : later->named_parameters()) {
      SCOPED_TRACE(item.key());
      expect_near(item.value().detach(), expected[item.key()].detach());
    }
    expect_near(
        later->forward(reference.input()).logits,
        plain->forward(reference.input()).logits);
    // What was taken is given back, also to weights that are read then.
    const auto removed = zoo::from_pretrained(folder / "base", {.lazy = true});
    zoo::apply_lora(*removed, config);
    zoo::remove_lora(*removed);
    materialize(*removed);
    for (const auto& item : removed->named_parameters()) {
      expect_near(
          item.value().detach(),
          plain->named_parameters()[item.key()].detach());
    }
  }
}

TEST(LoraModel, TakesThePrincipalPartOfTheWeights) {
  const zoo::LoraFixture reference("gpt2_pissa");
  zoo::LoraConfig config;
  config.r = 3;
  config.alpha = 6;
  config.init = zoo::LoraInit::kPissa;
  config.target_modules.names = {"c_attn", "c_proj"};
  config.task_type = ""; // else a head is trained, too
  const auto plain = zoo::from_pretrained(reference.base().folder());
  const torch::Tensor output = plain->forward(reference.input()).logits;
  const char* const foreign = "transformer.h.1.attn.c_attn.weight";
  const torch::Tensor weight = full_weight(*plain, foreign);
  const auto values = [](const torch::Tensor& matrix) {
    return at::linalg_svdvals(matrix);
  };
  const auto model = zoo::from_pretrained(reference.base().folder());
  zoo::apply_lora(*model, config);
  expect_near(model->forward(reference.input()).logits, output);
  // The largest singular values have left the weight.
  const torch::Tensor rest = full_weight(*model, foreign);
  expect_near(values(rest).narrow(0, 0, 21), values(weight).narrow(0, 3, 21));
  expect_near(
      values(weight - rest).narrow(0, 0, 3), values(weight).narrow(0, 0, 3));
  expect_error(
      [&] { const zoo::AdaptersOff off(*model); }, {"pissa", "init=default"});
  // What PEFT writes and reads: the base is decomposed again.
  const TemporaryFolder saved;
  zoo::save_lora(*model, saved / "adapter");
  EXPECT_EQ(
      read_json(saved / "adapter" / "adapter_config.json")
          .at("init_lora_weights"),
      "pissa");
  zoo::remove_lora(*model);
  expect_near(full_weight(*model, foreign), weight);
  EXPECT_FALSE(full_weight(*model, foreign).allclose(rest));
  config.r = 25;
  expect_error(
      [&] { zoo::apply_lora(*plain, config); },
      {"init=pissa", "the rank 25", "larger than 24"});
  EXPECT_FALSE(zoo::has_lora(*plain));
}

// The rule of PEFT's layers_to_transform and layers_pattern: the results are
// those of its check_target_module_exists().
TEST(LoraModel, ChoosesLayersAsPeft) {
  const std::vector<std::string> modules{
      "h.1.attn.c_attn",
      "transformer.h.1.attn.c_attn",
      "transformer.h.11.attn.c_attn",
      "model.layers.1.experts.0.c_attn",
      "model.layers.0.experts.1.c_attn",
      "model.blocks.1.c_attn",
      "c_attn",
      "encoder.block.1.layer.0.c_attn",
      "layers.1.c_attn"};
  const auto chosen = [&](std::vector<int64_t> layers,
                          std::vector<std::string> words) {
    zoo::LoraConfig config;
    config.target_modules.names = {"c_attn", "layers.1.c_attn"};
    config.layers_to_transform = std::move(layers);
    config.layers_pattern = std::move(words);
    const zoo::LoraTargets targets(config, "");
    std::vector<size_t> found;
    for (size_t i = 0; i < modules.size(); ++i) {
      if (targets.has(modules[i])) {
        found.push_back(i);
      }
    }
    return found;
  };
  using Found = std::vector<size_t>;
  EXPECT_EQ(chosen({1}, {}), (Found{1, 3, 5, 6, 7, 8}));
  EXPECT_EQ(chosen({1}, {"h"}), (Found{0, 1, 6, 8}));
  EXPECT_EQ(chosen({1, 3}, {"h", "layers"}), (Found{0, 1, 3, 6, 8}));
  EXPECT_EQ(chosen({0}, {"layer"}), (Found{6, 7, 8}));
  EXPECT_EQ(chosen({1}, {"(h|blocks)"}), (Found{0, 1, 5, 6, 8}));
  EXPECT_EQ(chosen({1}, {"h|blocks"}), (Found{6, 8}));
  EXPECT_EQ(chosen({}, {}).size(), modules.size());
}

TEST(LoraModel, RatesOfLoraPlus) {
  const auto model =
      zoo::from_pretrained(fixture("models") / "bert_classifier");
  zoo::LoraConfig config = for_queries();
  config.use_dora = true;
  config.bias = zoo::LoraBias::kLoraOnly;
  config.modules_to_save = {"pooler"};
  zoo::apply_lora(*model, config);
  const auto rules = zoo::lora_plus_rules(*model, 16);
  ASSERT_EQ(rules.size(), 2U);
  for (const auto& item : model->named_parameters()) {
    const std::string& name = item.key();
    SCOPED_TRACE(name);
    const bool is_first =
        runtime::NamePattern("rule", rules[0].pattern).matches(name);
    const bool is_second =
        runtime::NamePattern("rule", rules[1].pattern).matches(name);
    const bool trained = item.value().requires_grad();
    EXPECT_EQ(
        is_first,
        name.ends_with(".lora_B") || name.ends_with(".lora_magnitude"));
    EXPECT_EQ(is_second, trained && name.ends_with(".bias"));
  }
  EXPECT_EQ(rules[0].lr_scale, 16);
  EXPECT_FALSE(rules[0].weight_decay);
  EXPECT_EQ(rules[1].lr_scale, 16);
  EXPECT_EQ(rules[1].weight_decay, 0);
  expect_error(
      [] { zoo::lora_plus_rules(*small_bert(), 2); }, {"no LoRA adapters"});
}

TEST(LoraModel, IsClearedByAnEmptyOverride) {
  const auto read = [](const std::string& override) {
    return read_training_config(
        tests::source_dir() + "/configs/finetune_minilm_lora.json",
        {"output.folder=/nowhere/run", override});
  };
  EXPECT_TRUE(read("training.seed=1").lora);
  EXPECT_FALSE(read("model.lora=").lora);
  EXPECT_FALSE(read("model.lora=null").lora);
  expect_error([&] { read("model.lora=x"); }, {"model.lora", "an object"});
}

TEST(LoraFolder, NamesKeysThatAreNotKnown) {
  const zoo::LoraFixture reference("gpt2");
  const TemporaryFolder folder;
  auto config = read_json(reference.folder() / "adapter_config.json");
  const auto log_of = [&] {
    std::ofstream(folder / "adapter_config.json") << config;
    testing::internal::CaptureStderr();
    zoo::read_lora_config(folder.path());
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(log_of(), "");
  config["lora_magic"] = 3;
  const std::string log = log_of();
  EXPECT_NE(log.find("ignored"), std::string::npos) << log;
  EXPECT_NE(log.find("lora_magic=3"), std::string::npos) << log;
}

// What a program can set, a configuration can.
TEST(LoraModel, AllOptionsComeFromAConfiguration) {
  const auto read = [](const std::vector<std::string>& overrides) {
    auto all = overrides;
    all.push_back("output.folder=/nowhere/run");
    return read_training_config(
               tests::source_dir() + "/configs/finetune_minilm_lora.json", all)
        .lora->adapter;
  };
  const zoo::LoraConfig listed = read({});
  EXPECT_EQ(listed.target_modules.names.size(), 4u);
  // From the configuration's folder, or from the working directory.
  EXPECT_TRUE(listed.base_model.ends_with("models/minilm"))
      << listed.base_model;
  const zoo::LoraConfig config = read(
      {"model.lora.target_modules=.*attention.*\\.(query|value)",
       "model.lora.exclude_modules=.*layer\\.0\\..*",
       R"(model.lora.rank_pattern={"layer\\.1\\..*\\.query": 3})",
       R"(model.lora.alpha_pattern={"value": 7})",
       "model.lora.task_type=TOKEN_CLS",
       "model.lora.use_dora=true",
       "model.lora.base_model=elsewhere"});
  EXPECT_TRUE(config.use_dora);
  const zoo::LoraConfig second = read(
      {"model.lora.layers_to_transform=[1]",
       R"(model.lora.layers_pattern=["layer"])",
       "model.lora.init=pissa"});
  EXPECT_EQ(second.layers_to_transform, std::vector<int64_t>{1});
  EXPECT_EQ(second.layers_pattern, std::vector<std::string>{"layer"});
  EXPECT_EQ(second.init, zoo::LoraInit::kPissa);
  expect_error(
      [&] {
        read(
            {"model.lora.target_modules=all-linear",
             "model.lora.layers_to_transform=[1]"});
      },
      {"model.lora.layers_to_transform is set", "'all-linear'", "as in PEFT"});
  expect_error(
      [&] { read({R"(model.lora.layers_pattern=["h"])"}); },
      {"model.lora.layers_pattern is set", "layers_to_transform is empty"});
  expect_error(
      [&] {
        read({"model.lora.use_dora=true", "model.lora.init=random"});
      },
      {"use_dora", "init=random", "gaussian"});
  expect_error(
      [&] {
        read({"model.lora.use_dora=true", "model.lora.init=pissa"});
      },
      {"use_dora", "init=pissa", "not implemented"});
  EXPECT_TRUE(config.target_modules.names.empty());
  EXPECT_EQ(config.task_type, "TOKEN_CLS");
  EXPECT_EQ(config.base_model, "elsewhere");
  const zoo::LoraTargets targets(config, "BertForSequenceClassification");
  const std::string first = "bert.encoder.layer.0.attention.self.query";
  const std::string query = "bert.encoder.layer.1.attention.self.query";
  const std::string value = "bert.encoder.layer.2.attention.self.value";
  EXPECT_FALSE(targets.has(first));
  EXPECT_TRUE(targets.has(query));
  EXPECT_TRUE(targets.has(value));
  EXPECT_EQ(targets.rank_of(query), 3);
  EXPECT_EQ(targets.rank_of(value), 8);
  EXPECT_EQ(targets.scaling_of(query), 16.0 / 3);
  EXPECT_EQ(targets.scaling_of(value), 7.0 / 8);
  EXPECT_TRUE(
      zoo::LoraTargets(read({"model.lora.target_modules=all-linear"}), "")
          .is_all_linear());
  EXPECT_TRUE(zoo::LoraTargets(
                  read({R"(model.lora.target_modules=["all-linear"])"}), "")
                  .is_all_linear());
  // Errors name the file, or the override, and the key.
  expect_error(
      [&] { read({"model.lora.target_modules=[]"}); },
      {"override 'model.lora.target_modules=[]': model.lora.target_modules is empty; name"});
  expect_error(
      [&] { read({"model.lora.exclude_modules=x("}); },
      {"override 'model.lora.exclude_modules=x(': model.lora.exclude_modules: 'x(' is not a valid regular expression"});
  expect_error(
      [&] { read({R"(model.lora.rank_pattern={"a": 0})"}); },
      {"model.lora.rank_pattern.a is 0; expected an integer from 1 to 65536: ranks of"});
  expect_error(
      [&] {
        read({"parallel.cut=cost", "parallel.piece_of_layer=[0,1]"});
      },
      {"override 'parallel.cut=cost': parallel.cut is cost"});
}

TEST(LoraModel, SaysWhatIsWrong) {
  const auto model = small_bert();
  const auto apply = [&](const zoo::LoraConfig& config) {
    return [&model, config] { zoo::apply_lora(*model, config); };
  };
  zoo::LoraConfig config = for_queries();
  config.target_modules.names = {};
  expect_error(apply(config), {"target_modules is empty", "all-linear"});
  config.target_modules.names = {"querry"};
  expect_error(apply(config), {"'querry'", "no linear layer", "query"});
  config.target_modules.names = {"word_embeddings"};
  expect_error(
      apply(config),
      {"word_embeddings", "not a linear layer", "modules_to_save"});
  config.target_modules = {{}, "bert(.*"};
  expect_error(apply(config), {"'bert(.*'", "regular expression"});
  config = for_queries(0);
  expect_error(apply(config), {"r is 0"});
  config = for_queries();
  config.dropout = 1;
  expect_error(apply(config), {"dropout is 1"});
  // Nothing has changed so far.
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(item.value().requires_grad());
  }
  expect_error([&] { zoo::save_lora(*model, "x"); }, {"no LoRA adapters"});
  expect_error([&] { zoo::merge_lora(*model); }, {"no LoRA adapters"});
  zoo::apply_lora(*model, for_queries());
  expect_error(apply(for_queries()), {"already has adapters"});
  expect_error(
      [&] { zoo::save_pretrained(*model, "x"); },
      {"query.adapter", "save_lora()", "save_merged()"});
  const auto large = large_lazy_bert();
  zoo::apply_lora(*large, for_queries());
  expect_error(
      [&] { zoo::merge_lora(*large); }, {"not allocated", "materialize"});
}

TEST(LoraModel, WarnsAboutTargetsThatAreNotThere) {
  const auto warned = [](const std::vector<std::string>& targets) {
    zoo::LoraConfig config = for_queries();
    config.target_modules.names = targets;
    testing::internal::CaptureStderr();
    zoo::apply_lora(*small_bert(), config);
    return testing::internal::GetCapturedStderr();
  };
  const std::string log = warned({"query", "valeu"});
  EXPECT_NE(log.find("'valeu', which is no module"), std::string::npos) << log;
  EXPECT_NE(log.find("value"), std::string::npos) << log;
  EXPECT_EQ(warned({"query", "valeu"}), "") << "once";
  EXPECT_EQ(warned({"query", "value", "attention.output.dense"}), "");
}

// A language model's head multiplies by its weight itself, and may be the
// embedding: an adapter there would change nothing.
TEST(LoraModel, RefusesAdaptersOfLanguageHeads) {
  const std::pair<const char*, std::vector<std::string>> heads[] = {
      {"bert_untied", {"query", "decoder"}},
      {"chatglm", {"output_layer"}},
      {"cpm1", {"output_projection"}},
      {"cpm3_untied", {"output_projection"}},
      {"gpt2", {"c_attn", "lm_head"}}, // tied
      {"llama", {"lm_head"}},
      {"roberta", {"query", "lm_head.decoder"}}, // tied
      {"t5_v1_1", {"q", "lm_head"}}};
  for (const auto& [name, targets] : heads) {
    SCOPED_TRACE(name);
    const auto model = zoo::from_pretrained(fixture("models") / name);
    zoo::LoraConfig config;
    config.target_modules.names = targets;
    expect_error(
        [&] { zoo::apply_lora(*model, config); },
        {targets.back().c_str(), "head", "modules_to_save"});
    EXPECT_FALSE(zoo::has_lora(*model));
    for (const torch::Tensor& parameter : model->parameters()) {
      EXPECT_TRUE(parameter.requires_grad());
    }
  }
}

// As PEFT does.
TEST(LoraModel, LeavesLanguageHeadsOutOfAllLinear) {
  for (const char* name :
       {"bert_untied", "chatglm", "cpm1", "roberta_untied"}) {
    SCOPED_TRACE(name);
    const zoo::ModelFixture reference(name);
    const auto model = zoo::from_pretrained(reference.folder());
    zoo::LoraConfig config;
    config.target_modules.pattern = "all-linear";
    EXPECT_FALSE(zoo::apply_lora(*model, config).empty());
    zoo::expect_outputs(reference, model->forward(reference.input()));
  }
}

TEST(LoraFolder, SaysWhatIsWrong) {
  const zoo::LoraFixture reference("gpt2");
  const TemporaryFolder folder;
  const auto load = [&] {
    const auto model = zoo::from_pretrained(reference.base().folder());
    try {
      zoo::load_lora(*model, folder.path());
    } catch (...) {
      EXPECT_FALSE(zoo::has_lora(*model));
      EXPECT_TRUE(model->parameters().front().requires_grad());
      throw;
    }
  };
  expect_error(load, {"adapter_config.json", "does not exist"});
  const nlohmann::json good =
      read_json(reference.folder() / "adapter_config.json");
  const auto write = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json config = good;
    config[key] = value;
    std::ofstream(folder / "adapter_config.json") << config;
  };
  write("peft_type", "ADALORA");
  expect_error(load, {"'peft_type' is 'ADALORA'"});
  write("lora_bias", true);
  expect_error(load, {"'lora_bias' is true", "not implemented"});
  write("init_lora_weights", "olora");
  expect_error(load, {"'init_lora_weights'", "olora", "merge"});
  write("init_lora_weights", "pissa_niter_4");
  expect_error(load, {"'init_lora_weights'", "pissa_niter_4", "merge"});
  write("layers_to_transform", "1");
  expect_error(load, {"'layers_to_transform'", "number of a layer"});
  write("bias", "some");
  expect_error(load, {"'bias' is \"some\"", "lora_only"});
  write("r", "three");
  expect_error(load, {"'r' is \"three\"", "an integer"});
  write("target_modules", {1});
  expect_error(load, {"'target_modules'", "list of module names"});
  write("rank_pattern", {{"c_attn", "x"}});
  expect_error(load, {"rank_pattern", "c_attn"});
  write("r", 3);
  expect_error(load, {"adapter_model.safetensors", "does not exist"});
  std::filesystem::copy_file(
      reference.weights(), folder / "adapter_model.safetensors");
  load();
  write("r", 5);
  expect_error(load, {"rank_pattern", "the rank 5", "it is 3"});
  write("target_modules", {"c_attn"});
  expect_error(load, {"attn.c_proj.lora_A.weight"});
  const auto zeros = [](std::vector<int64_t> shape) {
    return tests::ExampleTensor{
        runtime::SafetensorsDtype::kF32,
        std::move(shape),
        [](int64_t, int64_t) { return 0.0; }};
  };
  write("target_modules", {"wte"});
  tests::write_examples(
      folder / "adapter_model.safetensors",
      {{"base_model.model.transformer.wte.lora_embedding_A", zeros({3, 5})},
       {"base_model.model.transformer.wte.lora_embedding_B", zeros({4, 3})}});
  expect_error(
      load,
      {"'base_model.model.transformer.wte.lora_embedding_A'",
       "the embedding 'transformer.wte'",
       "'target_modules'",
       "merge_and_unload",
       "modules_to_save"});
  std::filesystem::copy_file(
      reference.weights(),
      folder / "adapter_model.safetensors",
      std::filesystem::copy_options::overwrite_existing);
  write("target_modules", {"c_attn", "c_proj", "c_fc"});
  expect_error(load, {"lacks", "c_fc"});
}

} // namespace tessera::tasks::lora_test
