// SPDX-License-Identifier: Apache-2.0
#pragma once
// `softmax_loss_()` turns logits into their gradient in place, with the loss of
// each row.
//
// [Note: softmax loss] With lse = log of the sum of exp(logits) over the C
// classes, x_j the logits, w_j the class weights (1 without), t the target and
// e the label smoothing, the loss of a row is
//
//     (1 - e) w_t (lse - x_t) + e / C sum_j w_j (lse - x_j)
//     + z_loss w_t lse^2
//
// (arXiv:1512.00567; z_loss: arXiv:2204.02311), as LibTorch's cross_entropy
// computes it. With w_t in the last term, too, a mean over the weights of
// targets is the same for weights that are all twice as large. The kernels read
// a row of logits from memory once and write its gradient over it: 4 bytes a
// logit of 16 bits, where LibTorch's operators move 20 and keep a float32 copy.
// Sums are in float32. They are an operator, tessera::softmax_loss_, so that
// dry runs, profiles and devices see it.

#include "tessera/runtime/kernels/kernel_trial.h"
#include "tessera/runtime/kernels/softmax_loss_rows.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::runtime {

struct SoftmaxLossOptions {
  /// Rows with this target have the loss and the gradient 0, whatever their
  /// logits are.
  int64_t ignore_index = -100;
  double label_smoothing = 0; ///< share of the target spread over all classes
  double z_loss = 0; ///< coefficient of w_t lse^2
  at::Tensor class_weights; ///< [classes] float32, or undefined: ones
};

/// Whether softmax_loss_() takes logits of this dtype: float32 and 16 bits.
bool takes_softmax_loss(at::ScalarType dtype);

/// Not differentiable. Deterministic; runs on the current stream and does not
/// synchronize.
/// @param logits [rows, columns] of a dtype of takes_softmax_loss(), rows
///   without gaps; the first `classes` columns. With `gradients` they become
///   scale times the gradient of the sum of losses, and further columns zero;
///   without, they stay.
/// @param losses [rows] float32; written, not scaled. NaN for a target that is
///   no class.
/// @param targets [rows] int64, contiguous.
/// @param scale one float32 number on the device.
/// @throws tessera::Error on other shapes or dtypes.
void softmax_loss_(
    const at::Tensor& logits,
    const at::Tensor& losses,
    const at::Tensor& targets,
    const at::Tensor& scale,
    int64_t classes,
    const SoftmaxLossOptions& options,
    bool gradients);

/// The same composed of LibTorch's operators, for float64 too, in which losses
/// and scale then are; targets that are no class are an error of the operators.
void softmax_loss_by_operators(
    const at::Tensor& logits,
    const at::Tensor& losses,
    const at::Tensor& targets,
    const at::Tensor& scale,
    int64_t classes,
    const SoftmaxLossOptions& options,
    bool gradients);

/// What the CUDA plugin registers: works on the current stream.
using SoftmaxLossLaunch = void(const SoftmaxLossRows& rows);
void register_softmax_loss(SoftmaxLossLaunch* launch);

/// The operator for the plugin's device.
void softmax_loss_cuda(
    const at::Tensor& logits,
    const at::Tensor& losses,
    const at::Tensor& targets,
    const at::Tensor& scale,
    const std::optional<at::Tensor>& class_weights,
    int64_t classes,
    int64_t ignore_index,
    double label_smoothing,
    double z_loss,
    bool gradients);

/// The checks of the kernel for logits of float32 (kNone) and 16 bits.
KernelTrial& softmax_loss_trial(LowPrecision type);

} // namespace tessera::runtime
