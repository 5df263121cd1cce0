// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/metrics/correlation.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tessera::text {

namespace {

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(values.size());
}

/// The rank of each number, from 1.
std::vector<double> mean_ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return values[a] < values[b];
  });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) {
      ++end;
    }
    for (size_t i = begin; i < end; ++i) {
      ranks[order[i]] = static_cast<double>(begin + 1 + end) / 2;
    }
    begin = end;
  }
  return ranks;
}

} // namespace

double pearson(const std::vector<double>& a, const std::vector<double>& b) {
  TESSERA_CHECK(
      a.size() == b.size(),
      "a correlation of {} numbers with {}; give as many",
      a.size(),
      b.size());
  const double mean_a = mean_of(a);
  const double mean_b = mean_of(b);
  double covariance = 0;
  double variance_a = 0;
  double variance_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    covariance += (a[i] - mean_a) * (b[i] - mean_b);
    variance_a += (a[i] - mean_a) * (a[i] - mean_a);
    variance_b += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return variance_a > 0 && variance_b > 0
             ? covariance / std::sqrt(variance_a * variance_b)
             : std::numeric_limits<double>::quiet_NaN();
}

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  return pearson(mean_ranks(a), mean_ranks(b));
}

} // namespace tessera::text
