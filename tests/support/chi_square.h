// SPDX-License-Identifier: Apache-2.0
#pragma once
// expect_drawn() compares how often outcomes were drawn with their chances.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

namespace tessera::tests {

/// Fails if chances like these give counts like these in less than 0.1 % of all
/// experiments (Pearson's chi-square test), or if an outcome without a chance
/// was drawn. Outcomes that are expected fewer than 5 times count together.
template <typename Outcome>
void expect_drawn(
    const std::map<Outcome, double>& chances,
    const std::map<Outcome, int64_t>& counts,
    const std::string& label) {
  constexpr double kFewest = 5;
  double draws = 0;
  for (const auto& [outcome, count] : counts) {
    draws += static_cast<double>(count);
    const auto found = chances.find(outcome);
    EXPECT_TRUE(count == 0 || (found != chances.end() && found->second > 0))
        << label << ": drawn " << count
        << " times: " << ::testing::PrintToString(outcome);
  }
  double chi_square = 0;
  int64_t kinds = 0;
  double rare_expected = 0;
  double rare = 0;
  const auto add = [&](double count, double expected) {
    chi_square += (count - expected) * (count - expected) / expected;
    ++kinds;
  };
  for (const auto& [outcome, chance] : chances) {
    const auto found = counts.find(outcome);
    const double count =
        found == counts.end() ? 0 : static_cast<double>(found->second);
    if (chance * draws < kFewest) {
      rare += count;
      rare_expected += chance * draws;
    } else {
      add(count, chance * draws);
    }
  }
  if (rare_expected >= kFewest) {
    add(rare, rare_expected);
  }
  // Of a chi-square distribution, 0.1 % is above (Wilson and Hilferty).
  const auto free = static_cast<double>(kinds - 1);
  const double part = 2 / (9 * free);
  const double limit = free * std::pow(1 - part + 3.09 * std::sqrt(part), 3.0);
  EXPECT_LT(chi_square, limit) << label << ", " << kinds << " outcomes";
}

} // namespace tessera::tests
