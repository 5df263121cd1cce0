// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/inspection/tensor_statistics.h"

#include "tessera/sharding/paging/pager.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

namespace tessera::sharding {

namespace {

// Parts are converted to float64 this many elements at a time.
constexpr int64_t kPart = int64_t{1} << 20;
constexpr int64_t kFields = 5;

TensorStatistics of_part(const at::Tensor& values) {
  TensorStatistics statistics;
  statistics.count = values.numel();
  const auto [min, max] = at::aminmax(values);
  statistics.min = min.item<double>();
  statistics.max = max.item<double>();
  const at::Tensor mean = values.mean();
  statistics.mean = mean.item<double>();
  statistics.squares = (values - mean).square().sum().item<double>();
  return statistics;
}

/// As std::min or std::max, but propagates NaN.
template <typename Better>
double pick(double a, double b, Better better) {
  return std::isnan(a) || (!std::isnan(b) && !better(b, a)) ? a : b;
}

} // namespace

void TensorStatistics::add(const at::Tensor& part, double factor) {
  const c10::NoGradGuard no_grad;
  const at::Tensor flat = part.detach().reshape({-1});
  for (int64_t first = 0; first < flat.numel(); first += kPart) {
    const at::Tensor some =
        flat.narrow(0, first, std::min(kPart, flat.numel() - first));
    merge(of_part(some.to(at::kDouble) * factor));
  }
}

void TensorStatistics::merge(const TensorStatistics& other) {
  if (other.count == 0) {
    return;
  }
  if (count == 0) {
    *this = other;
    return;
  }
  // Chan, Golub and LeVeque (1979).
  const auto total = static_cast<double>(count + other.count);
  const double weight = static_cast<double>(other.count) / total;
  const double apart = other.mean - mean;
  squares +=
      other.squares + apart * apart * weight * static_cast<double>(count);
  mean += apart * weight;
  min = pick(min, other.min, std::less<>());
  max = pick(max, other.max, std::greater<>());
  count += other.count;
}

double TensorStatistics::std() const {
  return count < 2 ? std::numeric_limits<double>::quiet_NaN()
                   : std::sqrt(squares / static_cast<double>(count - 1));
}

double TensorStatistics::norm() const {
  return std::sqrt(squares + mean * mean * static_cast<double>(count));
}

namespace {

/// @param sum adds up a table over `size` ranks.
void merge_tables(
    std::vector<TensorStatistics>& statistics,
    const std::vector<std::vector<int>>& ranks,
    int rank,
    int size,
    const std::function<void(const at::Tensor&)>& sum) {
  const auto items = static_cast<int64_t>(statistics.size());
  // Every rank fills its row; the sum over the ranks is the whole table.
  const at::Tensor table = at::zeros({size, items, kFields}, at::kDouble);
  auto* rows = table.mutable_data_ptr<double>();
  double* self_sums = rows + rank * items * kFields;
  for (const TensorStatistics& item : statistics) {
    const double fields[kFields] = {
        static_cast<double>(item.count),
        item.min,
        item.max,
        item.mean,
        item.squares};
    self_sums = std::copy(fields, fields + kFields, self_sums);
  }
  sum(table);
  const double* next = rows;
  std::fill(statistics.begin(), statistics.end(), TensorStatistics{});
  for (int other = 0; other < size; ++other) {
    for (size_t i = 0; i < statistics.size(); ++i, next += kFields) {
      const bool counts =
          ranks.empty() || ranks[i].empty() ||
          std::find(ranks[i].begin(), ranks[i].end(), other) != ranks[i].end();
      if (counts) {
        statistics[i].merge(
            {static_cast<int64_t>(next[0]),
             next[1],
             next[2],
             next[3],
             next[4]});
      }
    }
  }
}

} // namespace

void merge_over_ranks(
    Pager& pager,
    std::vector<TensorStatistics>& statistics,
    const std::vector<std::vector<int>>& ranks) {
  merge_tables(
      statistics,
      ranks,
      pager.ranks().rank(),
      pager.ranks().size(),
      [&](const at::Tensor& table) { pager.sum_over_ranks(table); });
}

void merge_over_tensor_ranks(
    Pager& pager,
    std::vector<TensorStatistics>& statistics) {
  Communicator* ranks = pager.ranks().tensor_control();
  if (ranks == nullptr) {
    return;
  }
  merge_tables(
      statistics,
      {},
      ranks->rank(),
      ranks->size(),
      [&](const at::Tensor& table) {
        ranks->all_reduce_sum(table, "statistics of the parts of layers")
            .wait(pager.ranks().watch_failures());
      });
}

} // namespace tessera::sharding
