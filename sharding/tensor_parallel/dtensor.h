// SPDX-License-Identifier: Apache-2.0
#pragma once
// `full_tensor()`, `local_tensor()`, `shard_tensor()` and `from_local_tensor()`
// convert activations of which each tensor-parallel rank holds a part, and
// which look whole to the code of a model.
//
// [Note: DTensors] A partitioned layer returns a part of its features, heads or
// sequences. The code behind it was written for the whole: it views features as
// heads, adds masks, drops elements, computes losses. So the part is wrapped in
// a tensor with the sizes of the whole and without memory. Operators on it are
// dispatched to our kernels (kDividedKey, above autograd), of which there are
// four kinds:
//
// | operator                     | computed                                  |
// | works element by element     | on the parts; other operands are divided  |
// |                              | in the same way                           |
// | has a rule (dtensor_*.cpp):  | on the parts, with the communication and  |
// | views, products, reductions, | the gradients that it needs               |
// | attention, dropout, losses   |                                           |
// | consists of other operators  | by those                                  |
// | any other                    | on the whole, which is gathered           |
//
// So what a model computes does not depend on the rules; they only make it
// cheaper. Results that are whole on all ranks are ordinary tensors. An
// ordinary tensor is whole (Replicate in [Note: placements]); where it meets a
// part and is not divided itself, like the weight of a norm, its gradient is
// summed over the ranks.
//
// Autograd records the operators on parts. The wrapper has a node of its own
// that leads to its part, for functions that autograd applies to the wrapper:
// custom functions, hooks, retain_grad().

#include "tessera/sharding/tensor_parallel/tensor_parallel.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// Whether each rank holds a part of `x` ([Note: DTensors]).
bool is_dtensor(const at::Tensor& x);

/// Returns all of `x`; itself if it is an ordinary tensor. Differentiable.
/// Collective over the tensor-parallel group if `x` is divided.
at::Tensor full_tensor(const at::Tensor& x);

/// Returns this rank's part of `x`; itself if it is an ordinary tensor.
/// Differentiable: the gradient is that of the part. Not collective.
at::Tensor local_tensor(const at::Tensor& x);

/// Returns a DTensor of which each rank holds a part of dimension `dim` of
/// `full`, which all ranks have; `full` itself if it is a DTensor or the
/// group has one rank. Differentiable. Not collective, but its backward is.
/// @throws tessera::Error when the dimension has fewer elements than there are
///   ranks.
at::Tensor shard_tensor(
    const at::Tensor& full,
    int64_t dim,
    const TensorParallel& tp);

/// Returns the DTensor of which this rank holds `local`, one of equal parts of
/// dimension `dim`: what local_tensor() was taken of, for a pipeline stage that
/// has received it. `local` itself if the group has one rank. Differentiable.
/// Not collective.
at::Tensor from_local_tensor(
    const at::Tensor& local,
    int64_t dim,
    const TensorParallel& tp);

} // namespace tessera
