// SPDX-License-Identifier: Apache-2.0
// Folders with weights under other versions' names, with too few weights and
// with too many.
#include "support/expect_error.h"
#include "tessera/zoo/models/registry.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

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
