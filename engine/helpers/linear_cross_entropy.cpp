// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/helpers/linear_cross_entropy.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/runtime/kernels/softmax_loss.h"
#include "tessera/sharding/tensor_parallel/divided_weight.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_softmax.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace tessera {

namespace {

using Reduction = LinearCrossEntropyOptions::Reduction;

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

/// Of classes that ranks have parts of; null: this rank has all of them.
using DividedHead = const sharding::DividedParameter;

/// Whether the loss is that of our kernel.
bool is_fused(const at::Tensor& hidden, DividedHead* head) {
  return runtime::uses_fused_operators() &&
         runtime::takes_softmax_loss(hidden.scalar_type()) &&
         (head == nullptr || runtime::computes_on_cpu(hidden.device()));
}

// On CUDA, products of 16 bits need sizes of a multiple of this, see
// [Note: aligned products].
constexpr int64_t kAlignedSize = 8;

/// Rows that all have about the same size, so that no product is a small one.
int64_t rows_of_chunk(
    const at::Tensor& hidden,
    int64_t classes,
    bool fused,
    const LinearCrossEntropyOptions& options) {
  if (options.chunk_rows > 0) {
    return options.chunk_rows;
  }
  constexpr int64_t kOnCpu = 256; // they stay in the cache
  if (runtime::computes_on_cpu(hidden.device())) {
    return kOnCpu;
  }
  if (!fused) { // and their copies
    constexpr int64_t kLogits = (int64_t{256} << 20) / sizeof(float);
    return std::max(kLogits / classes, kOnCpu);
  }
  // Each chunk more is a pass over the gradient of the weight in float32.
  constexpr int64_t kBytes = int64_t{1} << 30;
  const int64_t most = std::max(
      kBytes / (classes * static_cast<int64_t>(hidden.itemsize())), kOnCpu);
  const int64_t rows = std::max<int64_t>(hidden.size(0), 1);
  const int64_t chunks = (rows + most - 1) / most;
  return runtime::round_up((rows + chunks - 1) / chunks, kAlignedSize);
}

/// Weight and bias with rows of zeros behind their own where products of 16
/// bits are then fast: one copy here instead of some of the logits and of the
/// weight in each product.
struct PaddedHead {
  at::Tensor weight; ///< [columns, width]
  at::Tensor bias; ///< [columns], or undefined

  PaddedHead(const at::Tensor& given, const at::Tensor& given_bias, bool fused)
      : weight(given), bias(given_bias) {
    const int64_t classes = given.size(0);
    const int64_t columns = runtime::round_up(classes, kAlignedSize);
    if (!fused || columns == classes ||
        runtime::computes_on_cpu(given.device()) ||
        !c10::isReducedFloatingType(given.scalar_type())) {
      return;
    }
    const auto padded = [&](const at::Tensor& rows) {
      std::vector<int64_t> sizes = rows.sizes().vec();
      sizes[0] = columns;
      at::Tensor all = at::empty(sizes, rows.options());
      all.narrow(0, 0, classes).copy_(rows);
      all.narrow(0, classes, columns - classes).zero_();
      return all;
    };
    weight = padded(given);
    bias = given_bias.defined() ? padded(given_bias) : given_bias;
  }
};

/// Elements of sums that are added up at a time.
constexpr int64_t kStripNumel = 1 << 14;

/// The sum over chunks of what a parameter's gradient is made of, in `precise`;
/// of one chunk, in the parameter's dtype.
class GradientSum {
 public:
  GradientSum(at::ScalarType dtype, at::ScalarType precise, bool is_one_chunk)
      : dtype_(dtype), sums_(is_one_chunk ? dtype : precise) {}

  void add_product(const at::Tensor& a, const at::Tensor& b) {
    if (total_.defined() && sums_ == dtype_) {
      total_.addmm_(a, b);
    } else {
      add(at::mm(a, b));
    }
  }
  void add(const at::Tensor& part) {
    if (!total_.defined()) {
      total_ = part.to(sums_);
      return;
    }
    // On the CPU, LibTorch copies what is of another dtype; in strips, little
    // at a time. On CUDA it does not, and each strip is a kernel.
    const int64_t rows = part.size(0);
    const bool copies =
        part.scalar_type() != sums_ && runtime::computes_on_cpu(part.device());
    const int64_t strip =
        !copies ? rows
                : std::max<int64_t>(kStripNumel * rows / part.numel(), 1);
    for (int64_t row = 0; row < rows; row += strip) {
      const int64_t count = std::min(strip, rows - row);
      total_.narrow(0, row, count).add_(part.narrow(0, row, count));
    }
  }
  at::ScalarType sums() const {
    return sums_;
  }
  /// @param like the parameter: `total` may have more rows.
  at::Tensor total(const at::Tensor& like) const {
    if (!total_.defined()) { // of no rows
      return at::zeros(like.sizes(), like.options());
    }
    return (total_.size(0) == like.size(0) ? total_
                                           : total_.narrow(0, 0, like.size(0)))
        .to(dtype_);
  }

 private:
  at::ScalarType dtype_;
  at::ScalarType sums_;
  at::Tensor total_;
};

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
        "linear_cross_entropy: targets has the class {} in row {}, and weight has shape [{}, width]; classes are 0 to {}, or ignore_index, {}, for rows that do not count",
        values[row],
        row,
        classes,
        classes - 1,
        ignore_index);
  }
}

/// What divides the sum of the losses: 1, or that of the weights of targets.
at::Tensor share_of(
    const at::Tensor& targets,
    const at::Tensor& class_weights,
    at::ScalarType precise,
    const LinearCrossEntropyOptions& options) {
  if (options.reduction != Reduction::kMean) {
    return at::ones({}, targets.options().dtype(precise));
  }
  const at::Tensor counts = targets.ne(options.ignore_index);
  if (!class_weights.defined()) {
    return counts.sum().to(precise).reciprocal_();
  }
  return class_weights.index_select(0, targets.mul(counts))
      .mul_(counts)
      .sum()
      .reciprocal_();
}

Found walk_chunks(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& given_targets,
    const LinearCrossEntropyOptions& options,
    DividedHead* divided,
    Wanted wanted) {
  // Of a divided weight only this rank's part is multiplied.
  std::optional<sharding::DTensorGuard> parts;
  if (divided != nullptr) {
    parts.emplace();
  }
  const int64_t rows = hidden.size(0);
  const int64_t classes = weight.size(0);
  const bool fused = is_fused(hidden, divided);
  const at::ScalarType precise =
      c10::isReducedFloatingType(hidden.scalar_type()) ? at::kFloat
                                                       : hidden.scalar_type();
  const at::Tensor targets = given_targets.contiguous();
  const runtime::SoftmaxLossOptions loss_options{
      .ignore_index = options.ignore_index,
      .label_smoothing = options.label_smoothing,
      .z_loss = options.z_loss,
      .class_weights = options.class_weights.defined()
                           ? options.class_weights.detach()
                                 .to(hidden.device(), precise)
                                 .contiguous()
                           : at::Tensor()};
  const at::Tensor share =
      share_of(targets, loss_options.class_weights, precise, options);
  Found found;
  found.loss = at::zeros({}, hidden.options().dtype(precise));
  if (wanted.hidden) {
    found.hidden_gradient = at::empty_like(hidden);
  }
  const PaddedHead head(weight, bias, fused);
  const int64_t chunk_rows = rows_of_chunk(hidden, classes, fused, options);
  const bool is_one_chunk = fused && chunk_rows >= rows;
  GradientSum weight_sum(hidden.scalar_type(), precise, is_one_chunk);
  GradientSum bias_sum(hidden.scalar_type(), precise, is_one_chunk);
  if (!fused) { // the order of LibTorch's sums
    const auto zeros = [&](const at::Tensor& like) {
      return at::zeros(like.sizes(), hidden.options().dtype(precise));
    };
    if (wanted.weight) {
      weight_sum.add(zeros(weight));
    }
    if (wanted.bias) {
      bias_sum.add(zeros(bias));
    }
  }
  for (int64_t row = 0; row < rows; row += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - row);
    const at::Tensor part = hidden.narrow(0, row, count);
    // The gradient with respect to them, once the loss is computed.
    const at::Tensor logits = head.bias.defined()
                                  ? at::addmm(head.bias, part, head.weight.t())
                                  : at::mm(part, head.weight.t());
    const at::Tensor losses =
        at::empty({count}, hidden.options().dtype(precise));
    if (divided != nullptr) {
      sharding::vocab_parallel_softmax_loss_(
          logits,
          losses,
          targets.narrow(0, row, count),
          share,
          divided->split(),
          *divided->tp->group,
          loss_options,
          wanted.any(),
          fused);
    } else {
      (fused ? runtime::softmax_loss_ : runtime::softmax_loss_by_operators)(
          logits,
          losses,
          targets.narrow(0, row, count),
          share,
          classes,
          loss_options,
          wanted.any());
    }
    found.loss += losses.sum() * share;
    if (wanted.hidden) {
      at::Tensor out = found.hidden_gradient.narrow(0, row, count);
      at::mm_out(out, logits, head.weight);
    }
    if (wanted.weight) {
      weight_sum.add_product(logits.t(), part);
    }
    if (wanted.bias) {
      bias_sum.add(at::sum(logits, 0, false, bias_sum.sums()));
    }
  }
  if (wanted.weight) {
    found.weight_gradient = weight_sum.total(weight);
  }
  if (wanted.bias) {
    found.bias_gradient = bias_sum.total(bias);
  }
  return found;
}

/// Null if this rank has all classes.
DividedHead* divided_head(const at::Tensor& weight) {
  DividedHead* const divided = sharding::divided_parameter(weight);
  return divided != nullptr && divided->division != TensorDivision::kRow &&
                 divided->tp->group->size() > 1
             ? divided
             : nullptr;
}

class HeadLoss : public torch::autograd::Function<HeadLoss> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      const at::Tensor& targets,
      const LinearCrossEntropyOptions& options,
      DividedHead* divided,
      Wanted wanted) {
    const Found found = walk_chunks(
        hidden,
        weight,
        bias.value_or(at::Tensor()),
        targets,
        options,
        divided,
        wanted);
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
    return {
        scaled(saved[0]), scaled(saved[1]), scaled(saved[2]), {}, {}, {}, {}};
  }
};

} // namespace

at::Tensor linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& targets,
    const LinearCrossEntropyOptions& options) {
  return linear_cross_entropy(hidden, weight, at::Tensor(), targets, options);
}

at::Tensor linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& targets,
    const LinearCrossEntropyOptions& options) {
  DividedHead* const divided = divided_head(weight);
  const int64_t classes =
      divided != nullptr ? divided->split().size() : weight.size(0);
  TESSERA_CHECK(
      hidden.dim() >= 1 && weight.dim() == 2 &&
          hidden.size(-1) == weight.size(1) &&
          targets.sizes() == hidden.sizes().slice(0, hidden.dim() - 1),
      "linear_cross_entropy: hidden has shape {}, weight {} and targets {}; they must be [..., width], [classes, width] and [...]",
      hidden.sizes(),
      weight.sizes(),
      targets.sizes());
  TESSERA_CHECK(
      hidden.is_floating_point() &&
          hidden.scalar_type() == weight.scalar_type() &&
          targets.scalar_type() == at::kLong,
      "linear_cross_entropy: hidden is {}, weight {} and targets {}; hidden and weight must have the same floating-point dtype, and targets must be int64",
      hidden.scalar_type(),
      weight.scalar_type(),
      targets.scalar_type());
  TESSERA_CHECK(
      !bias.defined() || ((bias.sizes() == weight.sizes().slice(0, 1) ||
                           bias.sizes() == at::IntArrayRef(classes)) &&
                          bias.scalar_type() == weight.scalar_type()),
      "linear_cross_entropy: bias has shape {} and weight {}; bias must have one element per class and the dtype of weight",
      bias.defined() ? bias.sizes() : at::IntArrayRef(),
      weight.sizes());
  TESSERA_CHECK(
      options.label_smoothing >= 0 && options.label_smoothing < 1,
      "linear_cross_entropy: label_smoothing is {}; it must be at least 0 and below 1",
      options.label_smoothing);
  TESSERA_CHECK(
      !options.class_weights.defined() ||
          (options.class_weights.sizes() == at::IntArrayRef(classes) &&
           options.class_weights.is_floating_point()),
      "linear_cross_entropy: class_weights are {} of shape {} and weight has shape {}; they must be floating-point numbers, one per class",
      options.class_weights.defined() ? options.class_weights.scalar_type()
                                      : at::kFloat,
      options.class_weights.defined() ? options.class_weights.sizes()
                                      : at::IntArrayRef(),
      weight.sizes());
  TESSERA_CHECK(
      options.chunk_rows >= 0,
      "linear_cross_entropy: chunk_rows is {}; it must not be negative",
      options.chunk_rows);
  const at::Tensor full_targets = full_tensor(targets);
  check_classes(full_targets, classes, options.ignore_index);
  const sharding::DividedOperands local =
      divided != nullptr ? sharding::divided_operands(hidden, bias, *divided)
                         : sharding::DividedOperands{hidden, bias};
  const bool training = at::GradMode::is_enabled();
  const Wanted wanted{
      training && local.x.requires_grad(),
      training && weight.requires_grad(),
      training && local.bias.defined() && local.bias.requires_grad()};
  return HeadLoss::apply(
      local.x.reshape({-1, local.x.size(-1)}),
      weight,
      local.bias.defined() ? std::optional(local.bias) : std::nullopt,
      full_targets.reshape({-1}),
      options,
      divided,
      wanted);
}

} // namespace tessera
