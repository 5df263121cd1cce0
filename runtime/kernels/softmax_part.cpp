// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/softmax_part.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/operator_tensors.h"
#include "tessera/runtime/kernels/softmax_loss.h"
#include "tessera/runtime/kernels/softmax_loss_kernels.h"
#include "tessera/runtime/threads/parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <limits>
#include <optional>

namespace tessera::runtime {

namespace {

// Elements that are worth a thread.
constexpr int64_t kPartGrain = int64_t{1} << 14;

/// tessera::softmax_part_sums and tessera::softmax_part_gradient_.
using SoftmaxPartOperator = void(
    const at::Tensor& logits,
    const at::Tensor& numbers,
    const at::Tensor& targets,
    const std::optional<at::Tensor>& class_weights,
    int64_t classes,
    bool weighted);

SoftmaxLossRows part_rows(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const std::optional<at::Tensor>& class_weights,
    int64_t classes,
    bool weighted) {
  return {
      .logits = logits.mutable_data_ptr(),
      .type = detail::low_precision_of(logits),
      .rows = logits.size(0),
      .classes = classes,
      .columns = logits.size(1),
      .row_stride = logits.stride(0),
      .targets = targets.const_data_ptr<int64_t>(),
      .class_weights =
          class_weights ? class_weights->const_data_ptr<float>() : nullptr,
      .scale = nullptr,
      .losses = nullptr,
      .ignore_index = kIgnoredRow,
      .label_smoothing = weighted ? 1.0F : 0.0F,
      .z_loss = 0,
      .gradients = true};
}

/// Calls `kernel(all, numbers, begin, end)` for all rows.
template <typename Kernel, typename Number>
void for_part_rows(
    const SoftmaxLossRows& all,
    Kernel* kernel,
    Number* numbers) {
  parallel_for(
      0,
      all.rows,
      kPartGrain / all.classes + 1,
      [&](int64_t begin, int64_t end) { kernel(all, numbers, begin, end); });
}

void sums_of_cpu(
    const at::Tensor& logits,
    const at::Tensor& numbers,
    const at::Tensor& targets,
    const std::optional<at::Tensor>& class_weights,
    int64_t classes,
    bool weighted) {
  static auto* const kernel = softmax_part_kernels(best_isa()).sums;
  for_part_rows(
      part_rows(logits, targets, class_weights, classes, weighted),
      kernel,
      numbers.mutable_data_ptr<float>());
}

void gradient_of_cpu(
    const at::Tensor& logits,
    const at::Tensor& numbers,
    const at::Tensor& targets,
    const std::optional<at::Tensor>& class_weights,
    int64_t classes,
    bool weighted) {
  static auto* const kernel = softmax_part_kernels(best_isa()).gradient;
  for_part_rows(
      part_rows(logits, targets, class_weights, classes, weighted),
      kernel,
      numbers.const_data_ptr<float>());
}

/// Registers the operators with LibTorch.
void define_softmax_part() {
  // Never destroyed: graphs may be freed at exit.
  static auto* const library = [] {
    auto* defined = new torch::Library(
        torch::Library::FRAGMENT, "tessera", std::nullopt, __FILE__, __LINE__);
    defined->def(
        "softmax_part_sums(Tensor logits, Tensor(a!) sums, Tensor targets, Tensor? class_weights, int classes, bool weighted) -> ()");
    defined->def(
        "softmax_part_gradient_(Tensor(a!) logits, Tensor factors, Tensor targets, Tensor? class_weights, int classes, bool weighted) -> ()");
    defined->impl(
        "softmax_part_sums",
        torch::dispatch(c10::DispatchKey::CPU, &sums_of_cpu));
    defined->impl(
        "softmax_part_gradient_",
        torch::dispatch(c10::DispatchKey::CPU, &gradient_of_cpu));
    return defined;
  }();
  static_cast<void>(library);
}

c10::TypedOperatorHandle<SoftmaxPartOperator> part_operator(const char* name) {
  define_softmax_part();
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<SoftmaxPartOperator>();
}

void check_part(
    const char* name,
    const SoftmaxPart& part,
    const at::Tensor& numbers,
    bool fused) {
  const at::Tensor& logits = part.logits;
  TESSERA_CHECK(
      logits.dim() == 2 && part.classes > 0 && part.classes <= logits.size(1) &&
          logits.stride(1) == 1 && numbers.dim() == 2 &&
          numbers.size(0) == logits.size(0) && numbers.size(1) == 4 &&
          part.targets.dim() == 1 && part.targets.size(0) == logits.size(0) &&
          part.targets.scalar_type() == at::kLong &&
          part.targets.is_contiguous(),
      "{}: logits have shape {} for {} classes, the rows' numbers {} and targets {}; they must be [rows, at least as many columns as classes], [rows, 4] and [rows]",
      name,
      logits.sizes(),
      part.classes,
      numbers.sizes(),
      part.targets.sizes());
  TESSERA_CHECK(
      !fused ||
          (takes_softmax_loss(logits.scalar_type()) &&
           numbers.scalar_type() == at::kFloat && numbers.is_contiguous() &&
           (!part.class_weights.defined() ||
            (part.class_weights.scalar_type() == at::kFloat &&
             part.class_weights.is_contiguous()))),
      "{}: logits are {} and the rows' numbers {}; the kernel takes float32 and 16 bits, and contiguous numbers and class weights of float32",
      name,
      logits.scalar_type(),
      numbers.scalar_type());
}

void call_part(
    const c10::TypedOperatorHandle<SoftmaxPartOperator>& op,
    const SoftmaxPart& part,
    const at::Tensor& numbers,
    bool weighted) {
  op.call(
      part.logits,
      numbers,
      part.targets,
      part.class_weights.defined()
          ? std::optional<at::Tensor>(part.class_weights)
          : std::nullopt,
      part.classes,
      weighted);
}

/// Of any class where it is not of this part.
at::Tensor any_target(const SoftmaxPart& part) {
  return part.targets.clamp_min(0).unsqueeze(1);
}

} // namespace

void softmax_part_sums(
    const SoftmaxPart& part,
    const at::Tensor& sums,
    bool weighted,
    bool fused) {
  check_part("softmax_part_sums", part, sums, fused);
  if (fused) {
    static const auto op = part_operator("tessera::softmax_part_sums");
    call_part(op, part, sums, weighted);
    return;
  }
  const at::Tensor x =
      part.logits.narrow(1, 0, part.classes).to(sums.scalar_type());
  // What exp() is 0 of, less it.
  const at::Tensor max = x.amax(1, /*keepdim=*/true)
                             .clamp_min(std::numeric_limits<float>::lowest());
  sums.narrow(1, 0, 1).copy_(max);
  sums.narrow(1, 1, 1).copy_((x - max).exp_().sum(1, /*keepdim=*/true));
  if (!weighted) {
    sums.narrow(1, 2, 1).zero_();
  } else if (part.class_weights.defined()) {
    sums.select(1, 2).copy_(x.mv(part.class_weights.to(x.scalar_type())));
  } else {
    sums.select(1, 2).copy_(x.sum(1));
  }
  sums.narrow(1, 3, 1).copy_(
      x.gather(1, any_target(part))
          .masked_fill(part.targets.lt(0).unsqueeze(1), 0));
}

void softmax_part_gradient_(
    const SoftmaxPart& part,
    const at::Tensor& factors,
    bool fused) {
  check_part("softmax_part_gradient_", part, factors, fused);
  if (fused) {
    static const auto op = part_operator("tessera::softmax_part_gradient_");
    call_part(op, part, factors, /*weighted=*/false);
    return;
  }
  const auto factor = [&](int64_t i) { return factors.narrow(1, i, 1); };
  const at::Tensor narrow = part.logits.narrow(1, 0, part.classes);
  at::Tensor x = narrow.to(factors.scalar_type());
  x = (x - factor(0)).exp_().mul_(factor(1));
  x.sub_(
      part.class_weights.defined()
          ? factor(2) * part.class_weights.to(x.scalar_type())
          : factor(2));
  x.scatter_add_(
      1,
      any_target(part),
      factor(3).neg().masked_fill(part.targets.lt(0).unsqueeze(1), 0));
  x.masked_fill_(part.targets.eq(kIgnoredRow).unsqueeze(1), 0);
  narrow.copy_(x);
  if (part.classes < part.logits.size(1)) {
    part.logits.narrow(1, part.classes, part.logits.size(1) - part.classes)
        .zero_();
  }
}

} // namespace tessera::runtime
