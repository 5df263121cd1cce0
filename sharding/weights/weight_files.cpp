// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weights/weight_files.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/checksum.h"
#include "tessera/sharding/weights/torch_checkpoint.h"
#include "tessera/sharding/weights/torch_weights.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <mutex>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

namespace fs = std::filesystem;

/// Returns the tensors in an index, with the files that contain them.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const auto json =
      runtime::parse_json(runtime::read_text_file(path), path.string());
  const auto weight_map = json.is_object()
                              ? json.value("weight_map", nlohmann::json())
                              : nlohmann::json();
  TESSERA_CHECK(
      weight_map.is_object() && !weight_map.empty(),
      "{} names no tensors: its 'weight_map' is {}; download the model folder again",
      path,
      runtime::show_json(weight_map));
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : weight_map.items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : "";
    TESSERA_CHECK(
        !text.empty() && fs::path(text).filename() == text &&
            text.find('\0') == std::string::npos,
        "{}: tensor '{}' is said to be in {}, which is not the name of a file in the folder",
        path,
        name,
        runtime::show_json(file));
    files.emplace(name, text);
  }
  return files;
}

std::string nearest_in(const WeightSet& set, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [known, entry] : set.entries) {
    names.push_back(known);
  }
  const std::string nearest = runtime::nearest_name(name, names);
  return nearest.empty() ? "; download the model folder again"
                         : "; the nearest name is '" + nearest + "'";
}

/// Whether torch.save wrote a file, by its name.
bool is_torch_file(const fs::path& file) {
  const fs::path extension = file.extension();
  return extension == ".bin" || extension == ".pt" || extension == ".pth" ||
         extension == ".ckpt";
}

WeightSet safetensors_weights(const fs::path& path) {
  const auto file = std::make_shared<const runtime::SafetensorsFile>(
      runtime::SafetensorsFile::open(path));
  WeightSet set;
  for (const runtime::SafetensorsEntry& entry : file->entries()) {
    set.entries.emplace(entry.name, full_entry(entry));
  }
  set.files.push_back(file);
  return set;
}

/// The weights of a module in wrappers have their names: those of
/// DistributedDataParallel, FSDP, torch.compile and of checkpointing.
WeightSet without_wrappers(WeightSet set) {
  constexpr std::string_view kOutermost = "module.";
  const bool is_in_module = std::all_of(
      set.entries.begin(), set.entries.end(), [&](const auto& item) {
        return item.first.starts_with(kOutermost);
      });
  WeightSet plain;
  plain.files = std::move(set.files);
  for (auto& [wrapped, entry] : set.entries) {
    std::string name = wrapped.substr(is_in_module ? kOutermost.size() : 0);
    for (const std::string_view wrapper :
         {"_fsdp_wrapped_module.",
          "_checkpoint_wrapped_module.",
          "_orig_mod."}) {
      for (size_t at = 0; (at = name.find(wrapper)) != std::string::npos;) {
        name.erase(at, wrapper.size());
      }
    }
    entry.name = name;
    TESSERA_CHECK(
        plain.entries.emplace(name, std::move(entry)).second,
        "two tensors have the name '{}', one of them as '{}'",
        name,
        wrapped);
  }
  return plain;
}

WeightSet weights_in_file(const fs::path& file) {
  return is_torch_file(file) ? without_wrappers(torch_weights(file))
                             : safetensors_weights(file);
}

/// The tensors that an index names, from the files beside it.
WeightSet weights_of_index(const fs::path& index) {
  const auto file_of = read_index(index);
  std::map<std::string, WeightSet> sets;
  WeightSet all;
  for (const auto& [name, file] : file_of) {
    auto found = sets.find(file);
    if (found == sets.end()) {
      found =
          sets.emplace(file, weights_in_file(index.parent_path() / file)).first;
      all.files.insert(
          all.files.end(),
          found->second.files.begin(),
          found->second.files.end());
    }
    const auto entry = found->second.entries.find(name);
    TESSERA_CHECK(
        entry != found->second.entries.end(),
        "{}: there is no tensor '{}' among its {}, but {} says so{}",
        index.parent_path() / file,
        name,
        found->second.entries.size(),
        index,
        nearest_in(found->second, name));
    all.entries.emplace(name, entry->second);
  }
  return all;
}

/// What a folder may contain, the preferred first.
constexpr const char* kFolderFiles[] = {
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "pytorch_model.pt"};

WeightSet open_weights(const fs::path& path) {
  if (!fs::is_directory(path)) {
    return path.extension() == ".json" ? weights_of_index(path)
                                       : weights_in_file(path);
  }
  for (const char* name : kFolderFiles) {
    if (fs::exists(path / name)) {
      return open_weights(path / name);
    }
  }
  if (is_dcp(path)) {
    return without_wrappers(dcp_weights(path));
  }
  if (is_zero(path)) {
    return without_wrappers(zero_weights(path));
  }
  const fs::path step = step_folder(path) / "mp_rank_00_model_states.pt";
  if (fs::exists(step)) {
    return weights_in_file(step);
  }
  TESSERA_FAIL(
      "{} contains neither model.safetensors nor pytorch_model.bin, nor an index of several of them, nor a checkpoint of PyTorch or DeepSpeed; give a folder with the weights of a model",
      path);
}

/// Bytes in the middle of a piece without checksum, where initial values such
/// as zeros of a padding's row are rare.
std::span<const std::byte> sample_of(std::span<const std::byte> data) {
  constexpr size_t kBytes = 256;
  const size_t bytes = std::min(data.size(), kBytes);
  return data.subspan((data.size() - bytes) / 2, bytes);
}

std::string identity_of(const WeightSet& set) {
  std::ostringstream text;
  for (const auto& [name, entry] : set.entries) {
    text << name << " " << static_cast<int>(entry.dtype);
    for (const int64_t size : entry.shape) {
      text << " " << size;
    }
    for (const FileRegion& region : entry.regions) {
      text << " "
           << (region.check ? region.check->checksum()
                            : runtime::checksum_of(sample_of(region.data)));
    }
    text << "\n";
  }
  const std::string all = text.str();
  return runtime::checksum_of(std::as_bytes(std::span(all)));
}

} // namespace

struct WeightFiles::Opened {
  Opened(fs::path given, WeightSet set)
      : path(std::move(given)), weights(std::move(set)) {}

  fs::path path;
  WeightSet weights;
  mutable std::once_flag identified;
  mutable std::string identity;
};

WeightFiles::WeightFiles(std::shared_ptr<const Opened> opened)
    : opened_(std::move(opened)) {}

WeightFiles WeightFiles::open(const fs::path& path) {
  return WeightFiles(std::make_shared<const Opened>(path, open_weights(path)));
}

WeightFiles WeightFiles::of(const fs::path& path, WeightSet weights) {
  return WeightFiles(std::make_shared<const Opened>(path, std::move(weights)));
}

const WeightSet& WeightFiles::weights() const {
  return opened_->weights;
}

const std::map<std::string, WeightEntry>& WeightFiles::entries() const {
  return opened_->weights.entries;
}

const WeightEntry* WeightFiles::find(const std::string& name) const {
  const auto found = opened_->weights.entries.find(name);
  return found == opened_->weights.entries.end() ? nullptr : &found->second;
}

const fs::path& WeightFiles::path() const {
  return opened_->path;
}

const std::string& WeightFiles::identity() const {
  std::call_once(opened_->identified, [this] {
    opened_->identity = identity_of(opened_->weights);
  });
  return opened_->identity;
}

} // namespace tessera::sharding
