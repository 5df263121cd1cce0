// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/hf_folder_writer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <iterator>
#include <set>
#include <string>

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFiles[] = {
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json"};

std::set<std::string> own_names() {
  std::set<std::string> names(
      std::begin(kTokenizerFiles), std::end(kTokenizerFiles));
  names.insert({"config.json", "model.safetensors"});
  return names;
}

} // namespace

HfFolderWriter::HfFolderWriter(
    const fs::path& folder,
    const nlohmann::json& config,
    const fs::path& tokenizer_folder)
    : folder_(folder, own_names()) {
  write_file_atomically(
      folder_.temporary() / "config.json", config.dump(2) + "\n");
  if (tokenizer_folder.empty()) {
    return;
  }
  for (const char* name : kTokenizerFiles) {
    if (fs::exists(tokenizer_folder / name)) {
      write_file_atomically(
          folder_.temporary() / name, read_text_file(tokenizer_folder / name));
    }
  }
}

fs::path HfFolderWriter::weights_path() const {
  return folder_.temporary() / "model.safetensors";
}

void HfFolderWriter::commit() {
  TESSERA_CHECK(
      fs::exists(weights_path()),
      folder_.path(),
      ": model.safetensors has not been written; write the weights before "
      "commit()");
  folder_.commit();
}

} // namespace tessera
