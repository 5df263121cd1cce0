// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/bert_folder.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/engine/checkpoint/tensor_io.h"
#include "tessera/zoo/hf_folder_writer.h"
#include "zoo/support.h"
#include "zoo/tensor_support.h"

#include <cstdlib>

namespace tessera {
namespace {

namespace fs = std::filesystem;

using Weights = std::map<std::string, torch::Tensor>;

Weights weights_of(const torch::nn::Module& module) {
  Weights result;
  for (const auto& item : module.named_parameters()) {
    result.emplace(item.key(), item.value().detach().clone());
  }
  return result;
}

Weights tiny_weights() {
  return weights_of(
      *load_bert_for_sequence_classification(fixture("tiny_bert")));
}

void write_weights(const fs::path& path, const Weights& weights) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : weights) {
    specs.push_back(
        {name, saved_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, specs);
  for (const auto& [name, tensor] : weights) {
    writer.write(name, raw_bytes(tensor.contiguous()));
  }
  writer.commit();
}

// A folder of the tiny BERT with other weights.
void write_folder(const fs::path& folder, const Weights& weights) {
  fs::copy_file(fixture("tiny_bert") / "config.json", folder / "config.json");
  write_weights(folder / "model.safetensors", weights);
}

void expect_equal(const Weights& a, const Weights& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(tensor.equal(b.at(name))) << name;
  }
}

std::string replaced(
    std::string text,
    const std::string& what,
    const std::string& by) {
  const auto at = text.find(what);
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

} // namespace

TEST(BertFolder, TakesNamesOfOldAndOfBareCheckpoints) {
  const Weights expected = tiny_weights();
  Weights old;
  for (const auto& [name, tensor] : expected) {
    std::string changed = replaced(name, "LayerNorm.weight", "LayerNorm.gamma");
    changed = replaced(changed, "LayerNorm.bias", "LayerNorm.beta");
    old.emplace(replaced(changed, "bert.", ""), tensor);
  }
  old.emplace("cls.predictions.bias", torch::zeros({61}));
  old.emplace("embeddings.position_ids", torch::zeros({1, 23}));
  const TemporaryFolder folder;
  write_folder(folder.path(), old);
  expect_equal(
      weights_of(*load_bert_for_sequence_classification(folder.path())),
      expected);

  // The encoder alone leaves the classifier out.
  Weights encoder;
  for (const auto& [name, tensor] : expected) {
    if (name.starts_with("bert.")) {
      encoder.emplace(name.substr(5), tensor);
    }
  }
  expect_equal(weights_of(*load_bert(folder.path())), encoder);
  expect_equal(weights_of(*load_bert(fixture("tiny_bert"))), encoder);
}

TEST(BertFolder, StartsAMissingClassifierFresh) {
  torch::manual_seed(5);
  const auto model = load_bert_for_sequence_classification(
      minilm_folder(), {"a", "b", "c", "d"});
  EXPECT_EQ(model->config().num_labels(), 4);
  const torch::Tensor head = model->named_parameters()["classifier.weight"];
  EXPECT_EQ(head.sizes(), (torch::IntArrayRef{4, 384}));
  // 1536 numbers: five sigmas of the estimate.
  EXPECT_NEAR(head.std().item<double>(), 0.02, 0.02 * 5 / std::sqrt(2 * 1536));
}

TEST(BertFolder, ConvertsHalfPrecision) {
  const Weights expected = tiny_weights();
  for (const auto dtype : {torch::kFloat16, torch::kBFloat16}) {
    Weights half;
    Weights rounded;
    for (const auto& [name, tensor] : expected) {
      half.emplace(name, tensor.to(dtype));
      rounded.emplace(name, tensor.to(dtype).to(torch::kFloat32));
    }
    const TemporaryFolder folder;
    write_folder(folder.path(), half);
    expect_equal(
        weights_of(*load_bert_for_sequence_classification(folder.path())),
        rounded);
  }
}

TEST(BertFolder, ReadsShards) {
  const Weights expected = tiny_weights();
  const TemporaryFolder folder;
  fs::copy_file(fixture("tiny_bert") / "config.json", folder / "config.json");
  Weights shards[2];
  nlohmann::json index;
  for (const auto& [name, tensor] : expected) {
    const std::size_t shard = std::hash<std::string>{}(name) % 2;
    shards[shard].emplace(name, tensor);
    index["weight_map"][name] = shard == 0 ? "a.safetensors" : "b.safetensors";
  }
  write_weights(folder / "a.safetensors", shards[0]);
  write_weights(folder / "b.safetensors", shards[1]);
  const fs::path path = folder / "model.safetensors.index.json";
  write_file_atomically(path, index.dump());
  expect_equal(
      weights_of(*load_bert_for_sequence_classification(folder.path())),
      expected);

  const auto load = [&] { load_bert(folder.path()); };
  nlohmann::json bad = index;
  bad["weight_map"]["classifier.bias"] = "c.safetensors";
  write_file_atomically(path, bad.dump());
  expect_error(load, {"c.safetensors"});
  bad["weight_map"]["classifier.bias"] = "../a.safetensors";
  write_file_atomically(path, bad.dump());
  expect_error(load, {"classifier.bias", "../a.safetensors"});
  bad = index;
  bad["weight_map"]["more"] = "a.safetensors";
  write_file_atomically(path, bad.dump());
  expect_error(load, {"a.safetensors", "more"});
  write_file_atomically(path, "{}");
  expect_error(load, {"names no tensors"});
}

TEST(BertFolder, NamesEveryTensorThatDoesNotFit) {
  Weights weights = tiny_weights();
  weights.erase("bert.pooler.dense.bias");
  weights.erase("classifier.bias");
  weights.emplace("bert.encoder.layer.3.output.dense.bias", torch::zeros({30}));
  weights.at("bert.pooler.dense.weight") = torch::zeros({31});
  weights.emplace("bert.embeddings.LayerNorm.beta", torch::zeros({30}));
  const TemporaryFolder folder;
  write_folder(folder.path(), weights);
  expect_error(
      [&] { load_bert_for_sequence_classification(folder.path()); },
      {"missing: 'bert.pooler.dense.bias'",
       "unexpected: 'bert.encoder.layer.3.output.dense.bias'",
       "shape of 'bert.pooler.dense.weight': [31]",
       "two tensors for 'bert.embeddings.LayerNorm.bias'"});
  expect_error(
      [] {
        load_bert_for_sequence_classification(
            fixture("tiny_bert"), {"a", "b", "c"});
      },
      {"shape of 'classifier.weight': [5, 30]", "[3, 30]"});
}

TEST(BertFolder, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  expect_error([&] { load_bert(folder.path()); }, {"config.json"});
  fs::copy_file(fixture("tiny_bert") / "config.json", folder / "config.json");
  expect_error([&] { load_bert(folder.path()); }, {"safetensors"});
}

// With TESSERA_EXPORT_TO set, the folder and its logits stay there for
// tools/fixtures/check_export.py.
TEST(BertFolder, RoundTripKeepsEveryByte) {
  const TemporaryFolder temporary;
  const char* kept = std::getenv("TESSERA_EXPORT_TO");
  const fs::path root = kept != nullptr ? fs::path(kept) : temporary.path();
  torch::manual_seed(11);
  auto model = load_bert_for_sequence_classification(
      minilm_folder(), {"admin", "games", "science"});
  model->eval();
  save_bert(model, root / "first", minilm_folder());
  auto again = load_bert_for_sequence_classification(root / "first");
  again->eval();
  expect_equal(weights_of(*again), weights_of(*model));
  save_bert(again, root / "second", root / "first");

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
        read_text_file(root / "second" / name),
        read_text_file(root / "first" / name))
        << name;
  }
  const auto reference = SafetensorsFile::open(fixture("minilm.safetensors"));
  const torch::NoGradGuard no_grad;
  const torch::Tensor logits = again->forward(
      {.input_ids = fixture_tensor(reference, "input_ids"),
       .attention_mask = fixture_tensor(reference, "attention_mask"),
       .token_type_ids = fixture_tensor(reference, "token_type_ids")});
  write_weights(root / "logits.safetensors", {{"logits", logits}});
}

TEST(HfFolderWriter, LeavesTheOldFolderUntilCommit) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "model";
  auto model = load_bert_for_sequence_classification(fixture("tiny_bert"));
  save_bert(model, folder, {});
  const std::string before = read_text_file(folder / "model.safetensors");
  {
    const torch::NoGradGuard no_grad;
    model->named_parameters()["classifier.bias"].fill_(3);
  }
  {
    HfFolderWriter writer(folder, model->config().to_json(), {});
    expect_error([&] { writer.commit(); }, {"model.safetensors"});
    EXPECT_EQ(read_text_file(folder / "model.safetensors"), before);
  }
  EXPECT_EQ(names_in(temporary.path()), std::set<std::string>{"model"});
  save_bert(model, folder, {});
  EXPECT_NE(read_text_file(folder / "model.safetensors"), before);
  EXPECT_EQ(names_in(temporary.path()), std::set<std::string>{"model"});
}

TEST(HfFolderWriter, ReplacesOnlyFoldersOfItsOwnKind) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "model";
  fs::create_directory(folder);
  write_file_atomically(folder / "thesis.tex", "years of work");
  const auto model =
      load_bert_for_sequence_classification(fixture("tiny_bert"));
  expect_error(
      [&] { save_bert(model, folder, {}); }, {"thesis.tex", "would be lost"});
  expect_error(
      [&] { save_bert(model, folder / "thesis.tex", {}); }, {"not a folder"});
  EXPECT_EQ(read_text_file(folder / "thesis.tex"), "years of work");

  // Parents are made, a trailing slash and a link do no harm.
  save_bert(model, temporary / "new/deep/model/", {});
  fs::create_directory_symlink("new/deep/model", temporary / "link");
  save_bert(model, temporary / "link", {});
  EXPECT_TRUE(fs::is_symlink(temporary / "link"));
  EXPECT_TRUE(fs::exists(temporary / "new/deep/model/config.json"));
}

} // namespace tessera
