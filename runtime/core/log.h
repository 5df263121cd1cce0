// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rank-aware log lines on standard error.

#include "tessera/runtime/core/format.h"

#include <string_view>

namespace tessera {

enum class LogLevel { kInfo, kWarning, kError };

/// Names this process in its log lines; called once by init(). A world of one
/// logs without a rank.
void set_log_rank(int rank, int world_size);

/// Writes one line in a single write, so that ranks do not interleave.
void log_line(LogLevel level, std::string_view text);

/// Log formatted(format, arguments...) on every rank.
template <typename... Arguments>
void log_info(
    fmt::format_string<detail::Printable<Arguments>...> format,
    const Arguments&... arguments) {
  log_line(LogLevel::kInfo, formatted<Arguments...>(format, arguments...));
}

template <typename... Arguments>
void log_warning(
    fmt::format_string<detail::Printable<Arguments>...> format,
    const Arguments&... arguments) {
  log_line(LogLevel::kWarning, formatted<Arguments...>(format, arguments...));
}

template <typename... Arguments>
void log_error(
    fmt::format_string<detail::Printable<Arguments>...> format,
    const Arguments&... arguments) {
  log_line(LogLevel::kError, formatted<Arguments...>(format, arguments...));
}

/// True on the rank that speaks for the job.
bool is_log_rank_zero();

} // namespace tessera
