// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/hf_folder.h"

#include "tessera/zoo/json_fields.h"
#include "tessera/zoo/tensor_bytes.h"

#include <torch/torch.h>

#include <algorithm>
#include <sstream>

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The tensors and the files that an index assigns them to.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const auto weights = JsonFields::from_file(path).section("weight_map");
  std::map<std::string, std::string> result;
  for (const auto& [name, file] : weights.object().items()) {
    TESSERA_CHECK(
        file.is_string() && !file.get<std::string>().empty() &&
            fs::path(file.get<std::string>()).filename() ==
                file.get<std::string>(),
        weights.origin(),
        ": tensor '",
        name,
        "' is said to be in ",
        show_json(file),
        ", which is not the name of a file in the folder");
    result.emplace(name, file.get<std::string>());
  }
  TESSERA_CHECK(
      !result.empty(),
      weights.origin(),
      " names no tensors; fetch the model's folder again");
  return result;
}

// Collects findings, so that one message names them all.
class Findings {
 public:
  template <typename... Parts>
  void add(const Parts&... parts) {
    constexpr int kShown = 20;
    if (++count_ <= kShown) {
      text_ << "\n  " << detail::concat(parts...);
    } else if (count_ == kShown + 1) {
      text_ << "\n  and more";
    }
  }
  bool empty() const {
    return count_ == 0;
  }
  std::string text() const {
    return text_.str();
  }

 private:
  int count_ = 0;
  std::ostringstream text_;
};

bool starts_with_any(
    const std::string& name,
    const std::vector<std::string>& prefixes) {
  return std::any_of(
      prefixes.begin(), prefixes.end(), [&](const std::string& prefix) {
        return name.starts_with(prefix);
      });
}

bool is_float(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::kF32 || dtype == SafetensorsDtype::kF16 ||
         dtype == SafetensorsDtype::kBF16;
}

} // namespace

HfCheckpoint HfCheckpoint::open(const fs::path& folder) {
  HfCheckpoint checkpoint;
  checkpoint.folder_ = folder;
  const fs::path whole = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::exists(whole)) {
    checkpoint.files_.push_back(SafetensorsFile::open(whole));
    for (const SafetensorsEntry& entry : checkpoint.files_[0].entries()) {
      checkpoint.entries_.emplace(entry.name, &entry);
    }
    return checkpoint;
  }
  TESSERA_CHECK(
      fs::exists(index),
      folder,
      " holds neither model.safetensors nor model.safetensors.index.json; "
      "pytorch_model.bin is not read: save the model with transformers once "
      "more, which writes safetensors");
  const auto weight_map = read_index(index);
  std::map<std::string, std::size_t> positions;
  for (const auto& [name, file] : weight_map) {
    if (positions.emplace(file, checkpoint.files_.size()).second) {
      checkpoint.files_.push_back(SafetensorsFile::open(folder / file));
    }
  }
  for (const auto& [name, file] : weight_map) {
    checkpoint.entries_.emplace(
        name, &checkpoint.files_[positions.at(file)].at(name));
  }
  return checkpoint;
}

HfLoadReport load_hf_weights(
    torch::nn::Module& module,
    const HfCheckpoint& checkpoint,
    const HfLoadOptions& options) {
  const auto parameters = module.named_parameters();
  std::map<std::string, const SafetensorsEntry*> found;
  HfLoadReport report;
  Findings wrong;
  for (const auto& [name, entry] : checkpoint.entries()) {
    const std::string target = options.rename ? options.rename(name) : name;
    const torch::Tensor* parameter = parameters.find(target);
    if (target.empty()) {
      report.left_out.push_back(name);
    } else if (parameter == nullptr) {
      wrong.add("unexpected: '", name, "'");
    } else if (!found.emplace(target, entry).second) {
      wrong.add("two tensors for '", target, "', one of them '", name, "'");
    } else if (parameter->sizes() != torch::IntArrayRef(entry->shape)) {
      wrong.add(
          "shape of '",
          name,
          "': ",
          torch::IntArrayRef(entry->shape),
          ", but the model's is ",
          parameter->sizes());
    } else if (!is_float(entry->dtype)) {
      wrong.add(
          "dtype of '",
          name,
          "': ",
          name_of(entry->dtype),
          ", but weights must be F32, F16 or BF16");
    }
  }
  for (const auto& item : parameters) {
    if (found.contains(item.key())) {
      continue;
    }
    if (starts_with_any(item.key(), options.may_be_missing)) {
      report.missing.push_back(item.key());
    } else {
      wrong.add("missing: '", item.key(), "'");
    }
  }
  TESSERA_CHECK(
      wrong.empty(),
      "the weights in ",
      checkpoint.folder(),
      " do not fit the model; do config.json and the weights belong together?",
      wrong.text());

  const torch::NoGradGuard no_grad;
  for (const auto& [name, entry] : found) {
    parameters.find(name)->copy_(tensor_of(*entry));
  }
  return report;
}

} // namespace tessera
