// SPDX-License-Identifier: Apache-2.0
// A real model's folder: from text to hidden states, a fresh classifier, and
// the folder that is written again.
#include "support/temporary_folder.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/inputs/tensor_files.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/support.h"
#include "zoo/tensor_support.h"

#include <cmath>
#include <cstdlib>
#include <set>

namespace tessera::tasks::minilm_test {
namespace {

namespace fs = std::filesystem;

zoo::ModelInput input_of(const runtime::SafetensorsFile& file) {
  zoo::ModelInput input;
  input.input_ids = fixture_tensor(file, "input_ids");
  input.attention_mask = fixture_tensor(file, "attention_mask");
  input.token_type_ids = fixture_tensor(file, "token_type_ids");
  return input;
}

torch::Tensor matrix(const std::vector<int64_t>& flat, int64_t rows) {
  return torch::tensor(flat, torch::kInt64).view({rows, -1});
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

std::shared_ptr<zoo::Model> classifier(
    const fs::path& folder,
    const std::vector<std::string>& classes = {}) {
  const auto model = lazy_text_classifier(
      folder,
      class_fields(
          classes, classes.empty() ? "" : "single_label_classification"));
  materialize(*model);
  return model;
}

} // namespace

TEST(MiniLm, EqualsTransformersFromTheTextOn) {
  const auto reference =
      runtime::SafetensorsFile::open(fixture("minilm.safetensors"));
  const auto tokenizer = text::Tokenizer::from_folder(minilm_folder());
  std::vector<text::Encoding> rows;
  for (const auto& texts :
       nlohmann::json::parse(reference.metadata().at("texts"))) {
    const auto first = texts.at(0).get<std::string>();
    rows.push_back(
        texts.size() == 1
            ? tokenizer.encode(first, {.truncation = {.max_length = 16}})
            : tokenizer.encode_pair(
                  first,
                  texts.at(1).get<std::string>(),
                  {.truncation = {.max_length = 16}}));
  }
  const text::EncodedBatch batch = tokenizer.pad(rows, {.length = 16});
  zoo::ModelInput input;
  input.input_ids = matrix(batch.input_ids, batch.rows);
  input.attention_mask = matrix(batch.attention_mask, batch.rows);
  input.token_type_ids = matrix(batch.token_type_ids, batch.rows);
  const zoo::ModelInput expected = input_of(reference);
  ASSERT_TRUE(input.input_ids.equal(expected.input_ids));
  ASSERT_TRUE(input.attention_mask.equal(expected.attention_mask));
  ASSERT_TRUE(input.token_type_ids.equal(expected.token_type_ids));

  const auto model = zoo::from_pretrained(minilm_folder());
  const torch::NoGradGuard no_grad;
  input.hidden_states = true;
  const zoo::ModelOutput output = model->forward(input);
  ASSERT_EQ(output.hidden_states.size(), 7);
  for (const int layer : {1, 4}) {
    expect_near(
        output.hidden_states[static_cast<size_t>(layer)],
        fixture_tensor(reference, "hidden_states." + std::to_string(layer)));
  }
  expect_near(
      output.last_hidden_state, fixture_tensor(reference, "last_hidden"));
  expect_near(output.pooler_output, fixture_tensor(reference, "pooled"));
}

TEST(MiniLm, StartsAMissingClassifierFresh) {
  torch::manual_seed(5);
  const auto model = classifier(minilm_folder(), {"a", "b", "c", "d"});
  EXPECT_EQ(classes_of(*model), (std::vector<std::string>{"a", "b", "c", "d"}));
  const torch::Tensor head = model->named_parameters()["classifier.weight"];
  EXPECT_EQ(head.sizes(), (torch::IntArrayRef{4, 384}));
  // 1536 numbers: five sigmas of the estimate.
  EXPECT_NEAR(head.std().item<double>(), 0.02, 0.02 * 5 / std::sqrt(2 * 1536));
}

// With TESSERA_EXPORT_TO set, the folder and its logits stay there for
// tests/fixture_makers/check_export.py.
TEST(MiniLm, RoundTripKeepsEveryByte) {
  const TemporaryFolder temporary;
  const char* kept = std::getenv("TESSERA_EXPORT_TO");
  const fs::path root = kept != nullptr ? fs::path(kept) : temporary.path();
  torch::manual_seed(11);
  const auto model = classifier(minilm_folder(), {"admin", "games", "science"});
  zoo::save_pretrained(*model, root / "first", minilm_folder());
  const auto again = classifier(root / "first");
  zoo::save_pretrained(*again, root / "second", root / "first");

  EXPECT_EQ(
      names_in(root / "first"),
      (std::set<std::string>{
          "config.json",
          "model.safetensors",
          "special_tokens_map.json",
          "tokenizer.json",
          "tokenizer_config.json",
          "vocab.txt"}));
  ASSERT_EQ(names_in(root / "second"), names_in(root / "first"));
  for (const std::string& name : names_in(root / "first")) {
    EXPECT_EQ(
        runtime::read_text_file(root / "second" / name),
        runtime::read_text_file(root / "first" / name))
        << name;
  }
  const auto reference =
      runtime::SafetensorsFile::open(fixture("minilm.safetensors"));
  const torch::NoGradGuard no_grad;
  zoo::write_named_tensors(
      root / "logits.safetensors",
      {{"logits", again->forward(input_of(reference)).logits}});
}

} // namespace tessera::tasks::minilm_test
