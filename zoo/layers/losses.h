// SPDX-License-Identifier: Apache-2.0
#pragma once
// Losses of models, on logits over all classes.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::zoo {

/// Key of ModelOutput::others: where a loss is the sum of two means over
/// different numbers of items, the second of them. See Head::loss_counts().
inline constexpr const char* kSecondLoss = "second_loss";

struct CrossEntropyOptions {
  int64_t ignore_index = -100; ///< targets that are ignored
  double label_smoothing = 0; ///< fraction that is spread over all classes
  bool is_mean = true; ///< false: the sum, 0 if all targets are ignored
};

/// Mean over the targets that are not ignored, in float32 or float64; 0, with
/// gradients of 0, if there are none.
/// @param logits [..., classes]
/// @param targets [...] int64
at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const CrossEntropyOptions& options = {});

/// The targets of next-token prediction: each position gets the next position's
/// label, the last one ignore_index. [B, S] int64 -> the same.
at::Tensor next_token_targets(
    const at::Tensor& labels,
    int64_t ignore_index = -100);

/// Knowledge distillation: the mean over rows of KL(teacher || student) of two
/// softmaxes at temperature T, times T^2, so that the scale of gradients does
/// not depend on T (arXiv:1503.02531). Both [..., classes]; the teacher gets no
/// gradient.
/// @param counts bool [...], the rows included; undefined: all. 0 if there
///     are none.
at::Tensor distillation_loss(
    const at::Tensor& student_logits,
    const at::Tensor& teacher_logits,
    double temperature = 1,
    const at::Tensor& counts = {});

} // namespace tessera::zoo
