// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/hf_folder_writer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace tessera::zoo {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTokenizerFiles[] = {
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates"}; // a folder

constexpr std::string_view kOtherKeptFiles[] = {
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json"};

/// File names of SentencePiece models and tiktoken tables vary.
constexpr std::string_view kTokenizerEndings[] = {".model", ".tiktoken"};

/// Code referred to by `auto_map` in config.json and tokenizer_config.json.
constexpr std::string_view kCode[] = {
    "configuration_",
    "modeling_",
    "processing_",
    "tokenization_"};

bool is_of_tokenizer(std::string_view name) {
  const auto ends = [name](std::string_view end) {
    return name.ends_with(end);
  };
  return std::find(
             std::begin(kTokenizerFiles), std::end(kTokenizerFiles), name) !=
             std::end(kTokenizerFiles) ||
         std::any_of(
             std::begin(kTokenizerEndings), std::end(kTokenizerEndings), ends);
}

/// Whether a file is copied with the model, since training does not change it.
bool is_kept(std::string_view name) {
  const auto begins = [name](std::string_view start) {
    return name.starts_with(start);
  };
  return is_of_tokenizer(name) ||
         std::find(
             std::begin(kOtherKeptFiles), std::end(kOtherKeptFiles), name) !=
             std::end(kOtherKeptFiles) ||
         (name.ends_with(".py") &&
          std::any_of(std::begin(kCode), std::end(kCode), begins));
}

/// Files that we or transformers write.
bool is_own(std::string_view name) {
  return is_kept(name) || name == "config.json" ||
         name == "model.safetensors" ||
         name == "model.safetensors.index.json" ||
         (name.starts_with("model-") && name.ends_with(".safetensors"));
}

void copy_into(const fs::path& file, const fs::path& folder) {
  if (fs::is_regular_file(file)) {
    runtime::write_file_atomically(
        folder / file.filename(), runtime::read_text_file(file));
  }
}

/// Copies the entries of a folder that `is_wanted` holds for.
void copy_entries(
    const fs::path& from,
    const fs::path& to,
    bool (*is_wanted)(std::string_view name)) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(from, code)) {
    const std::string name = entry.path().filename().string();
    if (!is_wanted(name)) {
      continue;
    }
    if (entry.is_directory()) {
      fs::create_directory(to / name);
      for (const auto& inner : fs::directory_iterator(entry.path())) {
        copy_into(inner.path(), to / name);
      }
    } else {
      copy_into(entry.path(), to);
    }
  }
}

} // namespace

HfFolderWriter::HfFolderWriter(
    const fs::path& folder,
    const nlohmann::json& config,
    const fs::path& tokenizer_folder)
    : folder_(folder, is_own) {
  runtime::write_file_atomically(
      folder_.temporary() / "config.json", config.dump(2) + "\n");
  if (tokenizer_folder.empty()) {
    return;
  }
  copy_entries(tokenizer_folder, folder_.temporary(), is_kept);
}

fs::path HfFolderWriter::weights_path() const {
  return folder_.temporary() / "model.safetensors";
}

void HfFolderWriter::commit() {
  TESSERA_CHECK(
      fs::exists(weights_path()) ||
          fs::exists(weights_path().string() + ".index.json"),
      "{}: model.safetensors has not been written; write the weights before commit()",
      folder_.path());
  folder_.commit();
}

bool has_tokenizer(const fs::path& folder) {
  if (folder.empty()) {
    return false;
  }
  if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt")) {
    return true;
  }
  for (const char* name :
       {"tokenizer.json",
        "vocab.txt",
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model"}) {
    if (fs::exists(folder / name)) {
      return true;
    }
  }
  return false;
}

std::vector<fs::path> tokenizer_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (is_of_tokenizer(entry.path().filename().string())) {
      files.push_back(entry.path());
    }
  }
  return files;
}

void copy_tokenizer(const fs::path& from, const fs::path& folder) {
  std::error_code code;
  fs::create_directories(folder, code);
  TESSERA_CHECK(
      fs::is_directory(folder),
      "cannot create '{}' for the tokenizer: {}",
      folder.string(),
      code.message());
  if (fs::equivalent(from, folder, code)) {
    return;
  }
  for (const fs::path& path : tokenizer_files(folder)) {
    runtime::remove_tree(path);
  }
  if (fs::is_directory(from)) {
    copy_entries(from, folder, is_of_tokenizer);
  } else {
    const bool is_model = from.extension() == ".model";
    runtime::write_file_atomically(
        folder / (is_model ? "tokenizer.model" : "tokenizer.json"),
        runtime::read_text_file(from));
  }
  runtime::write_file_atomically(
      folder / "tokenizer_config.json",
      text::tokenizer_config_with_class(from));
}

void check_hf_folder(const fs::path& folder) {
  runtime::check_replaceable(folder, is_own);
}

} // namespace tessera::zoo
