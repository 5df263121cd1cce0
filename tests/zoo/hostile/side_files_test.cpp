// SPDX-License-Identifier: Apache-2.0
// What lies beside a model: adapters, sentence-transformers' modules, what is
// said of generation, and files of tokens.

#include "support/expect_error.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/data/token_file.h"
#include "tessera/zoo/generation/generate_options.h"
#include "tessera/zoo/models/sentence_embedding.h"
#include "zoo/hostile/folder.h"
#include "zoo/hostile/values.h"

namespace tessera::zoo::side_files_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// An adapter's folder, put on the model that it was made for.
Hostile hostile_adapter(const std::string& name) {
  const fs::path folder = fixture("lora") / name;
  const auto base = read_json(folder / "adapter_config.json")
                        .at("base_model_name_or_path")
                        .get<std::string>();
  const std::shared_ptr<Model> model =
      from_pretrained(ModelFixture(base).folder());
  return Hostile(folder, [model](const fs::path& path) {
    load_lora(*model, path);
    remove_lora(*model);
  });
}

json modules() {
  return {
      {{"path", ""}, {"type", "sentence_transformers.models.Transformer"}},
      {{"path", "1_Pooling"}, {"type", "sentence_transformers.models.Pooling"}},
      {{"path", "2_Normalize"},
       {"type", "sentence_transformers.models.Normalize"}}};
}

json pooling() {
  return {
      {"word_embedding_dimension", 24},
      {"pooling_mode", {"cls", "mean"}},
      {"include_prompt", true}};
}

/// The model with its modules.
class HostileSentences : public HostileFolders {
 protected:
  HostileSentences()
      : hostile_(ModelFixture("bert").folder(), [](const fs::path& folder) {
          SentenceEmbedding::from_folder(folder, 24);
        }) {
    fs::create_directory(hostile_.path("1_Pooling"));
    write_text(hostile_.path("modules.json"), modules().dump());
    write_text(hostile_.path("1_Pooling/config.json"), pooling().dump());
    hostile_.load("as it is");
    EXPECT_EQ(hostile_.loaded(), 1);
  }

  Hostile hostile_;
};

} // namespace

TEST_F(HostileFolders, NameFieldsOfAdapters) {
  Hostile hostile = hostile_adapter("bert");
  hostile.load("as it is");
  EXPECT_EQ(hostile.loaded(), 1);
  const json config = json::parse(hostile.original("adapter_config.json"));
  for_each_change(
      config,
      hostile_values(),
      [&](const std::string& key, const std::string& text) {
        write_text(hostile.path("adapter_config.json"), text);
        hostile.load(text, key);
      });
  Numbers numbers(1);
  for (int i = 0; i < 200; ++i) {
    const std::string text = damaged(config.dump(2), numbers);
    write_text(hostile.path("adapter_config.json"), text);
    hostile.load(text);
  }
  EXPECT_GT(hostile.refused(), 500);
  EXPECT_GT(hostile.loaded(), 100);
}

TEST_F(HostileFolders, HaveWeightsOfAdaptersThatLie) {
  Hostile hostile = hostile_adapter("llama");
  const std::string right = hostile.original("adapter_model.safetensors");
  const size_t header = 8 + static_cast<unsigned char>(right[0]) +
                        256 * static_cast<unsigned char>(right[1]);
  Numbers numbers(2);
  for (int i = 0; i < 500; ++i) {
    write_text(
        hostile.path("adapter_model.safetensors"),
        damaged(right.substr(0, header), numbers) + right.substr(header));
    hostile.load("damage " + std::to_string(i));
  }
  for (const size_t size : {size_t{0}, size_t{7}, size_t{8}, header}) {
    write_text(
        hostile.path("adapter_model.safetensors"), right.substr(0, size));
    hostile.load("cut to " + std::to_string(size));
  }
  EXPECT_GT(hostile.refused(), 400);
}

TEST_F(HostileSentences, NameFieldsOfModules) {
  for_each_change(
      modules(),
      hostile_values(),
      [&](const std::string& key, const std::string& text) {
        write_text(hostile_.path("modules.json"), text);
        hostile_.load(text, key);
      });
  EXPECT_GT(hostile_.refused(), 200);
}

TEST_F(HostileSentences, NameFieldsOfPoolings) {
  for_each_change(
      pooling(),
      hostile_values(),
      [&](const std::string& key, const std::string& text) {
        write_text(hostile_.path("1_Pooling/config.json"), text);
        hostile_.load(text, key);
      });
  EXPECT_GT(hostile_.refused(), 100);
}

TEST_F(HostileFolders, NameFieldsOfGeneration) {
  Hostile hostile(ModelFixture("gpt2").folder(), [](const fs::path& folder) {
    generate_options(folder);
  });
  const json right = {
      {"eos_token_id", {1, 2}},
      {"pad_token_id", 0},
      {"max_new_tokens", 10},
      {"min_new_tokens", 1},
      {"repetition_penalty", 1.1},
      {"no_repeat_ngram_size", 3},
      {"do_sample", true},
      {"temperature", 0.7},
      {"top_k", 5},
      {"top_p", 0.9},
      {"min_p", 0.1}};
  write_text(hostile.path("generation_config.json"), right.dump());
  hostile.load("as it is");
  EXPECT_EQ(hostile.loaded(), 1);
  for_each_change(
      right,
      hostile_values(),
      [&](const std::string& key, const std::string& text) {
        write_text(hostile.path("generation_config.json"), text);
        hostile.load(text, key);
      });
  EXPECT_GT(hostile.refused(), 200);
}

TEST_F(HostileFolders, HaveTokensThatAreCut) {
  const TemporaryFolder folder;
  const fs::path file = folder / "tokens.bin";
  const auto open = [&](TokenType type) {
    return [&file, type] { TokenFile(file, type); };
  };
  expect_error(open(TokenType::kUint16), {file.c_str()});
  write_text(file, "");
  expect_error(open(TokenType::kUint16), {file.c_str(), "0 bytes"});
  write_text(file, "abc");
  expect_error(
      open(TokenType::kUint16), {file.c_str(), "3 bytes", "data.token_type"});
  write_text(file, "abcdef");
  expect_error(open(TokenType::kInt32), {file.c_str(), "6 bytes"});
  const TokenFile tokens(file, TokenType::kUint16);
  for (const auto& [begin, count] :
       {std::pair<int64_t, int64_t>{0, 4},
        {-1, 1},
        {2, 2},
        {0, -1},
        {INT64_MAX, INT64_MAX},
        {1, INT64_MAX}}) {
    expect_error([&] { tokens.read(begin, count); }, {file.c_str(), "has 3"});
  }
  expect_error(
      [&] { TokenFile(folder.path(), TokenType::kInt32); },
      {folder.path().c_str()});
}

} // namespace tessera::zoo::side_files_test
