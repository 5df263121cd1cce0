// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/hf_folder_writer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace tessera::zoo {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kKeptFiles[] = {
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates", // a folder
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json"};

/// File names of SentencePiece models and tiktoken tables vary.
constexpr std::string_view kKeptEndings[] = {".model", ".tiktoken"};

/// Code referred to by `auto_map` in config.json and tokenizer_config.json.
constexpr std::string_view kCode[] = {
    "configuration_",
    "modeling_",
    "processing_",
    "tokenization_"};

/// Whether a file is copied with the model, since training does not change it.
bool is_kept(std::string_view name) {
  const auto begins = [name](std::string_view start) {
    return name.starts_with(start);
  };
  const auto ends = [name](std::string_view end) {
    return name.ends_with(end);
  };
  return std::find(std::begin(kKeptFiles), std::end(kKeptFiles), name) !=
             std::end(kKeptFiles) ||
         std::any_of(std::begin(kKeptEndings), std::end(kKeptEndings), ends) ||
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
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(tokenizer_folder, code)) {
    const std::string name = entry.path().filename().string();
    if (!is_kept(name)) {
      continue;
    }
    if (entry.is_directory()) {
      fs::create_directory(folder_.temporary() / name);
      for (const auto& inner : fs::directory_iterator(entry.path())) {
        copy_into(inner.path(), folder_.temporary() / name);
      }
    } else {
      copy_into(entry.path(), folder_.temporary());
    }
  }
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

void check_hf_folder(const fs::path& folder) {
  runtime::check_replaceable(folder, is_own);
}

} // namespace tessera::zoo
