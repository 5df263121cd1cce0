// SPDX-License-Identifier: Apache-2.0
#pragma once
// Losses of models, over the logits of all classes.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::zoo {

struct CrossEntropyOptions {
  int64_t ignore_index = -100; ///< targets that count for nothing
  double label_smoothing = 0; ///< share that is spread over all classes
  bool is_mean = true; ///< false: the sum, 0 where no target counts
};

/// Mean over the targets that count, in float32 or float64; NaN without any.
/// @param logits [..., classes]
/// @param targets [...] int64
at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const CrossEntropyOptions& options = {});

/// The targets of next-token prediction: each place gets the label of the one
/// behind it, the last one none. [B, S] int64 -> the same.
at::Tensor next_token_targets(
    const at::Tensor& labels,
    int64_t ignore_index = -100);

/// Mean over the rows of KL(teacher || student) of two softmaxes at a
/// temperature T, times T^2, so that gradients keep their size
/// (arXiv:1503.02531). Both [..., classes]; the teacher gets no gradient.
/// @param counts bool [...], the rows that count; undefined: all. NaN where
/// none
///     does.
at::Tensor distillation_loss(
    const at::Tensor& student_logits,
    const at::Tensor& teacher_logits,
    double temperature = 1,
    const at::Tensor& counts = {});

} // namespace tessera::zoo
