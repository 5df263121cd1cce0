// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/expert_parallel/router_losses.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/collectives/group_operations.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

namespace tessera::sharding {

RouterSums router_sums(
    const at::Tensor& logits,
    const ExpertRouting& routing,
    const at::Tensor& counts) {
  const at::Tensor precise =
      logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  const at::Tensor weights =
      counts.defined() ? counts.flatten().to(precise.scalar_type())
                       : at::full({logits.size(0)}, 1.0, precise.options());
  TESSERA_CHECK(
      weights.size(0) == logits.size(0),
      "router_sums: logits of {} tokens, but {} numbers that say which of them count",
      logits.size(0),
      weights.size(0));
  RouterSums sums;
  sums.choices = at::zeros({logits.size(1)}, precise.options());
  for (const at::Tensor& choice : routing.experts.unbind(1)) {
    sums.choices.index_add_(0, choice, weights);
  }
  sums.shares = weights.matmul(at::softmax(precise, -1));
  sums.squares = weights.dot(at::logsumexp(precise, -1).square());
  sums.tokens = weights.sum();
  return sums;
}

RouterSums total(const std::vector<RouterSums>& sums) {
  RouterSums all;
  for (const RouterSums& one : sums) {
    if (!all.defined()) {
      all = one;
    } else if (one.defined()) {
      all = {
          all.choices + one.choices,
          all.shares + one.shares,
          all.squares + one.squares,
          all.tokens + one.tokens};
    }
  }
  return all;
}

at::Tensor packed(const RouterSums& sums) {
  return sums.defined() ? at::cat(
                              {sums.choices,
                               sums.shares,
                               sums.squares.unsqueeze(0),
                               sums.tokens.unsqueeze(0)})
                        : at::Tensor();
}

RouterSums unpacked(const at::Tensor& sums) {
  if (!sums.defined()) {
    return {};
  }
  const int64_t experts = sums.size(0) / 2 - 1;
  return {
      sums.narrow(0, 0, experts).detach(),
      sums.narrow(0, experts, experts),
      sums.select(0, 2 * experts),
      sums.select(0, 2 * experts + 1).detach()};
}

RouterSums total_over_group(const RouterSums& sums, Communicator& group) {
  return group.size() == 1
             ? sums
             : unpacked(mean_over_group(packed(sums) * group.size(), group));
}

at::Tensor load_balancing_loss(const RouterSums& sums) {
  return (sums.choices * sums.shares).sum() * sums.choices.size(0) /
         sums.tokens.square();
}

at::Tensor router_z_loss(const RouterSums& sums) {
  return sums.squares / sums.tokens;
}

} // namespace tessera::sharding
