// SPDX-License-Identifier: Apache-2.0
// Folders with weights under other versions' names, with too few weights and
// with too many.
#include "support/expect_error.h"
#include "tessera/zoo/models/registry.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace tessera::zoo::folder_weights_test {

namespace {

using Change = std::function<void(NamedTensors&)>;

void replace_all(NamedTensors& tensors, const char* from, const char* to) {
  NamedTensors renamed;
  for (const auto& [name, tensor] : tensors) {
    std::string now = name;
    if (const size_t at = name.find(from); at != std::string::npos) {
      now.replace(at, std::string(from).size(), to);
    }
    renamed.emplace(now, tensor);
  }
  tensors = std::move(renamed);
}

/// A fixture's folder with other weights.
class ChangedFolder {
 public:
  ChangedFolder(const std::string& name, const Change& change)
      : reference_(name) {
    write_changed(reference_.folder(), folder_.path(), change);
  }

  const ModelFixture& reference() const {
    return reference_;
  }
  std::shared_ptr<Model> load(const FromPretrainedOptions& options = {}) const {
    return from_pretrained(folder_.path(), options);
  }

 private:
  ModelFixture reference_;
  TemporaryFolder folder_;
};

torch::Tensor logits_of(
    const std::filesystem::path& folder,
    const nlohmann::json& config,
    const ModelInput& input) {
  return from_pretrained(folder, {.config = config})->forward(input).logits;
}

} // namespace

// Fixtures have the names of transformers 4; transformers 5 writes others.
TEST(FolderWeights, MayHaveTheNamesOfAnotherVersion) {
  const ChangedFolder folder("mae", [](NamedTensors& tensors) {
    ASSERT_TRUE(
        tensors.contains("decoder.decoder_layers.0.layernorm_before.weight"));
    replace_all(
        tensors, "decoder.decoder_layers.", "decoder.decoder_encoder.layer.");
  });
  expect_outputs(
      folder.reference(), folder.load()->forward(folder.reference().input()));
}

TEST(FolderWeights, MustHaveAllOfAModel) {
  const ChangedFolder folder("llama", [](NamedTensors& tensors) {
    tensors.erase("model.layers.1.mlp.up_proj.weight");
  });
  // By the name that it would have in the file.
  expect_error(
      [&] { folder.load(); }, {"missing: 'model.layers.1.mlp.up_proj.weight'"});
}

TEST(FolderWeights, MustHaveTheHeadOfTheirArchitecture) {
  const ChangedFolder folder("bert_classifier", [](NamedTensors& tensors) {
    tensors.erase("classifier.weight");
    tensors.erase("classifier.bias");
  });
  expect_error([&] { folder.load(); }, {"missing: 'classifier.weight'"});
  const auto fresh = folder.load({.fresh_heads = true});
  EXPECT_TRUE(fresh->named_parameters().contains("classifier.weight"));
}

namespace {

/// The fixture with names for its classes; "" leaves them out.
class NamedClasses {
 public:
  explicit NamedClasses(const std::vector<std::string>& names) {
    std::filesystem::copy(reference_.folder(), folder_.path() / "model");
    auto config = read_json(reference_.folder() / "config.json");
    config.update(class_name_fields(names));
    std::ofstream(folder_.path() / "model" / "config.json") << config;
  }

  std::shared_ptr<Model> load(
      const std::vector<std::string>& wanted,
      ClassOrder order = ClassOrder::kOfCheckpoint) const {
    FromPretrainedOptions options;
    options.config = class_name_fields(wanted);
    options.fresh_heads = true;
    options.class_order = order;
    torch::manual_seed(3);
    return from_pretrained(folder_.path() / "model", options);
  }

  bool has_trained_head(const Model& model) const {
    const auto trained = from_pretrained(reference_.folder());
    return model.named_parameters()["classifier.weight"].equal(
        trained->named_parameters()["classifier.weight"]);
  }

 private:
  ModelFixture reference_{"bert_classifier"};
  TemporaryFolder folder_;
};

using Names = std::vector<std::string>;

} // namespace

TEST(FolderWeights, OfAHeadKeepTheNamesOfTheirClasses) {
  const NamedClasses folder({"pos", "neg", "none", "both"});
  const auto model = folder.load({"both", "neg", "none", "pos"});
  EXPECT_TRUE(folder.has_trained_head(*model));
  EXPECT_EQ(
      class_names_in(model->config()), (Names{"pos", "neg", "none", "both"}));
  EXPECT_EQ(model->config().at("label2id").at("pos"), 0);
  // The data's own spelling, in the order of the head.
  EXPECT_EQ(
      class_names_in(folder.load({"BOTH", "NEG", "NONE", "POS"})->config()),
      (Names{"POS", "NEG", "NONE", "BOTH"}));
  // Ids stand for the classes of these ids, whose names are kept, and said.
  testing::internal::CaptureStderr();
  const auto by_id = folder.load({"0", "1", "2", "3"});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(folder.has_trained_head(*by_id));
  EXPECT_EQ(
      class_names_in(by_id->config()), (Names{"pos", "neg", "none", "both"}));
  EXPECT_NE(log.find("whose names are kept"), std::string::npos) << log;
}

TEST(FolderWeights, OfAHeadForOtherClassesAreMadeNewAndSaidSo) {
  const auto loaded = [](const NamedClasses& folder,
                         const Names& wanted,
                         ClassOrder order,
                         bool is_trained) {
    testing::internal::CaptureStderr();
    const auto model = folder.load(wanted, order);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(folder.has_trained_head(*model), is_trained) << log;
    EXPECT_EQ(
        log.find("newly initialized, because it was trained for the classes") ==
            std::string::npos,
        is_trained)
        << log;
    EXPECT_EQ(class_names_in(model->config()), wanted);
    return log;
  };
  const NamedClasses folder({"pos", "neg", "none", "both"});
  const std::string log = loaded(
      folder, {"ant", "bee", "cat", "dog"}, ClassOrder::kOfCheckpoint, false);
  EXPECT_NE(log.find("\"pos\""), std::string::npos) << log;
  EXPECT_NE(log.find("\"bee\""), std::string::npos) << log;
  EXPECT_NE(log.find("classifier.weight"), std::string::npos) << log;
  // The order is given: it says what the ids in the data mean.
  loaded(folder, {"both", "neg", "none", "pos"}, ClassOrder::kAsGiven, false);
  loaded(folder, {"pos", "neg", "none", "both"}, ClassOrder::kAsGiven, true);
  // Nothing says which outputs of an unnamed head texts belong to.
  const NamedClasses unnamed({"LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"});
  loaded(
      unnamed,
      {"both", "neg", "none", "pos"},
      ClassOrder::kOfCheckpoint,
      false);
  loaded(unnamed, {"both", "neg", "none", "pos"}, ClassOrder::kAsGiven, true);
}

TEST(FolderWeights, OfAHeadAreAllThereOrNone) {
  const Change change = [](NamedTensors& tensors) {
    tensors.erase("decoder.decoder_layers.1.output.dense.bias");
  };
  expect_error(
      [&] { ChangedFolder("mae", change).load(); },
      {"missing: 'decoder.decoder_layers.1.output.dense.bias'"});
  // A head that is made new, for another architecture than the folder's.
  const ChangedFolder some("bert", [](NamedTensors& tensors) {
    tensors.erase("cls.predictions.transform.dense.bias");
  });
  expect_error(
      [&] { some.load({.architecture = "BertForPreTraining"}); },
      {"missing: 'cls.predictions.transform.dense.bias'"});
  const ChangedFolder none("bert", [](NamedTensors& tensors) {
    std::erase_if(tensors, [](const auto& item) {
      return item.first.starts_with("cls.");
    });
  });
  EXPECT_NO_THROW(none.load({.architecture = "BertForPreTraining"}));
}

TEST(FolderWeights, AreRefusedIfTheyAreUnexpectedUnlessNotStrict) {
  const ChangedFolder folder("mae", [](NamedTensors& tensors) {
    tensors.emplace("decoder.surplus.weight", torch::ones({2}));
    tensors.emplace("vit.surplus", torch::ones({2}));
  });
  expect_error(
      [&] { folder.load(); },
      {"unexpected: 'decoder.surplus.weight'", "unexpected: 'vit.surplus'"});
  expect_outputs(
      folder.reference(),
      folder.load({.strict = false})->forward(folder.reference().input()));
}

// In transformers 4: all of a head's features.
TEST(FolderWeights, RotateAllFeaturesOfGptjWithoutADimension) {
  const ModelFixture reference("gptj");
  const nlohmann::json config = read_json(reference.folder() / "config.json");
  const int64_t head =
      config["n_embd"].get<int64_t>() / config["n_head"].get<int64_t>();
  ASSERT_NE(config["rotary_dim"], head);
  const ModelInput input = reference.input();
  const auto all = logits_of(reference.folder(), {{"rotary_dim", head}}, input);
  EXPECT_TRUE(logits_of(reference.folder(), {{"rotary_dim", nullptr}}, input)
                  .equal(all));
  EXPECT_FALSE(logits_of(reference.folder(), nlohmann::json::object(), input)
                   .allclose(all));
}

// The message lists the sizes alone.
TEST(FolderWeights, NameTheFieldsThatMatter) {
  nlohmann::json config =
      read_json(ModelFixture("qwen2_moe").folder() / "config.json");
  config["num_experts_per_tok"] = 99;
  try {
    from_config(config);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("num_experts_per_tok 99"), std::string::npos)
        << message;
    for (const char* other : {"not given", "rms_norm_eps", "hidden_act"}) {
      EXPECT_EQ(message.find(other), std::string::npos) << message;
    }
  }
}

} // namespace tessera::zoo::folder_weights_test
