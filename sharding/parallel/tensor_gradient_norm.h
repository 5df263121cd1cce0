// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gradient norm and clipping for parameters that are partitioned over a
// tensor-parallel group.

#include "tessera/runtime/comm/communicator.h"

#include <torch/nn/module.h>

namespace tessera {

/// Returns the p-norm of all gradients in `module`, as a single rank with the
/// whole module would compute it: partitions (parts_in()) are summed over
/// `group`; parameters that are whole on every rank count once. Parameters
/// without a gradient count as zero. Collective; blocks.
/// @param p above 0; infinity for the largest magnitude.
/// @return equal on all ranks; NaN or infinity when a gradient contains one.
double tensor_gradient_norm(
    const torch::nn::Module& module,
    Communicator& group,
    double p = 2);

/// Scales all gradients so that their norm is at most `max_norm`; if the norm
/// is not finite, they are not changed. Collective; blocks.
/// @return the norm before scaling.
double clip_tensor_gradients(
    const torch::nn::Module& module,
    Communicator& group,
    double max_norm,
    double p = 2);

} // namespace tessera
