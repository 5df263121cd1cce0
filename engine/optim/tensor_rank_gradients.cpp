// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/tensor_rank_gradients.h"

#include "tessera/runtime/core/error.h"

#include <ATen/core/Formatting.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace tessera::engine {

namespace {

/// By which norms of such gradients may differ: far above what the order of a
/// sum changes, far below what another batch does.
constexpr double kRelativeTolerance = 1e-3;

constexpr double kAbsent = -std::numeric_limits<double>::infinity();
constexpr double kNotFinite = std::numeric_limits<double>::infinity();

/// Gradients of parameters that every tensor-parallel rank has whole.
struct FullGradients {
  double norm = 0; ///< over the ranks that have the same part of the model
  std::string first; ///< the name of one of them; empty: there are none
};

FullGradients full_gradients(
    sharding::Pager& pager,
    sharding::GradientSums& sums) {
  FullGradients found;
  double squares = 0;
  for (const auto& sum : sums.all(pager.pages(), 2)) {
    const sharding::ParameterRecord& record =
        pager.pages().parameter(sum.parameter).record;
    // Experts are on some of the ranks, and are divided in their own way.
    if (record.spec.is_divided() || sum.page.of_experts) {
      continue;
    }
    squares += sum.of_powers * sum.factor * sum.factor;
    if (found.first.empty()) {
      found.first = record.name();
    }
  }
  const at::Tensor total = at::tensor({squares}, at::kDouble);
  pager.ranks().sum(total);
  found.norm = std::sqrt(total.item<double>());
  return found;
}

} // namespace

void check_tensor_rank_gradients(
    sharding::Pager& pager,
    sharding::GradientSums& sums) {
  const DeviceMesh& model = pager.ranks().model();
  const FullGradients local = full_gradients(pager, sums);
  // All ranks of the model see all norms, so that they decide alike.
  const at::Tensor norms = at::full({model.size()}, kAbsent, at::kDouble);
  norms[model.position_of(model.rank())] =
      std::isfinite(local.norm) ? local.norm : kNotFinite;
  pager.ranks().max_over_parts(norms);
  const auto* values = norms.const_data_ptr<double>();
  if (std::find(values, values + norms.numel(), kNotFinite) !=
      values + norms.numel()) {
    return;
  }
  for (const DeviceMesh& group : model.slices({kTensorAxis})) {
    double least = kNotFinite;
    double most = 0;
    for (const int rank : group.ranks()) {
      const double norm = values[model.position_of(rank)];
      if (norm != kAbsent) { // as in a simulated job
        least = std::min(least, norm);
        most = std::max(most, norm);
      }
    }
    TESSERA_CHECK(
        most - std::min(least, most) <= kRelativeTolerance * most,
        "Engine::step: ranks {}, which divide layers among them (tensor parallelism), have computed different gradients of parameters that each of them has whole{}: their norm is between {} and {}. These ranks must compute with the same batch and the same random numbers. Choose batches, and seeds, by the index among ParallelGroup::kBatches (Python: engine.batches), not by the rank.",
        at::ArrayRef<int>(group.ranks()),
        local.first.empty() ? std::string() : ", as '" + local.first + "'",
        least,
        most);
  }
}

} // namespace tessera::engine
