// SPDX-License-Identifier: Apache-2.0
#pragma once
// Losses that keep routers of experts even and calm.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/parallel/expert_router.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// What the losses are made of: sums over tokens, which add up over layers and
/// ranks. Undefined for no tokens.
struct RouterSums {
  at::Tensor choices; ///< [experts]: how often each was chosen; no gradient
  at::Tensor shares; ///< [experts]: of the softmax of the logits
  at::Tensor squares; ///< scalar: of logsumexp(logits)
  at::Tensor tokens; ///< scalar: how many; no gradient

  bool defined() const {
    return tokens.defined();
  }
};

/// @param logits [tokens, experts]. @param routing of them; choices count
///     whether or not they were kept.
/// @param counts [tokens], 0 for tokens that do not count (padding); undefined:
///     all do.
RouterSums router_sums(
    const at::Tensor& logits,
    const ExpertRouting& routing,
    const at::Tensor& counts = {});

/// All together, as if they were of one router.
RouterSums total(const std::vector<RouterSums>& sums);

/// As one tensor [2 experts + 2], which pipeline stages can hand on, and back.
/// Undefined sums are an undefined tensor.
at::Tensor packed(const RouterSums& sums);
RouterSums unpacked(const at::Tensor& sums);

/// All ranks' together. The gradient is that of a loss whose gradients will be
/// averaged over the group's ranks, as mean_over_group() has it. One
/// collective, blocks.
RouterSums total_over_group(const RouterSums& sums, Communicator& group);

/// experts * sum over experts of the share of choices and the mean of the
/// softmax (arXiv:2101.03961, arXiv:2006.16668; with k choices a token the
/// shares of choices add up to k): k where all are used alike, more otherwise.
at::Tensor load_balancing_loss(const RouterSums& sums);

/// The mean of logsumexp(logits)^2 (arXiv:2202.08906), which keeps logits
/// small.
at::Tensor router_z_loss(const RouterSums& sums);

} // namespace tessera
