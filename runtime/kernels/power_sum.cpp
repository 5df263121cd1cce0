// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/power_sum.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/operator_tensors.h"
#include "tessera/runtime/kernels/target_clones.h"
#include "tessera/runtime/kernels/update_cpu.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace tessera::runtime {

namespace {

// Elements that one thread adds up in sequence.
constexpr int64_t kChunk = 1 << 15;
static_assert(kUpdateChunk % kChunk == 0);
// Independent partial sums, so that the compiler can use vector registers
// without changing the order of a sum.
constexpr int64_t kLanes = 16;

double sum_of(const std::array<double, kLanes>& lanes) {
  double total = 0;
  for (const double lane : lanes) {
    total += lane;
  }
  return total;
}

template <typename Scalar>
TESSERA_CLONES double chunk_of_squares(const Scalar* values, int64_t count) {
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    lanes[0] += value * value;
  }
  return sum_of(lanes);
}

template <typename Scalar>
double chunk_of_powers(const Scalar* values, int64_t count, double p) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    total += std::pow(std::abs(static_cast<double>(values[i])), p);
  }
  return total;
}

template <typename Scalar>
double chunk_maximum(const Scalar* values, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double value = std::abs(static_cast<double>(values[i]));
    // Written so that a NaN is kept.
    largest = largest >= value || std::isnan(largest) ? largest : value;
  }
  return largest;
}

template <typename Scalar>
double chunk_sum(const Scalar* values, int64_t count, double p) {
  if (p == 2) {
    return chunk_of_squares(values, count);
  }
  return std::isinf(p) ? chunk_maximum(values, count)
                       : chunk_of_powers(values, count, p);
}

double combined(double total, double more, double p) {
  if (!std::isinf(p)) {
    return total + more;
  }
  return total >= more || std::isnan(total) ? total : more;
}

/// Sums 16-bit values, widened in pieces that stay in the first-level cache.
double chunk_sum(
    const uint16_t* bits,
    LowPrecision format,
    int64_t count,
    double p) {
  constexpr int64_t kPart = 1024;
  std::array<float, kPart> values;
  double total = 0;
  for (int64_t i = 0; i < count; i += kPart) {
    const int64_t part = std::min(kPart, count - i);
    widen_cpu(best_isa(), bits + i, format, part, values.data());
    total = combined(total, chunk_sum(values.data(), part, p), p);
  }
  return total;
}

double chunk_sum(const at::Tensor& values, int64_t first, double p) {
  const int64_t count = std::min(kChunk, values.numel() - first);
  const void* data = values.const_data_ptr();
  switch (values.scalar_type()) {
    case at::kDouble:
      return chunk_sum(static_cast<const double*>(data) + first, count, p);
    case at::kFloat:
      return chunk_sum(static_cast<const float*>(data) + first, count, p);
    default:
      return chunk_sum(
          static_cast<const uint16_t*>(data) + first,
          detail::low_precision_of(values),
          count,
          p);
  }
}

double power_sum_cpu(const at::Tensor& values, double p) {
  const int64_t numel = values.numel();
  const int64_t chunks = (numel + kChunk - 1) / kChunk;
  std::vector<double> sums(static_cast<size_t>(chunks));
  const auto range = [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kChunk) {
      sums[static_cast<size_t>(first / kChunk)] = chunk_sum(values, first, p);
    }
    return true;
  };
  run_cpu_updates({{numel, range}});
  double total = 0;
  for (const double sum : sums) {
    total = combined(total, sum, p);
  }
  return total;
}

void check(const at::Tensor& values, double p) {
  TESSERA_CHECK(
      values.dim() == 1 && values.is_contiguous() &&
          (values.scalar_type() == at::kDouble ||
           values.scalar_type() == at::kFloat ||
           values.scalar_type() == at::kBFloat16 ||
           values.scalar_type() == at::kHalf),
      "power_sum: the values are {} of shape {}; they must be flat and contiguous, of type Double, Float, BFloat16 or Half.",
      values.toString(),
      values.sizes());
  TESSERA_CHECK(p > 0, "power_sum: p is {}; it must be above 0.", p);
}

} // namespace

PowerSums::PowerSums(const std::vector<at::Tensor>& segments, double p)
    : p_(p), sums_(segments.size(), 0.0) {
  std::vector<at::Tensor> on_device;
  DryKernel kernel("tessera::power_sums");
  for (size_t i = 0; i < segments.size(); ++i) {
    check(segments[i], p);
    if (segments[i].numel() == 0) {
      continue;
    }
    if (is_dry_memory(segments[i].const_data_ptr())) {
      kernel.reads(segments[i]);
      continue;
    }
    if (segments[i].is_cpu()) {
      sums_[i] = power_sum_cpu(segments[i], p);
    } else {
      on_device.push_back(segments[i]);
      positions_.push_back(i);
    }
  }
  if (on_device.empty()) {
    return;
  }
  // LibTorch does not accept a sum less precise than its elements.
  const bool any_double =
      std::any_of(on_device.begin(), on_device.end(), [](const auto& segment) {
        return segment.scalar_type() == at::kDouble;
      });
  norms_ = at::stack(at::_foreach_norm(
                         on_device, p, any_double ? at::kDouble : at::kFloat))
               .to(at::kDouble);
}

std::vector<std::vector<double>> PowerSums::wait(
    const std::vector<const PowerSums*>& pending) {
  std::vector<at::Tensor> norms;
  std::vector<std::vector<double>> sums;
  for (const PowerSums* some : pending) {
    sums.push_back(some->sums_);
    if (some->norms_.defined()) {
      norms.push_back(some->norms_);
    }
  }
  if (norms.empty()) {
    return sums;
  }
  const at::Tensor all = at::cat(norms).to(at::kCPU);
  const auto* value = all.const_data_ptr<double>();
  for (size_t k = 0; k < pending.size(); ++k) {
    for (const size_t position : pending[k]->positions_) {
      const double p = pending[k]->p_;
      sums[k][position] = std::isinf(p) ? *value : std::pow(*value, p);
      ++value;
    }
  }
  return sums;
}

} // namespace tessera::runtime
