// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/repeated_errors.h"

#include <algorithm>
#include <cstddef>

namespace tessera::runtime {

namespace {

// Limits; beyond these, errors are passed on unfiltered.
constexpr std::size_t kMostErrors = 10'000;
constexpr std::size_t kLongestError = 100'000;

constexpr std::string_view kOurs = "tessera: ";
constexpr std::string_view kRank = "rank ";
constexpr std::string_view kError = "error: ";

/// The text that log_error() was given, without the rank that log_line() adds;
/// empty for other lines.
std::string_view error_in(std::string_view line) {
  if (!line.starts_with(kOurs)) {
    return {};
  }
  line.remove_prefix(kOurs.size());
  if (line.starts_with(kRank)) {
    const size_t end = line.find(": ");
    line.remove_prefix(end == std::string_view::npos ? line.size() : end + 2);
  }
  return line.starts_with(kError) ? line : std::string_view();
}

} // namespace

std::string RepeatedErrors::without_repeated(
    int rank,
    std::string_view prefix,
    std::string_view lines) {
  std::string kept;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size() - 1) + 1;
    const std::string_view full = lines.substr(0, end);
    lines.remove_prefix(end);
    std::string_view line = full;
    if (line.starts_with(prefix)) {
      line.remove_prefix(prefix.size());
    }
    if (!is_repeated(rank, line)) {
      kept += full;
    }
  }
  return kept;
}

bool RepeatedErrors::is_repeated(int rank, std::string_view line) {
  const std::string_view error = error_in(line);
  if (error.empty() && (line.starts_with(kOurs) || !open_.contains(rank))) {
    open_.erase(rank);
    return false;
  }
  std::string& open = open_[rank];
  // A later line counts as repeated only after the same previous lines.
  open = error.empty() ? open + std::string(line) : std::string(error);
  if (open.size() > kLongestError) {
    open_.erase(rank);
    return false;
  }
  const auto found = errors_.find(open);
  if (found == errors_.end()) {
    if (errors_.size() < kMostErrors) {
      errors_.emplace(open, First{rank, {}, !error.empty()});
    }
    return false;
  }
  if (found->second.rank == rank) {
    return false;
  }
  found->second.others.insert(rank);
  return true;
}

std::vector<std::string> RepeatedErrors::summary() const {
  std::map<int, std::set<int>> others_of;
  for (const auto& [error, first] : errors_) {
    if (first.begins) {
      others_of[first.rank].insert(first.others.begin(), first.others.end());
    }
  }
  std::vector<std::string> lines;
  for (const auto& [rank, others] : others_of) {
    if (others.empty()) {
      continue;
    }
    std::string list;
    for (const int other : others) {
      list += (list.empty() ? "" : ", ") + std::to_string(other);
    }
    lines.push_back(
        (others.size() == 1 ? "rank " : "ranks ") + list +
        ": the same error as rank " + std::to_string(rank));
  }
  return lines;
}

} // namespace tessera::runtime
