// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/best_checkpoint.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/trainer/best_score.h"
#include "tessera/engine/trainer/run_checkpoints.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/zoo/data/data_identity.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <vector>

namespace tessera::tasks {

namespace fs = std::filesystem;

namespace {

using engine::BestRecord;

bool are_same_data(const ScoredData& a, const ScoredData& b) {
  return a.identity.empty() || b.identity.empty() || a.identity == b.identity;
}

/// Of a score and the data that it is of.
std::string text_of(const BestRecord& record) {
  return record.text() +
         (record.data.name.empty() ? "" : " on '" + record.data.name + "'");
}

/// Nothing of a checkpoint that is damaged.
std::optional<BestRecord> record_or_null(const fs::path& checkpoint) {
  try {
    return engine::best_record(checkpoint);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// What the run has done since its best checkpoint.
void warn_of_later(const fs::path& checkpoint, const BestRecord& record) {
  const auto all = engine::list_checkpoints(checkpoint.parent_path());
  if (all.empty()) {
    return;
  }
  const auto newest = record_or_null(all.back());
  if (!newest) {
    return;
  }
  if (newest->step > record.step && newest->metric == record.metric &&
      are_same_data(newest->data, record.data)) {
    const fs::path better =
        engine::checkpoint_path(checkpoint.parent_path(), newest->step);
    log_warning(
        "--from best: the run has had a better score, {}, {}",
        newest->text(),
        fs::exists(better)
            ? formatted("--from {}", better.filename().string())
            : std::string(
                  "whose checkpoint was not kept (training.keep_best)"));
  }
  if (!newest->scored_step) {
    return; // was saved by a version that did not say
  }
  const int64_t scored = std::max(record.step, *newest->scored_step);
  std::vector<std::string> unscored;
  for (const fs::path& one : all) {
    if (engine::checkpoint_step(one).value_or(0) > scored) {
      unscored.push_back(one.filename().string());
    }
  }
  if (!unscored.empty()) {
    log_warning(
        "--from best: nothing has been scored since step {}; {} {} newer and may be better: score {} with --from {}, or while the run trains with training.evaluate_every",
        scored,
        runtime::join_names(unscored),
        unscored.size() == 1 ? "is" : "are",
        unscored.size() == 1 ? "it" : "the newest",
        unscored.back());
  }
}

} // namespace

ScoredData scored_data(const TrainingConfig& config) {
  const auto files = config.heldout_files();
  if (files.empty()) {
    return {};
  }
  const nlohmann::json identity = zoo::data_identity(files);
  return {identity.at("path"), identity.at("checksum")};
}

void report_best(
    const TrainingConfig& config,
    const std::string& from,
    const fs::path& checkpoint) {
  if (fs::path(from).filename() != "best") {
    return;
  }
  const std::string name = checkpoint.filename().string();
  const auto record = engine::best_record(checkpoint);
  if (!record || record->step == 0) {
    if (is_log_rank_zero()) {
      log_warning(
          "--from best: the checkpoint is '{}', which has no record of a score",
          checkpoint.string());
    }
    return;
  }
  TESSERA_CHECK(
      engine::checkpoint_step(checkpoint) == record->step,
      "--from best: 'best' is a link to '{}', but the best score when that was saved was {}; name a checkpoint, e.g. --from {}",
      name,
      text_of(*record),
      name);
  const engine::BestScore configured(config.trainer.best_metric);
  TESSERA_CHECK(
      config.trainer.evaluate_every == 0 ||
          record->metric == configured.record().metric,
      "--from best: '{}' is the best one by {}, {}, but training.best_metric is '{}', by which the run has kept none; name a checkpoint, e.g. --from {}, or set training.best_metric={}",
      name,
      record->metric,
      text_of(*record),
      config.trainer.best_metric,
      name,
      record->metric);
  if (!is_log_rank_zero()) {
    return;
  }
  log_info("--from best: '{}', {}", checkpoint.string(), text_of(*record));
  const ScoredData data = scored_data(config);
  if (!are_same_data(data, record->data)) {
    log_warning(
        "--from best: it was the best on '{}', not on '{}' (data.heldout)",
        record->data.name,
        data.name);
  }
  warn_of_later(checkpoint, *record);
}

} // namespace tessera::tasks
