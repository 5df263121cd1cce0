// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/helpers/chunked_cross_entropy.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

namespace tessera {

namespace {

using Reduction = ChunkedCrossEntropyOptions::Reduction;

/// The results of forward: the loss, and the gradients that are needed.
struct Found {
  at::Tensor loss;
  at::Tensor hidden_gradient; ///< [rows, width]
  at::Tensor weight_gradient; ///< [classes, width]
  at::Tensor bias_gradient; ///< [classes]
};

struct Wanted {
  bool hidden = false;
  bool weight = false;
  bool bias = false;

  bool any() const {
    return hidden || weight || bias;
  }
};

int64_t rows_of_chunk(
    const at::Tensor& hidden,
    int64_t classes,
    const ChunkedCrossEntropyOptions& options) {
  if (options.chunk_rows > 0) {
    return options.chunk_rows;
  }
  constexpr int64_t kOnCpu = 256; // they stay in the cache
  constexpr int64_t kLogits = (int64_t{256} << 20) / sizeof(float);
  return runtime::computes_on_cpu(hidden.device())
             ? kOnCpu
             : std::max(kLogits / classes, kOnCpu);
}

/// On the CPU, as LibTorch's cross_entropy; elsewhere the host would wait.
/// @param targets [rows].
void check_classes(
    const at::Tensor& targets,
    int64_t classes,
    int64_t ignore_index) {
  if (!runtime::computes_on_cpu(targets.device()) ||
      runtime::DryRun::current() != nullptr) {
    return;
  }
  const at::Tensor host = targets.contiguous();
  const auto* values = host.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < host.numel(); ++row) {
    TESSERA_CHECK(
        values[row] == ignore_index ||
            (values[row] >= 0 && values[row] < classes),
        "chunked_cross_entropy: targets has the class {} in row {}, and weight has shape [{}, width]; classes are 0 to {}, or ignore_index, {}, for rows that do not count",
        values[row],
        row,
        classes,
        classes - 1,
        ignore_index);
  }
}

Found walk_chunks(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& targets,
    const ChunkedCrossEntropyOptions& options,
    Wanted wanted) {
  const int64_t rows = hidden.size(0);
  const double smooth = options.label_smoothing;
  const at::ScalarType precise =
      c10::isReducedFloatingType(hidden.scalar_type()) ? at::kFloat
                                                       : hidden.scalar_type();
  const at::Tensor counts = targets.ne(options.ignore_index);
  const at::Tensor share = options.reduction == Reduction::kMean
                               ? counts.sum().to(precise).reciprocal_()
                               : at::ones({}, hidden.options().dtype(precise));
  Found found;
  found.loss = at::zeros({}, hidden.options().dtype(precise));
  if (wanted.hidden) {
    found.hidden_gradient = at::empty_like(hidden);
  }
  if (wanted.weight) {
    found.weight_gradient =
        at::zeros(weight.sizes(), hidden.options().dtype(precise));
  }
  if (wanted.bias) {
    found.bias_gradient =
        at::zeros(bias.sizes(), hidden.options().dtype(precise));
  }
  const int64_t chunk_rows = rows_of_chunk(hidden, weight.size(0), options);
  for (int64_t row = 0; row < rows; row += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - row);
    const at::Tensor part = hidden.narrow(0, row, count);
    const at::Tensor counted = counts.narrow(0, row, count).unsqueeze(1);
    // For an ignored row any class will do.
    const at::Tensor target =
        targets.narrow(0, row, count).unsqueeze(1).mul(counted);
    at::Tensor logits = (bias.defined() ? at::addmm(bias, part, weight.t())
                                        : at::mm(part, weight.t()))
                            .to(precise);
    const at::Tensor log_sum = logits.logsumexp(1, /*keepdim=*/true);
    at::Tensor losses = log_sum - logits.gather(1, target) * (1 - smooth);
    if (smooth > 0) {
      losses = losses - logits.mean(1, /*keepdim=*/true) * smooth;
    }
    found.loss += losses.masked_fill(counted.logical_not(), 0).sum() * share;
    if (!wanted.any()) {
      continue;
    }
    // From here on `logits` is the gradient with respect to them.
    logits.sub_(log_sum).exp_();
    logits.scatter_add_(
        1, target, at::full_like(target, smooth - 1, logits.options()));
    if (smooth > 0) {
      logits.sub_(smooth / static_cast<double>(logits.size(1)));
    }
    logits.mul_(share);
    // Zero, even if a row is not finite.
    logits.masked_fill_(counted.logical_not(), 0);
    const at::Tensor gradient = logits.to(hidden.scalar_type());
    if (wanted.hidden) {
      at::Tensor out = found.hidden_gradient.narrow(0, row, count);
      at::mm_out(out, gradient, weight);
    }
    if (wanted.weight) {
      if (precise == hidden.scalar_type()) {
        found.weight_gradient.addmm_(gradient.t(), part);
      } else {
        found.weight_gradient.add_(at::mm(gradient.t(), part));
      }
    }
    if (wanted.bias) {
      found.bias_gradient.add_(at::sum(gradient, 0, false, precise));
    }
  }
  for (at::Tensor* sum : {&found.weight_gradient, &found.bias_gradient}) {
    if (sum->defined()) {
      *sum = sum->to(hidden.scalar_type());
    }
  }
  return found;
}

class HeadLoss : public torch::autograd::Function<HeadLoss> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      const at::Tensor& targets,
      const ChunkedCrossEntropyOptions& options,
      Wanted wanted) {
    const Found found = walk_chunks(
        hidden, weight, bias.value_or(at::Tensor()), targets, options, wanted);
    context->save_for_backward(
        {found.hidden_gradient, found.weight_gradient, found.bias_gradient});
    return found.loss;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto scaled = [&](const at::Tensor& gradient) {
      if (!gradient.defined()) {
        return gradient;
      }
      const at::Tensor& factor = gradients[0];
      // The usual case costs no pass over the head's gradient.
      if (factor.is_cpu() && factor.item<double>() == 1) {
        return gradient;
      }
      return gradient * factor.to(gradient.scalar_type());
    };
    return {scaled(saved[0]), scaled(saved[1]), scaled(saved[2]), {}, {}, {}};
  }
};

} // namespace

at::Tensor chunked_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& targets,
    const ChunkedCrossEntropyOptions& options) {
  return chunked_cross_entropy(hidden, weight, at::Tensor(), targets, options);
}

at::Tensor chunked_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& targets,
    const ChunkedCrossEntropyOptions& options) {
  TESSERA_CHECK(
      hidden.dim() >= 1 && weight.dim() == 2 &&
          hidden.size(-1) == weight.size(1) &&
          targets.sizes() == hidden.sizes().slice(0, hidden.dim() - 1),
      "chunked_cross_entropy: hidden has shape {}, weight {} and targets {}; they must be [..., width], [classes, width] and [...]",
      hidden.sizes(),
      weight.sizes(),
      targets.sizes());
  TESSERA_CHECK(
      hidden.is_floating_point() &&
          hidden.scalar_type() == weight.scalar_type() &&
          targets.scalar_type() == at::kLong,
      "chunked_cross_entropy: hidden is {}, weight {} and targets {}; hidden and weight must have the same floating-point dtype, and targets must be int64",
      hidden.scalar_type(),
      weight.scalar_type(),
      targets.scalar_type());
  TESSERA_CHECK(
      !bias.defined() || (bias.sizes() == weight.sizes().slice(0, 1) &&
                          bias.scalar_type() == weight.scalar_type()),
      "chunked_cross_entropy: bias has shape {} and weight {}; bias must have one element per class and the dtype of weight",
      bias.defined() ? bias.sizes() : at::IntArrayRef(),
      weight.sizes());
  TESSERA_CHECK(
      options.label_smoothing >= 0 && options.label_smoothing < 1,
      "chunked_cross_entropy: label_smoothing is {}; it must be at least 0 and below 1",
      options.label_smoothing);
  TESSERA_CHECK(
      options.chunk_rows >= 0,
      "chunked_cross_entropy: chunk_rows is {}; it must not be negative",
      options.chunk_rows);
  check_classes(targets, weight.size(0), options.ignore_index);
  const bool training = at::GradMode::is_enabled();
  const Wanted wanted{
      training && hidden.requires_grad(),
      training && weight.requires_grad(),
      training && bias.defined() && bias.requires_grad()};
  return HeadLoss::apply(
      hidden.reshape({-1, hidden.size(-1)}),
      weight,
      bias.defined() ? std::optional(bias) : std::nullopt,
      targets.reshape({-1}),
      options,
      wanted);
}

} // namespace tessera
