// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/best_score.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/trainer/step_metrics.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <utility>

namespace tessera::engine {

namespace {

constexpr const char* kBestScore = "best score"; ///< the state's name

std::string without_prefix(std::string metric) {
  return metric.starts_with(kHeldoutPrefix)
             ? metric.substr(kHeldoutPrefix.size())
             : metric;
}

BestRecord record_of(const nlohmann::json& values) {
  BestRecord record;
  record.metric = values.at("metric");
  record.step = values.at("step");
  record.since = values.at("since");
  if (values.contains("value")) {
    record.value = values.at("value").get<double>();
  }
  if (values.contains("scored")) {
    record.scored_step = values.at("scored").get<int64_t>();
  } else if (record.since == 0) {
    record.scored_step = record.step;
  }
  record.data = {values.value("data", ""), values.value("identity", "")};
  return record;
}

} // namespace

std::string BestRecord::text() const {
  return formatted(
      "{}{} {} of step {}",
      kHeldoutPrefix,
      metric,
      value ? formatted("{:.5g}", *value) : "none",
      step);
}

std::optional<BestRecord> best_record(const std::filesystem::path& checkpoint) {
  const CheckpointManifest manifest = read_manifest(checkpoint);
  if (manifest.ranks.empty()) {
    return std::nullopt;
  }
  const auto& states = manifest.ranks.front().states;
  const auto found = states.find(kBestScore);
  return found == states.end() ? std::nullopt
                               : std::optional(record_of(found->second));
}

BestScore::BestScore(std::string metric, ScoredData data)
    : best_{without_prefix(std::move(metric)), {}, 0, 0, 0, std::move(data)},
      lower_is_better_(
          best_.metric.find("loss") != std::string::npos ||
          best_.metric.find("perplexity") != std::string::npos) {}

std::string BestScore::name() const {
  return kBestScore;
}

bool BestScore::add(const TaskScore& score, int64_t step) {
  auto found = score.values.find(std::string(kHeldoutPrefix) + best_.metric);
  if (found == score.values.end()) {
    found = score.values.find(best_.metric);
  }
  if (found == score.values.end()) {
    std::string names;
    for (const auto& [name, value] : score.values.items()) {
      names += (names.empty() ? "" : ", ") + without_prefix(name);
    }
    TESSERA_FAIL(
        "training.best_metric is '{}', which is not measured on the held-out data; these are: {}",
        best_.metric,
        names);
  }
  ++best_.since;
  best_.scored_step = step;
  // A value that is not finite is null in JSON.
  if (!found->is_number()) {
    return false;
  }
  const double value = found->get<double>();
  // Comparisons with NaN are false.
  const bool is_better = best_.value ? (lower_is_better_ ? value < *best_.value
                                                         : value > *best_.value)
                                     : value == value;
  if (is_better) {
    best_.value = value;
    best_.step = step;
    best_.since = 0;
  }
  return is_better;
}

CheckpointState BestScore::save_state() const {
  CheckpointState state;
  state.values = {
      {"metric", best_.metric},
      {"step", best_.step},
      {"since", best_.since},
      {"data", best_.data.name},
      {"identity", best_.data.identity}};
  if (best_.scored_step) {
    state.values["scored"] = *best_.scored_step;
  }
  if (best_.value) {
    state.values["value"] = *best_.value;
  }
  return state;
}

void BestScore::load_state(const CheckpointState& state) {
  BestRecord saved = record_of(state.values);
  const bool is_same_metric = saved.metric == best_.metric;
  const bool is_same_data = best_.data.identity.empty() ||
                            saved.data.identity.empty() ||
                            saved.data.identity == best_.data.identity;
  if (is_same_metric && is_same_data) {
    if (!best_.data.identity.empty()) {
      saved.data = best_.data; // perhaps under another name
    }
    best_ = std::move(saved);
    return;
  }
  best_ = {best_.metric, {}, 0, 0, 0, best_.data};
  if (saved.step > 0 && is_log_rank_zero()) {
    log_info(
        "{}, the best score so far, is of {}, and is not compared with those of this run, of {}",
        saved.text(),
        is_same_metric ? formatted("other data ('{}')", saved.data.name)
                       : std::string("another metric"),
        is_same_metric ? formatted("'{}'", best_.data.name)
                       : std::string(kHeldoutPrefix) + best_.metric);
  }
}

} // namespace tessera::engine
