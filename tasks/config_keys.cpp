// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/config_keys.h"

#include "tessera/runtime/core/error.h"
#include "tessera/tasks/training_config.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tessera::tasks {

using nlohmann::ordered_json;
using runtime::OptionRow;

namespace {

struct TaskKeys {
  std::string name;
  runtime::OptionDescription fields;
};

std::vector<TaskKeys> keys_of_tasks() {
  std::vector<TaskKeys> keys;
  for (const auto& [name, kind] : task_kinds()) {
    TrainingConfig defaults(*kind);
    keys.push_back({name, runtime::describe_list(runtime::list_of(defaults))});
  }
  return keys;
}

constexpr const char* kDialect = "https://json-schema.org/draft/2020-12/schema";

/// Takes what is required out of a schema, other than in elements of arrays.
/// @return a schema of that alone; empty if nothing is.
ordered_json take_requirements(ordered_json& schema) {
  ordered_json taken = ordered_json::object();
  if (schema.contains("required")) {
    taken["required"] = schema["required"];
    schema.erase("required");
  }
  if (schema.contains("properties")) {
    for (auto& [key, property] : schema["properties"].items()) {
      const ordered_json inner = take_requirements(property);
      if (!inner.empty()) {
        taken["properties"][key] = inner;
      }
    }
  }
  if (schema.contains("allOf")) {
    for (ordered_json& branch : schema["allOf"]) {
      const ordered_json inner = take_requirements(branch["then"]);
      if (!inner.empty()) {
        taken["allOf"].push_back({{"if", branch["if"]}, {"then", inner}});
      }
    }
  }
  return taken;
}

/// Keys of files that no configuration has.
ordered_json file_keys() {
  return {
      {"$schema", {{"type", "string"}}},
      {"extends",
       {{"type", "string"},
        {"description",
         "a configuration whose keys this one adds to or replaces; relative to this file"}}}};
}

} // namespace

ordered_json config_schema() {
  std::vector<std::pair<std::string, ordered_json>> tasks;
  std::vector<ordered_json> requirements;
  for (const TaskKeys& task : keys_of_tasks()) {
    tasks.emplace_back(task.name, task.fields.schema);
    requirements.push_back(take_requirements(tasks.back().second));
  }
  ordered_json definitions = ordered_json::object();
  // What all tasks have is written once.
  const ordered_json first = tasks.front().second["properties"];
  for (const auto& [key, property] : first.items()) {
    const bool shared =
        std::all_of(tasks.begin(), tasks.end(), [&](const auto& task) {
          return task.second["properties"].value(key, ordered_json()) ==
                 property;
        });
    if (!shared) {
      continue;
    }
    definitions[key] = property;
    for (auto& [name, schema] : tasks) {
      schema["properties"][key] = {{"$ref", "#/$defs/" + key}};
    }
  }
  ordered_json branches = ordered_json::array();
  const ordered_json extends = {{"required", ordered_json::array({"extends"})}};
  // Without it, which branch applies is not known.
  branches.push_back(
      {{"if", {{"not", extends}}},
       {"then", {{"required", ordered_json::array({"task"})}}}});
  for (size_t i = 0; i < tasks.size(); ++i) {
    auto& [name, schema] = tasks[i];
    schema["properties"].update(file_keys());
    schema["allOf"].push_back(
        {{"if", {{"not", extends}}}, {"then", requirements[i]}});
    branches.push_back(
        {{"if",
          {{"properties", {{"task", {{"const", name}}}}},
           {"required", ordered_json::array({"task"})}}},
         {"then", {{"$ref", "#/$defs/" + name}}}});
    definitions[name] = std::move(schema);
  }
  return {
      {"$schema", kDialect},
      {"title", "Configuration of `tessera train`"},
      {"type", "object"},
      {"properties", {{"task", {{"$ref", "#/$defs/task"}}}}},
      {"allOf", branches},
      {"$defs", definitions}};
}

ordered_json config_schema(const std::string& section) {
  std::vector<ordered_json> found;
  for (const TaskKeys& task : keys_of_tasks()) {
    ordered_json schema = task.fields.schema;
    take_requirements(schema);
    for (ordered_json& one : runtime::schemas_at(schema, section)) {
      if (std::find(found.begin(), found.end(), one) == found.end()) {
        found.push_back(std::move(one));
      }
    }
  }
  TESSERA_CHECK(
      !found.empty(),
      "there is no key '{}'; `tessera keys` lists all",
      section);
  ordered_json schema = {
      {"$schema", kDialect},
      {"title", "`" + section + "` of a configuration of `tessera train`"}};
  if (found.size() == 1) {
    schema.update(found.front());
  } else {
    schema["anyOf"] = found; // of several tasks or branches
  }
  return schema;
}

std::vector<OptionRow> config_rows() {
  const std::vector<TaskKeys> tasks = keys_of_tasks();
  const auto has = [](const TaskKeys& task, const OptionRow& row) {
    const auto& rows = task.fields.rows;
    return std::find(rows.begin(), rows.end(), row) != rows.end();
  };
  std::vector<OptionRow> all;
  for (size_t i = 0; i < tasks.size(); ++i) {
    for (const OptionRow& row : tasks[i].fields.rows) {
      const bool shared =
          std::all_of(tasks.begin(), tasks.end(), [&](const TaskKeys& task) {
            return has(task, row);
          });
      if (shared && i > 0) {
        continue;
      }
      all.push_back(row);
      if (!shared) {
        all.back().only_for = {tasks[i].name};
      }
    }
  }
  return all;
}

} // namespace tessera::tasks
