// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/manifest.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/json_value.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/atomic_folder.h"
#include "tessera/runtime/io/checksum.h"
#include "tessera/runtime/io/remove_tree.h"

#include <algorithm>
#include <cstdio>
#include <span>

namespace tessera::engine {

namespace fs = std::filesystem;
using nlohmann::json;
using runtime::JsonValue;

namespace {

constexpr int kFormat = 3;
constexpr int kOldestFormat = 1; // without parts
constexpr int kFirstWithChecksum = 3;
constexpr const char* kManifest = "manifest.json";
constexpr const char* kBest = "best";
constexpr const char* kPrefix = "step-";
constexpr const char* kChecksum = "checksum"; // of the manifest
constexpr const char* kRemedy =
    "; the checkpoint is damaged or from another version: load another one";

json to_json(const SavedTensor& tensor) {
  json result{{"name", tensor.name}, {"checksum", tensor.checksum}};
  if (!tensor.parameter.empty()) {
    result["parameter"] = tensor.parameter;
    result["state"] = tensor.state;
  }
  if (!tensor.part) {
    return result;
  }
  result["offset"] = tensor.part->offset;
  result["numel"] = tensor.part->numel;
  TESSERA_CHECK(
      tensor.part->ranges.size() <= 1,
      "save: '{}' is divided along {} dimensions, but a checkpoint describes parts of one; divide it along one dimension only.",
      tensor.parameter,
      tensor.part->ranges.size());
  for (const DimRange& range : tensor.part->ranges) {
    result["part"] = {
        {"dim", range.dim}, {"begin", range.begin}, {"end", range.end}};
  }
  return result;
}

SavedTensor saved_tensor(const JsonValue& from) {
  SavedTensor tensor;
  tensor.name = from.at("name").as<std::string>();
  tensor.checksum = from.at("checksum").as<std::string>();
  if (const auto parameter = from.find("parameter")) {
    tensor.parameter = parameter->as<std::string>();
  }
  if (const auto state = from.find("state")) {
    tensor.state = state->as<std::string>();
  }
  if (const auto offset = from.find("offset")) {
    tensor.part = {{}, offset->integer(), from.at("numel").integer()};
  }
  if (const auto part = from.find("part"); part && tensor.part) {
    const int64_t begin = part->at("begin").integer();
    tensor.part->ranges = {
        {part->at("dim").integer(),
         begin,
         part->at("end").integer({.min = begin})}};
  }
  return tensor;
}

/// The step of a checkpoint's folder name.
std::optional<int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::string prefix = kPrefix;
  if (name.size() <= prefix.size() || name.size() > prefix.size() + 18 ||
      name.compare(0, prefix.size(), prefix) != 0 ||
      !std::all_of(
          name.begin() + static_cast<std::ptrdiff_t>(prefix.size()),
          name.end(),
          [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  return std::stoll(name.substr(prefix.size()));
}

json to_json(const SavedRank& rank) {
  json tensors = json::array();
  for (const SavedTensor& tensor : rank.tensors) {
    tensors.push_back(to_json(tensor));
  }
  return {
      {"file", rank.file},
      {"bytes", rank.bytes},
      {"tensors", std::move(tensors)},
      {"states", rank.states}};
}

SavedRank saved_rank(const JsonValue& from) {
  SavedRank rank;
  const JsonValue file = from.at("file");
  rank.file = file.as<std::string>();
  if (rank.file.empty() || fs::path(rank.file).filename() != rank.file ||
      rank.file.find('\0') != std::string::npos) {
    file.fail("the name of a file next to the manifest");
  }
  rank.bytes = static_cast<uint64_t>(from.at("bytes").integer());
  for (const JsonValue& tensor : from.at("tensors").elements()) {
    rank.tensors.push_back(saved_tensor(tensor));
  }
  const JsonValue states = from.at("states");
  for (const std::string& name : states.keys()) {
    rank.states.emplace(name, states.at(name).value());
  }
  return rank;
}

json to_json(const SavedParameters& parameters) {
  json result = json::object();
  for (const auto& [name, parameter] : parameters) {
    json& its = result[name] = {
        {"sizes", parameter.sizes},
        {"strides", parameter.strides},
        {"steps", parameter.steps}};
    if (!parameter.aliases.empty()) {
      its["aliases"] = parameter.aliases;
    }
    if (!parameter.optimizer.empty()) {
      its["optimizer"] = parameter.optimizer;
    }
  }
  return result;
}

/// Of all values but the checksum itself; layout does not matter.
std::string checksum_of(json manifest) {
  manifest.erase(kChecksum);
  const std::string text = manifest.dump();
  return runtime::checksum_of(std::as_bytes(std::span(text)));
}

/// @return the checksum of the values.
/// @throws tessera::Error if they are not those that were written.
std::string check_values(
    const JsonValue& root,
    const fs::path& file,
    int64_t format) {
  const auto written = format >= kFirstWithChecksum
                           ? std::optional(root.at(kChecksum))
                           : root.find(kChecksum);
  std::string found = checksum_of(root.value());
  TESSERA_CHECK(
      !written || written->as<std::string>() == found,
      "{}: its values have the checksum {}, but it says {}{}",
      file.string(),
      found,
      written ? written->as<std::string>() : "",
      kRemedy);
  return found;
}

/// The values that the engine reads after loading the tensors; checked before.
json engine_state(const JsonValue& from) {
  from.at("learning_rate").as<double>();
  const JsonValue scale = from.at("loss_scale");
  scale.at("scale").as<double>();
  scale.at("good_steps").integer();
  scale.at("skipped_steps").integer();
  return from.value();
}

SavedParameters saved_parameters(const JsonValue& all) {
  SavedParameters parameters;
  for (const std::string& name : all.keys()) {
    const JsonValue from = all.at(name);
    SavedParameter& parameter = parameters[name];
    parameter.sizes = from.at("sizes").integers();
    parameter.strides = from.at("strides").integers();
    if (parameter.strides.size() != parameter.sizes.size()) {
      from.at("strides").fail("a list of the same length as 'sizes'");
    }
    parameter.steps = from.at("steps").integer();
    if (const auto aliases = from.find("aliases")) {
      parameter.aliases = aliases->texts();
    }
    if (const auto optimizer = from.find("optimizer")) {
      parameter.optimizer = optimizer->as<std::string>();
    }
  }
  return parameters;
}

} // namespace

std::string to_text(const RankReport& report) {
  return json{
      {"rank", to_json(report.rank)},
      {"parameters", to_json(report.parameters)}}
      .dump();
}

RankReport read_report(const fs::path& file) {
  const json all =
      runtime::parse_json(runtime::read_text_file(file), file.string());
  const JsonValue report(all, file.string(), kRemedy);
  return {
      saved_rank(report.at("rank")), saved_parameters(report.at("parameters"))};
}

std::string to_text(const CheckpointManifest& manifest) {
  json ranks = json::array();
  for (const SavedRank& rank : manifest.ranks) {
    ranks.push_back(to_json(rank));
  }
  json all{
      {"format", kFormat},
      {"step", manifest.step},
      {"lineage", manifest.lineage},
      {"world_size", manifest.ranks.size()},
      {"tensor_ranks", manifest.tensor_ranks},
      {"stages", manifest.stages},
      {"engine", manifest.engine},
      {"parameters", to_json(manifest.parameters)},
      {"ranks", std::move(ranks)}};
  all[kChecksum] = checksum_of(all);
  return all.dump(1) + "\n";
}

CheckpointManifest read_manifest(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kManifest;
  const json all =
      runtime::parse_json(runtime::read_text_file(file), file.string());
  const JsonValue root(all, file.string(), kRemedy);
  const int64_t format = root.at("format").integer();
  TESSERA_CHECK(
      format >= kOldestFormat && format <= kFormat,
      "{}: the checkpoint's format is {}; this version reads formats {} to {}.",
      file.string(),
      format,
      kOldestFormat,
      kFormat);
  CheckpointManifest manifest;
  manifest.identity = check_values(root, file, format);
  manifest.step = root.at("step").integer();
  if (const auto lineage = root.find("lineage")) {
    manifest.lineage = lineage->as<std::string>();
  }
  manifest.engine = engine_state(root.at("engine"));
  manifest.parameters = saved_parameters(root.at("parameters"));
  for (const JsonValue& rank : root.at("ranks").elements()) {
    manifest.ranks.push_back(saved_rank(rank));
  }
  constexpr int64_t kMostRanks = 1 << 20;
  const auto ranks_of = [&](const char* key) {
    const auto found = root.find(key);
    return found
               ? static_cast<int>(found->integer({.min = 1, .max = kMostRanks}))
               : 1;
  };
  manifest.tensor_ranks = ranks_of("tensor_ranks");
  manifest.stages = ranks_of("stages");
  return manifest;
}

fs::path checkpoint_path(const fs::path& folder, int64_t step) {
  char name[32];
  std::snprintf(
      name, sizeof(name), "%s%06lld", kPrefix, static_cast<long long>(step));
  return folder / name;
}

std::optional<int64_t> checkpoint_step(const fs::path& checkpoint) {
  return step_of(checkpoint);
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (step_of(entry.path()) && fs::exists(entry.path() / kManifest)) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return step_of(a) < step_of(b);
  });
  return found;
}

std::vector<fs::path> checkpoints_in(const fs::path& path) {
  if (fs::exists(path / kManifest)) {
    return {path};
  }
  auto found = list_checkpoints(path);
  return found.empty() ? list_checkpoints(path / "checkpoints") : found;
}

fs::path find_checkpoint(const fs::path& path) {
  if (path.filename() == kBest) {
    if (const auto best = best_checkpoint(path.parent_path())) {
      return *best;
    }
  }
  if (fs::exists(path / kManifest)) {
    return path;
  }
  if (const auto all = list_checkpoints(path); !all.empty()) {
    return all.back();
  }
  std::string others;
  for (const fs::path& beside : list_checkpoints(path.parent_path())) {
    if (step_of(beside) == step_of(path)) {
      return beside;
    }
    others += (others.empty() ? "" : ", ") + beside.filename().string();
  }
  if (path.filename() == kBest) {
    TESSERA_FAIL(
        "load: there is no '{}': a run keeps its best checkpoint with training.keep_best or training.export_best, while it scores held-out data (training.evaluate_every). {}",
        path.string(),
        others.empty() ? "Its folder has no others."
                       : "Its folder contains: " + others);
  }
  TESSERA_FAIL(
      "load: '{}' is not a checkpoint and does not contain any (folders named step-N with a manifest.json). {}",
      path.string(),
      others.empty() ? "Check the path."
                     : "The folder next to it contains: " + others);
}

void mark_best(const fs::path& checkpoint) {
  const fs::path link = checkpoint.parent_path() / kBest;
  const fs::path made = checkpoint.parent_path() / ".best.partial";
  std::error_code code;
  fs::remove(made, code);
  fs::create_directory_symlink(checkpoint.filename(), made, code);
  if (!code) {
    fs::rename(made, link, code);
  }
  TESSERA_CHECK(
      !code,
      "the link {} to the best checkpoint cannot be made: {}",
      link,
      code.message());
}

void unmark_best(const fs::path& folder) {
  std::error_code code;
  fs::remove(folder / kBest, code);
}

std::optional<fs::path> best_checkpoint(const fs::path& folder) {
  std::error_code code;
  const fs::path target = fs::read_symlink(folder / kBest, code);
  if (code || !fs::exists(folder / target / kManifest)) {
    return std::nullopt;
  }
  return folder / target;
}

std::string lineage_of(const fs::path& checkpoint) {
  try {
    return read_manifest(checkpoint).lineage;
  } catch (const Error&) {
    return {};
  }
}

void prune_checkpoints(const fs::path& written, int keep) {
  const fs::path folder = written.parent_path();
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("." + std::string(kPrefix), 0) == 0) {
      runtime::remove_tree(entry.path());
    }
  }
  auto others = list_checkpoints(folder);
  if (keep <= 0 || others.size() <= static_cast<size_t>(keep)) {
    return;
  }
  const std::string lineage = lineage_of(written);
  std::erase_if(others, [&](const fs::path& other) {
    return other.filename() == written.filename() ||
           lineage_of(other) != lineage;
  });
  // In the order in which they were written.
  std::rotate(
      others.begin(),
      std::find_if(
          others.begin(),
          others.end(),
          [&](const fs::path& other) {
            return step_of(other) > step_of(written);
          }),
      others.end());
  const auto kept = static_cast<size_t>(keep) - 1; // beside what was written
  others.resize(others.size() - std::min(others.size(), kept));
  const auto best = best_checkpoint(folder);
  for (const fs::path& old : others) {
    if (!best || best->filename() != old.filename()) {
      runtime::remove_folder(old);
    }
  }
}

} // namespace tessera::engine
