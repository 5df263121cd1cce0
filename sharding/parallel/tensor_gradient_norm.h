// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms of gradients of which each rank has a part.

#include "tessera/runtime/comm/communicator.h"

#include <torch/nn/module.h>

namespace tessera {

/// The p-norm of all gradients in `module`, as one rank with the whole module
/// would find it: parts (parts_in()) are added up over `group`; what every rank
/// has whole counts once. Parameters without a gradient count as zero.
/// Collective; blocks.
/// @param p above 0; infinity for the largest magnitude.
/// @return the same on all ranks; NaN or infinity when a gradient has one.
double tensor_gradient_norm(
    const torch::nn::Module& module,
    Communicator& group,
    double p = 2);

/// Scales all gradients so that their norm is at most `max_norm`; where the
/// norm is not finite they are left as they are. Collective; blocks.
/// @return the norm before.
double clip_tensor_gradients(
    const torch::nn::Module& module,
    Communicator& group,
    double max_norm,
    double p = 2);

} // namespace tessera
