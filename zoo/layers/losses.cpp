// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/losses.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

namespace tessera::zoo {

namespace {

at::Tensor in_float(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

} // namespace

at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const CrossEntropyOptions& options) {
  TESSERA_CHECK(
      targets.sizes() == logits.sizes().slice(0, logits.dim() - 1),
      "cross_entropy: logits are {} and targets {}; targets must have the shape of the logits without their last dimension",
      logits.sizes(),
      targets.sizes());
  const at::Tensor sum = at::cross_entropy_loss(
      in_float(logits).flatten(0, -2),
      targets.flatten(),
      /*weight=*/{},
      at::Reduction::Sum,
      options.ignore_index,
      options.label_smoothing);
  // LibTorch's mean of no targets is 0 / 0.
  return options.is_mean
             ? sum / targets.ne(options.ignore_index).sum().clamp_min(1)
             : sum;
}

at::Tensor next_token_targets(const at::Tensor& labels, int64_t ignore_index) {
  return at::constant_pad_nd(labels, {0, 1}, ignore_index)
      .narrow(1, 1, labels.size(1));
}

at::Tensor distillation_loss(
    const at::Tensor& student_logits,
    const at::Tensor& teacher_logits,
    double temperature,
    const at::Tensor& counts) {
  TESSERA_CHECK(
      student_logits.sizes() == teacher_logits.sizes() &&
          (!counts.defined() ||
           counts.sizes() ==
               student_logits.sizes().slice(0, student_logits.dim() - 1)),
      "distillation_loss: the student's logits are {}, the teacher's {}, and `counts` is {}; their shapes must agree",
      student_logits.sizes(),
      teacher_logits.sizes(),
      counts.defined() ? counts.sizes() : at::IntArrayRef());
  TESSERA_CHECK(
      temperature > 0,
      "distillation_loss: the temperature is {}; it must be positive",
      temperature);
  const at::Tensor student =
      at::log_softmax(in_float(student_logits) / temperature, -1);
  const at::Tensor teacher =
      at::log_softmax(in_float(teacher_logits).detach() / temperature, -1);
  const at::Tensor rows = (teacher.exp() * (teacher - student)).sum(-1);
  const at::Tensor mean =
      counts.defined() ? rows.masked_fill(counts.logical_not(), 0).sum() /
                             counts.ne(0).sum().clamp_min(1)
                       : rows.mean();
  return mean * temperature * temperature;
}

} // namespace tessera::zoo
