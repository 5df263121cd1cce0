// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace tessera {

namespace {

/// As a launcher says it, before the process joins its job; 0 without one.
int launched_rank() {
  const char* const rank = std::getenv("RANK");
  return rank == nullptr ? 0 : std::atoi(rank);
}

// The rank is process-wide, like the log.
std::atomic<int> log_rank{-1}; // before set_log_rank()
std::atomic<int> log_world_size{1};

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kWarning:
      return "warning: ";
    case LogLevel::kError:
      return "error: ";
    case LogLevel::kInfo:
      break;
  }
  return "";
}

} // namespace

void set_log_rank(int rank, int world_size) {
  log_rank = rank;
  log_world_size = world_size;
}

bool is_log_rank_zero() {
  const int rank = log_rank;
  return (rank < 0 ? launched_rank() : rank) == 0;
}

void log_line(LogLevel level, std::string_view text) {
  std::string line = "tessera: ";
  if (log_world_size > 1 && level != LogLevel::kInfo) {
    line += "rank " + std::to_string(log_rank) + ": ";
  }
  line += level_name(level);
  // A name of the user's in a message does not move the cursor.
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_shown =
        (byte >= 0x20 && byte != 0x7f) || c == '\n' || c == '\t';
    line += is_shown ? std::string(1, c)
                     : formatted("\\x{:02x}", static_cast<unsigned>(byte));
  }
  line += '\n';
  // A failed write to the log is not an error.
  [[maybe_unused]] auto written =
      ::write(STDERR_FILENO, line.data(), line.size());
}

} // namespace tessera
