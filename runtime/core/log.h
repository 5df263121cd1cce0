// SPDX-License-Identifier: Apache-2.0
#pragma once
// `log_info()`, `log_warning()` and `log_error()` write lines to standard
// error.

#include "tessera/runtime/core/format.h"

#include <string_view>

namespace tessera {

enum class LogLevel { kInfo, kWarning, kError };

/// Sets the rank that warnings and errors show; init() calls it once. With a
/// world size of 1 they show no rank.
void set_log_rank(int rank, int world_size);

/// Writes one line with a single write(), so that lines of several ranks do not
/// interleave.
void log_line(LogLevel level, std::string_view text);

/// Log formatted(format, arguments...) on whichever rank calls them.
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

/// True on the rank that logs on behalf of the whole job.
bool is_log_rank_zero();

} // namespace tessera
