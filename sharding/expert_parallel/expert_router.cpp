// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/expert_parallel/expert_router.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace tessera::sharding {

namespace {

/// @param chosen int64 [tokens, k].
at::Tensor kept_within(
    const at::Tensor& chosen,
    int64_t experts,
    int64_t capacity) {
  // First choices of all tokens, then second choices.
  const at::Tensor flat = chosen.t().flatten();
  const auto [sorted, order] =
      at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor counts = count_choices(flat, experts);
  const at::Tensor begins = counts.cumsum(0) - counts;
  const at::Tensor positions =
      at::arange(flat.size(0), flat.options()) - begins.index_select(0, sorted);
  const at::Tensor kept = at::empty_like(flat, at::kBool);
  kept.index_copy_(0, order, positions < capacity);
  return kept.view({chosen.size(1), chosen.size(0)}).t().contiguous();
}

/// In a dry run, where no router decides: as many tokens for each expert.
void balance_in_dry_run(at::Tensor& chosen, int64_t experts) {
  runtime::DryRun* run = runtime::DryRun::current();
  if (run == nullptr || !runtime::is_dry_memory(chosen.const_data_ptr())) {
    return;
  }
  run->assume("routers choose all experts equally often");
  const runtime::DryValues values;
  chosen = at::arange(chosen.numel(), chosen.options())
               .remainder(experts)
               .view(chosen.sizes());
}

} // namespace

void check(const RouterOptions& options, int64_t experts) {
  TESSERA_CHECK(
      options.experts_per_token >= 1 && options.experts_per_token <= experts,
      "a token uses {} of {} experts; it must use at least one and at most all of them",
      options.experts_per_token,
      experts);
  TESSERA_CHECK(
      !options.capacity_factor || (std::isfinite(*options.capacity_factor) &&
                                   *options.capacity_factor > 0),
      "the expert capacity factor is {}; it must be a number above 0, or not given, to drop nothing",
      options.capacity_factor.value_or(0));
}

at::Tensor count_choices(const at::Tensor& chosen, int64_t experts) {
  const at::Tensor flat = chosen.flatten();
  // Integers: sums in any order are the same.
  return at::zeros({experts}, flat.options())
      .scatter_add_(0, flat, at::ones_like(flat));
}

int64_t expert_capacity(
    int64_t tokens,
    int64_t experts,
    const RouterOptions& options) {
  const double share = static_cast<double>(tokens * options.experts_per_token) /
                       static_cast<double>(experts);
  return std::max(
      int64_t{1},
      static_cast<int64_t>(std::ceil(options.capacity_factor.value() * share)));
}

ExpertRouting route_tokens(
    const at::Tensor& logits,
    const RouterOptions& options) {
  TESSERA_CHECK(
      logits.dim() == 2,
      "route_tokens takes logits [tokens, experts], but got sizes {}",
      logits.sizes());
  const int64_t experts = logits.size(1);
  check(options, experts);
  const at::Tensor shares = at::softmax(
      logits,
      -1,
      logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  // Not topk(): its order of equal values is unspecified.
  auto [weights, chosen] =
      at::sort(shares, /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  ExpertRouting routing;
  routing.experts = chosen.narrow(1, 0, options.experts_per_token).contiguous();
  balance_in_dry_run(routing.experts, experts);
  routing.weights = weights.narrow(1, 0, options.experts_per_token);
  if (options.normalise) {
    routing.weights = routing.weights / routing.weights.sum(-1, true);
  }
  if (options.capacity_factor) {
    routing.kept = kept_within(
        routing.experts,
        experts,
        expert_capacity(logits.size(0), experts, options));
  }
  return routing;
}

} // namespace tessera::sharding
