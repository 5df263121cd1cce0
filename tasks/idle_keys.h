// SPDX-License-Identifier: Apache-2.0
#pragma once
// `idle_keys()` finds keys of a configuration that the others leave without
// effect, `dropped_keys()` those of a file that overrides take out.

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace tessera::runtime {

class ConfigReader;

} // namespace tessera::runtime

namespace tessera::tasks {

struct TaskKind;
struct TrainingConfig;

/// A line for each key that is given, and why it has no effect.
/// @param reader of a configuration that was written by hand: that of a run
///     folder has all keys.
/// @param config what was read from it.
std::vector<std::string> idle_keys(
    const runtime::ConfigReader& reader,
    const TrainingConfig& config);

/// The keys of a task of which the table behind idle_keys() does not say when
/// they have an effect: none.
std::vector<std::string> keys_without_rule(const TaskKind& task);

/// A line for each override whose object stands in place of one of the file,
/// and the keys of it that thus have their defaults.
/// @param root the configuration before `overrides`.
std::vector<std::string> dropped_keys(
    nlohmann::json root,
    const std::vector<std::string>& overrides);

} // namespace tessera::tasks
