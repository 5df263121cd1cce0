// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/softmax_loss.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/kernels/operator_tensors.h"
#include "tessera/runtime/kernels/softmax_loss_kernels.h"
#include "tessera/runtime/random/counter_random.h"
#include "tessera/runtime/threads/parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::runtime {

namespace {

// Elements that are worth a thread.
constexpr int64_t kSoftmaxGrain = int64_t{1} << 14;
// Rows that operators take at a time in place of a kernel have so many.
constexpr int64_t kSoftmaxChunk = int64_t{1} << 24;

using SoftmaxLossOperator = decltype(softmax_loss_cuda);

/// The plugin's; null without one.
SoftmaxLossLaunch* registered_launch = nullptr;

void launch(const SoftmaxLossRows& all) {
  TESSERA_CHECK(
      registered_launch != nullptr,
      "softmax_loss_: the CUDA backend is not loaded; build with -DTESSERA_CUDA=ON and call tessera::init() first");
  registered_launch(all);
}

const float* weights_data(const at::Tensor& class_weights) {
  return class_weights.defined() ? class_weights.const_data_ptr<float>()
                                 : nullptr;
}

SoftmaxLossRows rows_of(
    const at::Tensor& logits,
    const at::Tensor& losses,
    const at::Tensor& targets,
    const at::Tensor& scale,
    int64_t classes,
    const SoftmaxLossOptions& options,
    bool gradients) {
  return {
      .logits = logits.mutable_data_ptr(),
      .type = detail::low_precision_of(logits),
      .rows = logits.size(0),
      .classes = classes,
      .columns = logits.size(1),
      .row_stride = logits.stride(0),
      .targets = targets.const_data_ptr<int64_t>(),
      .class_weights = weights_data(options.class_weights),
      .scale = scale.const_data_ptr<float>(),
      .losses = losses.mutable_data_ptr<float>(),
      .ignore_index = options.ignore_index,
      .label_smoothing = static_cast<float>(options.label_smoothing),
      .z_loss = static_cast<float>(options.z_loss),
      .gradients = gradients};
}

SoftmaxLossOptions options_of(
    const std::optional<at::Tensor>& class_weights,
    int64_t ignore_index,
    double label_smoothing,
    double z_loss) {
  return {
      .ignore_index = ignore_index,
      .label_smoothing = label_smoothing,
      .z_loss = z_loss,
      .class_weights = class_weights.value_or(at::Tensor())};
}

void softmax_loss_cpu(
    const at::Tensor& logits,
    const at::Tensor& losses,
    const at::Tensor& targets,
    const at::Tensor& scale,
    const std::optional<at::Tensor>& class_weights,
    int64_t classes,
    int64_t ignore_index,
    double label_smoothing,
    double z_loss,
    bool gradients) {
  static auto* const kernel = softmax_loss_kernel(best_isa());
  const SoftmaxLossRows all = rows_of(
      logits,
      losses,
      targets,
      scale,
      classes,
      options_of(class_weights, ignore_index, label_smoothing, z_loss),
      gradients);
  parallel_for(
      0,
      all.rows,
      kSoftmaxGrain / all.classes + 1,
      [&](int64_t begin, int64_t end) { kernel(all, begin, end); });
}

/// Registers the operator with LibTorch.
void define_softmax_loss() {
  // Never destroyed: graphs may be freed at exit.
  static auto* const library = [] {
    auto* defined = new torch::Library(
        torch::Library::FRAGMENT, "tessera", std::nullopt, __FILE__, __LINE__);
    defined->def(
        "softmax_loss_(Tensor(a!) logits, Tensor(b!) losses, Tensor targets, Tensor scale, Tensor? class_weights, int classes, int ignore_index, float label_smoothing, float z_loss, bool gradients) -> ()");
    defined->impl(
        "softmax_loss_",
        torch::dispatch(c10::DispatchKey::CPU, &softmax_loss_cpu));
    return defined;
  }();
  static_cast<void>(library);
}

/// The small problem of a kernel: logits and what comes out of them.
std::vector<KernelResult> solve_softmax_loss(
    LowPrecision type,
    bool by_operators,
    c10::Device device) {
  const at::ScalarType dtype = type == LowPrecision::kNone       ? at::kFloat
                               : type == LowPrecision::kBFloat16 ? at::kBFloat16
                                                                 : at::kHalf;
  const double unit = type == LowPrecision::kNone       ? 1e-5
                      : type == LowPrecision::kBFloat16 ? 0x1p-7
                                                        : 0x1p-10;
  constexpr int64_t kRows = 5;
  std::vector<KernelResult> results;
  // Packs, with a rest of classes and columns behind them; unaligned rows.
  for (const auto& [classes, columns, plain] :
       {std::tuple<int64_t, int64_t, bool>{8197, 8200, true},
        {8197, 8200, false},
        {261, 261, false}}) {
    const auto values = [&](int64_t numel, uint64_t stream, double low) {
      const at::Tensor host = at::empty({numel});
      fill_uniform(host, {/*seed=*/13, stream}, 0, low, 4);
      return host;
    };
    const at::Tensor logits = values(kRows * columns, 0, -4)
                                  .view({kRows, columns})
                                  .to(dtype)
                                  .to(device);
    const at::Tensor losses =
        at::full({kRows}, -1, at::TensorOptions(device).dtype(at::kFloat));
    const at::Tensor targets =
        at::tensor(
            {int64_t{0}, classes - 1, int64_t{-5}, int64_t{7}, classes / 2})
            .to(device);
    const at::Tensor scale = at::full({}, 0.25, losses.options());
    SoftmaxLossOptions options{.ignore_index = -5};
    if (!plain) {
      options.label_smoothing = 0.1;
      options.z_loss = 1e-2;
      options.class_weights = values(classes, 1, 0.5).to(device);
    }
    if (by_operators) {
      softmax_loss_by_operators(
          logits, losses, targets, scale, classes, options, true);
    } else {
      launch(rows_of(logits, losses, targets, scale, classes, options, true));
    }
    const std::string of = formatted(
        " of {} classes, {}", classes, plain ? "plain" : "with all options");
    results.push_back(
        {.name = "the losses" + of, .values = losses, .relative = 1e-5});
    results.push_back(
        {.name = "the gradients" + of,
         .values = logits,
         .relative = unit,
         .of_largest = 1e-6});
  }
  return results;
}

} // namespace

bool takes_softmax_loss(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

void softmax_loss_(
    const at::Tensor& logits,
    const at::Tensor& losses,
    const at::Tensor& targets,
    const at::Tensor& scale,
    int64_t classes,
    const SoftmaxLossOptions& options,
    bool gradients) {
  TESSERA_CHECK(
      logits.dim() == 2 && takes_softmax_loss(logits.scalar_type()) &&
          classes > 0 && classes <= logits.size(1) &&
          logits.size(1) <= std::numeric_limits<int32_t>::max() / 2 &&
          logits.stride(1) == 1 && logits.stride(0) >= logits.size(1),
      "softmax_loss_: logits are {} of shape {} for {} classes; they must be float32, bfloat16 or float16 [rows, at least as many columns as classes], with rows without gaps",
      logits.scalar_type(),
      logits.sizes(),
      classes);
  for (const at::Tensor* row : {&losses, &targets}) {
    TESSERA_CHECK(
        row->dim() == 1 && row->size(0) == logits.size(0) &&
            row->is_contiguous() &&
            row->scalar_type() == (row == &losses ? at::kFloat : at::kLong),
        "softmax_loss_: {} are {} of shape {}; they must be contiguous {} of shape [{}]",
        row == &losses ? "losses" : "targets",
        row->scalar_type(),
        row->sizes(),
        row == &losses ? "float32" : "int64",
        logits.size(0));
  }
  TESSERA_CHECK(
      scale.numel() == 1 && scale.scalar_type() == at::kFloat,
      "softmax_loss_: scale is {} of shape {}; it must be one float32 number",
      scale.scalar_type(),
      scale.sizes());
  const at::Tensor& weights = options.class_weights;
  TESSERA_CHECK(
      !weights.defined() ||
          (weights.scalar_type() == at::kFloat && weights.dim() == 1 &&
           weights.size(0) == classes && weights.is_contiguous()),
      "softmax_loss_: class_weights are {} of shape {}; they must be contiguous float32 of shape [{}]",
      weights.defined() ? weights.scalar_type() : at::kFloat,
      weights.defined() ? weights.sizes() : at::IntArrayRef(),
      classes);
  define_softmax_loss();
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tessera::softmax_loss_", "")
                             .typed<SoftmaxLossOperator>();
  op.call(
      logits,
      losses,
      targets,
      scale,
      weights.defined() ? std::optional<at::Tensor>(weights) : std::nullopt,
      classes,
      options.ignore_index,
      options.label_smoothing,
      options.z_loss,
      gradients);
}

void softmax_loss_by_operators(
    const at::Tensor& logits,
    const at::Tensor& losses,
    const at::Tensor& targets,
    const at::Tensor& scale,
    int64_t classes,
    const SoftmaxLossOptions& options,
    bool gradients) {
  const double smooth = options.label_smoothing;
  const double spread = smooth / static_cast<double>(classes);
  const at::Tensor& weights = options.class_weights;
  const at::Tensor counted = targets.ne(options.ignore_index).unsqueeze(1);
  // For an ignored row any class will do.
  const at::Tensor target = targets.unsqueeze(1).mul(counted);
  const at::Tensor narrow = logits.narrow(1, 0, classes);
  at::Tensor x = narrow.to(losses.scalar_type());
  const at::Tensor log_sum = x.logsumexp(1, /*keepdim=*/true);
  at::Tensor local;
  at::Tensor target_weight;
  at::Tensor weight_sum;
  if (weights.defined()) {
    target_weight = weights.index_select(0, target.flatten()).unsqueeze(1);
    weight_sum = weights.sum();
    local = (log_sum - x.gather(1, target)) * target_weight * (1 - smooth);
    if (smooth > 0) {
      local = local +
              (log_sum * weight_sum - at::mv(x, weights).unsqueeze(1)) * spread;
    }
  } else {
    local = log_sum - x.gather(1, target) * (1 - smooth);
    if (smooth > 0) {
      local = local - x.mean(1, /*keepdim=*/true) * smooth;
    }
  }
  if (options.z_loss != 0) {
    const at::Tensor penalty = log_sum.square() * options.z_loss;
    local = local + (weights.defined() ? penalty * target_weight : penalty);
  }
  const at::Tensor ignored = counted.logical_not();
  losses.copy_(local.masked_fill(ignored, 0).squeeze(1));
  if (!gradients) {
    return;
  }
  // From here on `x` is the gradient with respect to it.
  x.sub_(log_sum).exp_();
  if (weights.defined() || options.z_loss != 0) {
    at::Tensor factor = weights.defined()
                            ? target_weight * (1 - smooth) + weight_sum * spread
                            : at::ones_like(log_sum);
    const at::Tensor slope = log_sum * (2 * options.z_loss);
    x.mul_(factor + (weights.defined() ? slope * target_weight : slope));
  }
  x.scatter_add_(
      1,
      target,
      weights.defined() ? target_weight * (smooth - 1)
                        : at::full_like(target, smooth - 1, x.options()));
  if (smooth > 0) {
    if (weights.defined()) {
      x.sub_(weights * spread);
    } else {
      x.sub_(spread);
    }
  }
  x.mul_(scale);
  // Zero, even if a row is not finite.
  x.masked_fill_(ignored, 0);
  if (!x.is_alias_of(logits)) {
    narrow.copy_(x);
  }
  if (classes < logits.size(1)) {
    logits.narrow(1, classes, logits.size(1) - classes).zero_();
  }
}

void register_softmax_loss(SoftmaxLossLaunch* launch) {
  registered_launch = launch;
}

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
    bool gradients) {
  if (logits.size(0) == 0) {
    return;
  }
  const c10::DeviceGuard guard(logits.device());
  const SoftmaxLossOptions options =
      options_of(class_weights, ignore_index, label_smoothing, z_loss);
  if (softmax_loss_trial(detail::low_precision_of(logits)).serves()) {
    launch(
        rows_of(logits, losses, targets, scale, classes, options, gradients));
    return;
  }
  const int64_t chunk = std::max<int64_t>(kSoftmaxChunk / classes, 1);
  for (int64_t row = 0; row < logits.size(0); row += chunk) {
    const auto rows = [&](const at::Tensor& all) {
      return all.narrow(0, row, std::min(chunk, all.size(0) - row));
    };
    softmax_loss_by_operators(
        rows(logits),
        rows(losses),
        rows(targets),
        scale,
        classes,
        options,
        gradients);
  }
}

KernelTrial& softmax_loss_trial(LowPrecision type) {
  const auto solve = [](LowPrecision format) {
    return [format](bool by_operators, c10::Device device) {
      return solve_softmax_loss(format, by_operators, device);
    };
  };
  // In the order of LowPrecision; never destroyed.
  static auto* const trials = new std::array<KernelTrial, 3>{
      KernelTrial{"softmax_loss_ of float32", solve(LowPrecision::kNone)},
      KernelTrial{"softmax_loss_ of bfloat16", solve(LowPrecision::kBFloat16)},
      KernelTrial{"softmax_loss_ of float16", solve(LowPrecision::kFloat16)}};
  return trials->at(static_cast<size_t>(type));
}

} // namespace tessera::runtime
