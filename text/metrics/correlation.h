// SPDX-License-Identifier: Apache-2.0
#pragma once
// pearson() and spearman() are correlations of two lists of numbers.

#include <vector>

namespace tessera::text {

/// Pearson's correlation; NaN if a list is constant or has fewer than two
/// numbers. @throws tessera::Error if the lists differ in length.
double pearson(const std::vector<double>& a, const std::vector<double>& b);

/// Pearson's correlation of the ranks; equal numbers share their mean rank.
double spearman(const std::vector<double>& a, const std::vector<double>& b);

} // namespace tessera::text
