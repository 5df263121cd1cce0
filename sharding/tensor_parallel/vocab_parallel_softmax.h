// SPDX-License-Identifier: Apache-2.0
#pragma once
// `vocab_parallel_softmax_loss_()` turns logits of which each rank has some of
// the classes into their gradient in place ([Note: softmax loss]).

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/kernels/softmax_loss.h"
#include "tessera/sharding/tensors/dim_split.h"

#include <ATen/core/Tensor.h>

namespace tessera::sharding {

/// runtime::softmax_loss_() for this rank's partition of the logits: each rank
/// sends four numbers a row, in one all-gather. Not differentiable. Collective;
/// blocks.
/// @param logits [rows, columns], of which the first are this rank's classes;
///   become their gradient times `scale` if `gradients`.
/// @param losses [rows] float32, or float64 for float64 logits; written, equal
///   on all ranks. 0 for targets that are ignored.
/// @param targets [rows] int64, equal on all ranks.
/// @param scale one number of the dtype of `losses`.
/// @param options class weights are whole, of the dtype of `losses`.
/// @param fused by our kernels, which are for the CPU; otherwise by LibTorch's
///   operators.
void vocab_parallel_softmax_loss_(
    const at::Tensor& logits,
    const at::Tensor& losses,
    const at::Tensor& targets,
    const at::Tensor& scale,
    const DimSplit& vocab,
    Communicator& group,
    const runtime::SoftmaxLossOptions& options,
    bool gradients,
    bool fused);

} // namespace tessera::sharding
