// SPDX-License-Identifier: Apache-2.0
#pragma once
// Auxiliary losses of mixture-of-experts routers: load balancing and z-loss.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/expert_parallel/expert_router.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::sharding {

/// The sums over tokens from which the losses are computed; they add up over
/// layers and ranks. Undefined if there are no tokens.
struct RouterSums {
  at::Tensor choices; ///< [experts]: how often each was chosen; no gradient
  at::Tensor shares; ///< [experts]: sum of softmax(logits)
  at::Tensor squares; ///< scalar: sum of logsumexp(logits)^2
  at::Tensor tokens; ///< scalar: number of tokens; no gradient

  bool defined() const {
    return tokens.defined();
  }
};

/// @param logits [tokens, experts].
/// @param routing of these tokens; dropped choices count too.
/// @param counts [tokens], 0 for tokens that do not count (padding); undefined:
///   all count.
RouterSums router_sums(
    const at::Tensor& logits,
    const ExpertRouting& routing,
    const at::Tensor& counts = {});

/// Adds up the sums, as if they were those of one router.
RouterSums total(const std::vector<RouterSums>& sums);

/// Packs the sums into one tensor [2 experts + 2], which pipeline stages can
/// pass on; unpacked() is the inverse. Undefined sums give an undefined tensor.
at::Tensor packed(const RouterSums& sums);
RouterSums unpacked(const at::Tensor& sums);

/// Sums over the ranks. The gradient is that of a loss whose gradients will be
/// averaged over the group's ranks, as for mean_over_group(). One collective;
/// blocks.
RouterSums total_over_group(const RouterSums& sums, Communicator& group);

/// experts * sum over experts of (share of choices) * (mean softmax)
/// (arXiv:2101.03961, arXiv:2006.16668); with k choices per token the shares
/// sum to k. The result is k if all experts are used equally, larger otherwise.
at::Tensor load_balancing_loss(const RouterSums& sums);

/// Mean of logsumexp(logits)^2 (arXiv:2202.08906), which keeps logits small.
at::Tensor router_z_loss(const RouterSums& sums);

} // namespace tessera::sharding
