// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/run_changes.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/weights/weight_files.h"
#include "tessera/zoo/data/data_identity.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

namespace tessera::tasks {

namespace {

using nlohmann::json;
using Values = std::map<std::string, json>;

enum class Change {
  kIgnored, ///< says what to do with the folder, not what is trained
  kAccepted,
  kData,
  kRefused,
};

/// The first row whose key is the changed one, or an object around it, decides.
struct ChangeRule {
  std::string_view key;
  Change change;
};
constexpr std::array kRules{
    ChangeRule{"output", Change::kIgnored},
    ChangeRule{"training.resume", Change::kIgnored},
    ChangeRule{"training.resume_from", Change::kIgnored},
    ChangeRule{"training.new_data", Change::kIgnored},
    // Compared by their content.
    ChangeRule{"data.train", Change::kIgnored},
    ChangeRule{"data.text", Change::kIgnored},
    ChangeRule{"model.folder", Change::kIgnored},
    ChangeRule{"model.config", Change::kIgnored},
    ChangeRule{"data.heldout", Change::kAccepted},
    ChangeRule{"data.accuracy", Change::kAccepted},
    ChangeRule{"data.trim_padding", Change::kAccepted},
    ChangeRule{"data.check", Change::kAccepted},
    ChangeRule{"data.fit", Change::kAccepted},
    ChangeRule{"data.center_crop", Change::kAccepted},
    ChangeRule{"data.loader", Change::kAccepted},
    ChangeRule{"data", Change::kData},
    ChangeRule{"model.checkpoint_layers", Change::kAccepted},
    ChangeRule{"model.checkpoint_attention", Change::kAccepted},
    ChangeRule{"model.divide_checkpoints", Change::kAccepted},
    ChangeRule{"model.layer_drop", Change::kAccepted},
    ChangeRule{"model.token_drop", Change::kAccepted},
    ChangeRule{"model.max_length", Change::kAccepted},
    ChangeRule{"model.start_from", Change::kAccepted},
    ChangeRule{"model.lora.base_model", Change::kAccepted},
    ChangeRule{"model.lora.dropout", Change::kAccepted},
    ChangeRule{"model.lora.merge", Change::kAccepted},
    ChangeRule{"model", Change::kRefused},
    ChangeRule{"optimizer.type", Change::kRefused},
    ChangeRule{"task", Change::kRefused},
};

Change change_of(const std::string& key) {
  const auto* rule =
      std::find_if(kRules.begin(), kRules.end(), [&](const ChangeRule& one) {
        return key == one.key ||
               (key.starts_with(one.key) && key[one.key.size()] == '.');
      });
  return rule == kRules.end() ? Change::kAccepted : rule->change;
}

/// The values of an object and the objects in it, by "key.key".
void add_values(const json& object, const std::string& prefix, Values& values) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      add_values(value, prefix + key + ".", values);
    } else if (!value.is_null()) {
      values[prefix + key] = value;
    }
  }
}

Values values_of(const json& object, const std::string& prefix = {}) {
  Values values;
  if (object.is_object()) {
    add_values(object, prefix, values);
  }
  return values;
}

std::string show(const Values& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? "not set" : runtime::show_json(found->second);
}

/// Calls `use` with each key that differs and its line.
template <typename Use>
void for_each_difference(
    const Values& before,
    const Values& now,
    const Use& use) {
  std::set<std::string> keys;
  for (const Values* values : {&before, &now}) {
    for (const auto& [key, value] : *values) {
      keys.insert(key);
    }
  }
  for (const std::string& key : keys) {
    const auto a = before.find(key);
    const auto b = now.find(key);
    if (a == before.end() || b == now.end() || a->second != b->second) {
      use(key,
          formatted("{} {} -> {}", key, show(before, key), show(now, key)));
    }
  }
}

json member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? json() : *found;
}

/// "'tokens.bin' (2048 bytes, 64 samples)".
std::string show_data(const json& data) {
  std::string text = formatted(
      "'{}' ({} bytes",
      data.value("path", ""),
      data.value("bytes", int64_t{0}));
  if (data.contains("samples")) {
    text += formatted(", {} samples", data.value("samples", int64_t{0}));
  }
  return text + ")";
}

void compare_data(const json& before, const json& now, RunChanges& changes) {
  if (!before.is_object() || !now.is_object()) {
    return;
  }
  const std::string line =
      formatted("data.train {} -> {}", show_data(before), show_data(now));
  if (before.value("checksum", "") != now.value("checksum", "")) {
    changes.data.push_back(line);
  } else if (before.value("path", "") != now.value("path", "")) {
    changes.accepted.push_back(line + " with the same content");
  }
}

/// The content of a config.json without what transformers notes about the
/// writing of it.
json model_identity(const std::filesystem::path& file) {
  json config =
      runtime::parse_json(runtime::read_text_file(file), file.string());
  for (const char* key :
       {"_name_or_path", "transformers_version", "torch_dtype", "dtype"}) {
    config.erase(key);
  }
  return config;
}

} // namespace

json describe_run(const TrainingConfig& config) {
  TESSERA_CHECK(
      config.model_folder.empty() ||
          std::filesystem::is_directory(config.model_folder),
      "model.folder '{}' does not exist; give the path of an unpacked Hugging Face model, e.g. of `hf download NAME --local-dir FOLDER`",
      config.model_folder.string());
  json run{
      {"config", json(config.resolved)},
      {"model",
       model_identity(
           config.model_folder.empty() ? config.model_config
                                       : config.model_folder / "config.json")},
      {"data", zoo::data_identity(config.train_files())}};
  if (config.lora) { // which is of no use on other weights
    run["base"] = sharding::WeightFiles::open(config.model_folder).identity();
  }
  return run;
}

RunChanges changes_between(const json& saved, const json& now) {
  RunChanges changes;
  for_each_difference(
      values_of(member(saved, "config")),
      values_of(member(now, "config")),
      [&](const std::string& key, const std::string& line) {
        switch (change_of(key)) {
          case Change::kIgnored:
            break;
          case Change::kAccepted:
            changes.accepted.push_back(line);
            break;
          case Change::kData:
            changes.data.push_back(line);
            break;
          case Change::kRefused:
            changes.refused.push_back(line);
        }
      });
  for_each_difference(
      values_of(member(saved, "model"), "the model's "),
      values_of(member(now, "model"), "the model's "),
      [&](const std::string& /*key*/, const std::string& line) {
        changes.refused.push_back(line);
      });
  compare_data(member(saved, "data"), member(now, "data"), changes);
  const json base = member(saved, "base");
  if (base.is_string() && base != member(now, "base")) {
    changes.refused.emplace_back(
        "model.folder: the weights are others than those that the adapter has been trained on");
  }
  return changes;
}

} // namespace tessera::tasks
