// SPDX-License-Identifier: Apache-2.0
#pragma once
// `reuse_spent_gradients()` lets operators of backward write their result over
// the gradient that they are given.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>

namespace tessera::runtime {

/// Replaces the kernels that backward calls for log_softmax, softmax, gelu,
/// relu, tanh and sigmoid, or puts LibTorch's back. Where nobody else holds the
/// gradient that arrives, they write over it: the loss of a language model then
/// needs two matrices of tokens x vocabulary in backward in place of three. The
/// bits are the same. (Autograd adds to such gradients in place, too.)
///
/// In the whole process. Idempotent. Do not call it while operators run.
/// @param device a device whose kernels LibTorch has loaded: those that it
///     loads later would take the place of these.
void reuse_spent_gradients(bool reuse, c10::DeviceType device);

/// What the last call said, or, before the first, what init() says by default:
/// true.
bool reuses_spent_gradients();

/// Whether backward's node of this name may write its result over its gradient.
/// @param kept the other tensor that it reads, with the sizes of the result.
/// @param dtype that of the result.
/// @param holders how many references to the gradient there are on its way from
///     autograd's engine to the operator that asks.
bool is_spent(
    const at::Tensor& gradient,
    const at::Tensor& kept,
    at::ScalarType dtype,
    const std::string& node,
    int64_t holders);

/// The operators' names ("aten::gelu_backward"), each with that of the node of
/// backward that calls it.
/// The gradient is the first argument and `kept` the second.
const std::map<std::string, std::string>& operators_over_gradients();

} // namespace tessera::runtime
