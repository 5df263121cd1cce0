// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/row_report.h"

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"

namespace tessera::tasks {

void RowReport::skip(const Error& error) {
  if (bad_rows_ == text::BadRows::kError) {
    throw;
  }
  if (++skipped_ <= shown_ && is_log_rank_zero()) {
    log_warning("skipped: {}", error.what());
  }
}

void RowReport::log_truncated(
    const std::string& name,
    const std::string& limit,
    int64_t max_length) const {
  if (truncated_ > 0 && is_log_rank_zero()) {
    log_warning(
        "'{}': {} of {} {} longer than {}, {} tokens, and {} truncated",
        name,
        truncated_,
        runtime::count_text(rows_, unit_),
        truncated_ == 1 ? "is" : "are",
        limit,
        max_length,
        truncated_ == 1 ? "is" : "are");
  }
}

void RowReport::log_skipped(const std::string& name) const {
  if (skipped_ > 0 && is_log_rank_zero()) {
    log_warning(
        "{} of {} {} skipped",
        runtime::count_text(skipped_, unit_),
        name,
        skipped_ == 1 ? "was" : "were");
  }
}

} // namespace tessera::tasks
