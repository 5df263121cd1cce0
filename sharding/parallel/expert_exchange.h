// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens on their way to experts, on other ranks too, and back.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/parallel/expert_router.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace tessera {

/// Experts [begin, begin + length) are on a rank.
struct ExpertRange {
  int64_t begin = 0;
  int64_t length = 0;
};

/// @throws tessera::Error when the ranks do not divide the experts, naming the
///     numbers of ranks that do.
ExpertRange own_experts(int64_t experts, int rank, int ranks);

/// What expert `local` of this rank (from 0) makes of rows [n, features]: as
/// many, of the same size. n may be 0.
using ExpertFunction =
    std::function<at::Tensor(int64_t local, const at::Tensor& rows)>;

/// [Note: gradients of experts] Ranks of an expert group have different tokens.
/// An expert's gradient has the share of all of them, where every other
/// parameter's has that of one rank. To average both alike (the ones over
/// ParallelGroup::kSameExperts, the others over kGradients), what arrives at an
/// expert's parameters is divided by the size of the group; what goes on to the
/// tokens is not.

/// For each token the sum of weight * expert(token) over its kept choices; 0 of
/// what was dropped. Exact, and with a group the same as on one rank that has
/// all experts; rows of an expert come by rank, then in the order of tokens.
/// Deterministic.
///
/// Of n ranks with T tokens each and k choices a token, a rank sends on average
/// (n-1)/n of k T rows there and as many back, forward and backward, and
/// has k T rows of its experts' inputs and results. Dropless experts may get up
/// to n T rows: memory follows the routing.
///
/// Waits for the device: how many rows an expert has is not known before. With
/// a group it is collective, in backward too, every expert is called on every
/// rank in the same order, and the ranks' tokens differ in number as they like.
/// Without one, experts that no token chose are not called.
/// @param tokens [tokens, features].
/// @param routing of these tokens over `experts`.
/// @param group outlives the graph; null: all experts are here.
/// @throws tessera::Error on sizes that do not fit each other or the group.
at::Tensor apply_experts(
    const at::Tensor& tokens,
    const ExpertRouting& routing,
    int64_t experts,
    Communicator* group,
    const ExpertFunction& expert);

} // namespace tessera
