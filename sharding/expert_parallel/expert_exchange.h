// SPDX-License-Identifier: Apache-2.0
#pragma once
// `apply_experts()` routes tokens to experts, some of them on other ranks, and
// combines the results.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/expert_parallel/expert_router.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace tessera::sharding {

/// The experts [begin, begin + length) of a rank.
struct ExpertRange {
  int64_t begin = 0;
  int64_t length = 0;
};

/// @throws tessera::Error when the number of experts is not a multiple of the
///   number of ranks, naming the numbers of ranks that are possible.
ExpertRange local_experts(int64_t experts, int rank, int ranks);

/// Applies expert number `local` of this rank (from 0) to rows [n, features]
/// and returns a tensor of the same size. n may be 0.
using ExpertFunction =
    std::function<at::Tensor(int64_t local, const at::Tensor& rows)>;

/// [Note: gradients of experts] Ranks of an expert group have different tokens.
/// The gradient of an expert's parameters sums contributions from all of them,
/// whereas that of any other parameter has those of one rank. To make both
/// averages equivalent (experts over ParallelGroup::kSameExperts, the others
/// over kGradients), the gradients of an expert's parameters are divided by the
/// size of the group; those of its tokens are not.

/// Returns for each token the sum of weight * expert(token) over its kept
/// choices; dropped choices contribute 0. Exact: with a group, the result is
/// that of one rank that has all experts; the rows of an expert are ordered by
/// rank, then by token. Deterministic.
///
/// With n ranks, T tokens on each and k choices per token, a rank on average
/// sends (n-1)/n of k T rows and as many back, in forward and in backward, and
/// holds k T rows of inputs and outputs of its experts. Dropless experts may
/// get up to n T rows: memory depends on the routing.
///
/// Waits once for the device, for the number of rows per expert, which is
/// data-dependent; backward does not wait. With a group, it is collective, in
/// backward too; every rank calls all of its experts in order, and the number
/// of tokens may differ between ranks. Experts that no token chose have
/// gradients of zeros, as weights have that experts share in one tensor: in any
/// layout an optimizer moves them by their momentum. Without a group and
/// without gradients they are not called.
/// @param tokens [tokens, features].
/// @param routing of these tokens over `experts`.
/// @param group must outlive the graph; null: all experts are on this rank.
/// @throws tessera::Error when sizes do not match each other or the group.
at::Tensor apply_experts(
    const at::Tensor& tokens,
    const ExpertRouting& routing,
    int64_t experts,
    Communicator* group,
    const ExpertFunction& expert);

} // namespace tessera::sharding
