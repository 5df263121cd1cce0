// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/hf_folder_writer.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "zoo/support.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>
#include <string>

namespace tessera::zoo::hf_folder_writer_test {
namespace {

namespace fs = std::filesystem;

void save(const fs::path& folder, const std::string& weights) {
  HfFolderWriter writer(folder, {{"model_type", "any"}}, {});
  runtime::write_file_atomically(writer.weights_path(), weights);
  writer.commit();
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

} // namespace

TEST(HfFolderWriter, LeavesTheOldFolderUntilCommit) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "model";
  save(folder, "before");
  {
    HfFolderWriter writer(folder, {{"model_type", "other"}}, {});
    expect_error([&] { writer.commit(); }, {"model.safetensors"});
    EXPECT_EQ(runtime::read_text_file(folder / "model.safetensors"), "before");
  }
  EXPECT_EQ(names_in(temporary.path()), std::set<std::string>{"model"});
  save(folder, "after");
  EXPECT_EQ(runtime::read_text_file(folder / "model.safetensors"), "after");
  EXPECT_EQ(names_in(temporary.path()), std::set<std::string>{"model"});
}

TEST(HfFolderWriter, KeepsWhatGoesWithTheModel) {
  const TemporaryFolder temporary;
  const fs::path from = temporary / "from";
  fs::create_directories(from / "additional_chat_templates");
  for (const char* name :
       {"sentencepiece.bpe.model",
        "qwen.tiktoken",
        "processor_config.json",
        "tokenization_chatglm.py",
        "additional_chat_templates/short.jinja",
        "README.md",
        "training.py",
        "pytorch_model.bin"}) {
    runtime::write_file_atomically(from / name, name);
  }
  const fs::path to = temporary / "to";
  for (int time = 0; time < 2; ++time) { // its own folder is replaced
    HfFolderWriter writer(to, {{"model_type", "any"}}, from);
    runtime::write_file_atomically(writer.weights_path(), "weights");
    writer.commit();
  }
  EXPECT_EQ(
      names_in(to),
      (std::set<std::string>{
          "additional_chat_templates",
          "config.json",
          "model.safetensors",
          "processor_config.json",
          "qwen.tiktoken",
          "sentencepiece.bpe.model",
          "tokenization_chatglm.py"}));
  EXPECT_EQ(
      runtime::read_text_file(to / "additional_chat_templates/short.jinja"),
      "additional_chat_templates/short.jinja");
}

// A copy beside another model, or none, is read as what it was.
TEST(HfFolderWriter, CopiesOfTokenizersStayWhatTheyAre) {
  const TemporaryFolder temporary;
  const auto fixtures = fixture("tokenizer_classes");
  const fs::path roberta = temporary / "roberta";
  fs::create_directory(roberta);
  for (const char* name : {"vocab.json", "merges.txt"}) {
    fs::copy(fixtures / name, roberta / name);
  }
  runtime::write_file_atomically(
      roberta / "config.json", R"({"model_type": "roberta"})");
  const fs::path bert = temporary / "bert";
  fs::create_directory(bert);
  fs::copy(fixtures / "bert.json", bert / "tokenizer.json");
  const fs::path t5 = temporary / "t5";
  fs::create_directory(t5);
  fs::copy(fixtures / "t5.model", t5 / "spiece.model");
  runtime::write_file_atomically(t5 / "config.json", R"({"model_type": "t5"})");
  const fs::path to = temporary / "to";
  const std::string text = "Hello <mask> wOrld";
  for (const fs::path& from :
       {roberta,
        bert,
        t5,
        fixtures / "llama.model",
        fixtures / "fairseq.model",
        fixtures / "bert.json"}) {
    for (const char* model : {"", "bert", "xlm-roberta", "t5", "llama"}) {
      copy_tokenizer(from, to);
      runtime::write_file_atomically(
          to / "config.json", nlohmann::json{{"model_type", model}}.dump());
      EXPECT_EQ(
          text::Tokenizer::from_folder(to).encode(text).ids(),
          text::Tokenizer::from_path(from).encode(text).ids())
          << from << " beside " << model;
    }
  }
}

TEST(HfFolderWriter, ReplacesOnlyFoldersOfItsOwnKind) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "model";
  fs::create_directory(folder);
  runtime::write_file_atomically(folder / "thesis.tex", "years of work");
  expect_error([&] { save(folder, "x"); }, {"thesis.tex", "would be lost"});
  expect_error([&] { save(folder / "thesis.tex", "x"); }, {"not a folder"});
  EXPECT_EQ(runtime::read_text_file(folder / "thesis.tex"), "years of work");

  // Parents are made, a trailing slash and a link do no harm.
  save(temporary / "new/deep/model/", "x");
  fs::create_directory_symlink("new/deep/model", temporary / "link");
  save(temporary / "link", "y");
  EXPECT_TRUE(fs::is_symlink(temporary / "link"));
  EXPECT_EQ(
      runtime::read_text_file(temporary / "new/deep/model/model.safetensors"),
      "y");
}

} // namespace tessera::zoo::hf_folder_writer_test
