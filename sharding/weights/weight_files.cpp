// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weights/weight_files.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

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

} // namespace

struct WeightFiles::Opened {
  explicit Opened(const fs::path& given) : path(given) {
    const fs::path whole = path / "model.safetensors";
    const fs::path index = path / "model.safetensors.index.json";
    if (!fs::is_directory(path)) {
      path.extension() == ".json" ? add_index(path) : add_whole(path);
    } else if (fs::exists(whole)) {
      add_whole(whole);
    } else {
      TESSERA_CHECK(
          fs::exists(index),
          "{} contains neither model.safetensors nor model.safetensors.index.json; pytorch_model.bin is not supported: save the model again with transformers, which writes safetensors",
          path);
      add_index(index);
    }
  }

  void add_whole(const fs::path& file) {
    files.push_back(runtime::SafetensorsFile::open(file));
    for (const runtime::SafetensorsEntry& entry : files.back().entries()) {
      entries.emplace(entry.name, &entry);
    }
  }

  void add_index(const fs::path& index) {
    const auto file_of = read_index(index);
    std::map<std::string, size_t> positions;
    for (const auto& [name, file] : file_of) {
      if (positions.emplace(file, files.size()).second) {
        files.push_back(
            runtime::SafetensorsFile::open(index.parent_path() / file));
      }
    }
    for (const auto& [name, file] : file_of) {
      entries.emplace(name, &files[positions.at(file)].at(name));
    }
  }

  fs::path path;
  std::vector<runtime::SafetensorsFile> files;
  std::map<std::string, const runtime::SafetensorsEntry*> entries;
};

WeightFiles::WeightFiles(std::shared_ptr<const Opened> opened)
    : opened_(std::move(opened)) {}

WeightFiles WeightFiles::open(const fs::path& path) {
  return WeightFiles(std::make_shared<const Opened>(path));
}

const std::map<std::string, const runtime::SafetensorsEntry*>& WeightFiles::
    entries() const {
  return opened_->entries;
}

const runtime::SafetensorsEntry* WeightFiles::find(
    const std::string& name) const {
  const auto found = opened_->entries.find(name);
  return found == opened_->entries.end() ? nullptr : found->second;
}

const fs::path& WeightFiles::path() const {
  return opened_->path;
}

} // namespace tessera::sharding
