// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/suggest.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera::runtime {

namespace {

constexpr size_t kShownNames = 3;
/// Distances are not computed for more names, to bound the time for a message.
constexpr size_t kMeasuredNames = 5000;

} // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table suffice: a swap looks back two rows.
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    last[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string nearest_name(
    std::string_view name,
    std::span<const std::string> candidates) {
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const size_t limit = std::max(name.size(), candidate.size()) / 3;
    const size_t difference = std::max(name.size(), candidate.size()) -
                              std::min(name.size(), candidate.size());
    if (difference > limit) {
      continue; // Cheaper than filling the table, with the same result.
    }
    const size_t distance = edit_distance(name, candidate);
    if (distance <= limit && (best == nullptr || distance < best_distance)) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? std::string() : *best;
}

std::string nearest_names_hint(
    std::string_view name,
    std::span<const std::string> candidates) {
  std::vector<std::pair<size_t, const std::string*>> ranked;
  for (const std::string& candidate :
       candidates.first(std::min(candidates.size(), kMeasuredNames))) {
    if (!candidate.empty()) {
      ranked.emplace_back(edit_distance(name, candidate), &candidate);
    }
  }
  std::stable_sort(
      ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
        return a.first < b.first;
      });
  std::vector<std::string> shown;
  for (const auto& [distance, candidate] : ranked) {
    if (shown.size() < kShownNames &&
        std::find(shown.begin(), shown.end(), *candidate) == shown.end()) {
      shown.push_back(*candidate);
    }
  }
  std::string text;
  for (const std::string& candidate : shown) {
    text += (text.empty() ? "" : ", ") + ("'" + candidate + "'");
  }
  if (shown.empty()) {
    return "";
  }
  return (shown.size() == 1 ? "; the nearest is " : "; the nearest are ") +
         text;
}

std::string join_names(std::span<const std::string> names) {
  std::string list;
  for (const std::string& name : names) {
    list += (list.empty() ? "" : ", ") + name;
  }
  return list;
}

} // namespace tessera::runtime
