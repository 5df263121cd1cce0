// SPDX-License-Identifier: Apache-2.0
// Which model of a family classifies texts.
#include "tessera/tasks/text_classifier.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/zoo/models/registry.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

namespace tessera::tasks::text_classifier_test {

namespace {

zoo::MakeModel as_bert(const std::string& architecture) {
  return [architecture](
             const zoo::ConfigFields& /*fields*/,
             const zoo::LayerContext& context,
             nlohmann::json json) {
    json["model_type"] = "bert";
    return zoo::from_config(
        json, {.architecture = architecture, .context = context});
  };
}

} // namespace

TEST(TextClassifier, IsFoundByItsHeadWhateverItsName) {
  zoo::register_model(
      {"misnamed",
       {{"MisnamedForSequenceClassification", as_bert("BertForMaskedLM")},
        {"MisnamedTexts", as_bert("BertForSequenceClassification")}}});
  const TemporaryFolder folder;
  const std::filesystem::path from = fixture("models") / "bert_classifier";
  nlohmann::json config = read_json(from / "config.json");
  config["model_type"] = "misnamed";
  config["architectures"] = {"MisnamedTexts"};
  std::filesystem::copy(from, folder.path() / "model");
  std::ofstream(folder.path() / "model" / "config.json") << config;
  torch::manual_seed(1);
  zoo::FromPretrainedOptions named;
  named.architecture = "MisnamedTexts";
  named.lazy = true;
  zoo::from_pretrained(folder.path() / "model", named);
  const at::Tensor expected = torch::rand({2});
  torch::manual_seed(1);
  const auto model = lazy_text_classifier(folder.path() / "model");
  EXPECT_TRUE(predicts_for_examples(model->head()->labels()));
  // What is constructed to be asked draws nothing.
  EXPECT_TRUE(torch::rand({2}).equal(expected));
}

TEST(TextClassifier, ImagesAreNoTexts) {
  expect_error(
      [] { lazy_text_classifier(fixture("models") / "vit_classifier"); },
      {"vit has no classifier of texts", "ViTForImageClassification"});
}

} // namespace tessera::tasks::text_classifier_test
