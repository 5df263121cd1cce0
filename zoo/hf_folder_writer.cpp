// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/hf_folder_writer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/tensor_bytes.h"

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <iterator>

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFiles[] = {
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json"};

std::set<std::string> own_names() {
  std::set<std::string> names(
      std::begin(kTokenizerFiles), std::end(kTokenizerFiles));
  names.insert({"config.json", "model.safetensors"});
  return names;
}

std::map<std::string, SafetensorsSpec, std::less<>> by_name(
    const std::vector<SafetensorsSpec>& specs) {
  std::map<std::string, SafetensorsSpec, std::less<>> result;
  for (const SafetensorsSpec& spec : specs) {
    result.emplace(spec.name, spec);
  }
  return result;
}

} // namespace

HfFolderWriter::HfFolderWriter(
    const fs::path& folder,
    const nlohmann::json& config,
    const std::vector<SafetensorsSpec>& specs,
    const fs::path& tokenizer_folder)
    : specs_(by_name(specs)),
      folder_(folder, own_names()),
      // transformers refuses files that do not say "pt".
      weights_(
          folder_.temporary() / "model.safetensors",
          specs,
          {{"format", "pt"}}) {
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

void HfFolderWriter::write(std::string_view name, const torch::Tensor& tensor) {
  const auto spec = specs_.find(name);
  TESSERA_CHECK(
      spec != specs_.end(),
      "tensor '",
      name,
      "' was not announced to the writer of ",
      folder_.path());
  const SafetensorsDtype dtype = safetensors_dtype_of(tensor.scalar_type());
  TESSERA_CHECK(
      dtype == spec->second.dtype &&
          tensor.sizes() == torch::IntArrayRef(spec->second.shape),
      "tensor '",
      name,
      "' is ",
      name_of(dtype),
      " ",
      tensor.sizes(),
      ", but was announced as ",
      name_of(spec->second.dtype),
      " ",
      torch::IntArrayRef(spec->second.shape),
      "; write the whole tensor in the announced dtype");
  weights_.write(name, bytes_of(tensor.detach().cpu().contiguous()));
}

void HfFolderWriter::commit() {
  weights_.commit();
  folder_.commit();
}

std::vector<SafetensorsSpec> safetensors_specs(
    const torch::nn::Module& module) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& tensor = item.value();
    specs.push_back(
        {item.key(),
         safetensors_dtype_of(tensor.scalar_type()),
         tensor.sizes().vec()});
  }
  return specs;
}

} // namespace tessera
