// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rank-aware log lines on standard error.

#include "tessera/runtime/core/error.h"

#include <string_view>

namespace tessera {

enum class LogLevel { kInfo, kWarning, kError };

/// Names this process in its log lines; called once by init(). A world of one
/// logs without a rank.
void set_log_rank(int rank, int world_size);

/// Writes one line in a single write, so that ranks do not interleave.
void log_line(LogLevel level, std::string_view text);

/// Logs on every rank.
template <typename... Parts>
void log_info(const Parts&... parts) {
  log_line(LogLevel::kInfo, detail::concat(parts...));
}

template <typename... Parts>
void log_warning(const Parts&... parts) {
  log_line(LogLevel::kWarning, detail::concat(parts...));
}

template <typename... Parts>
void log_error(const Parts&... parts) {
  log_line(LogLevel::kError, detail::concat(parts...));
}

/// True on the rank that speaks for the job.
bool is_log_rank_zero();

} // namespace tessera
