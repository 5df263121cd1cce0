// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/residual_norm.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/norm_arguments.h"
#include "tessera/runtime/kernels/operator_norms.h"
#include "tessera/runtime/kernels/operator_tensors.h"
#include "tessera/runtime/kernels/residual_norm_kernels.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/threads/parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

namespace tessera::runtime {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Elements that are worth a thread.
constexpr int64_t kResidualGrain = int64_t{1} << 14;
// Parts of rows, of which each has sums of its own.
constexpr int64_t kMostRowBlocks = 64;
constexpr int64_t kLeastBlockRows = 16;

/// tessera::residual_norm.
/// @return sum, empty without a branch; y; statistics [rows, 2].
using ResidualNormOperator = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& x,
    const std::optional<at::Tensor>& branch,
    const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool centered,
    double weight_offset,
    double branch_scale);

/// tessera::residual_norm_backward.
/// @param wanted the gradients of the branch, where it is another one than
///   that of x, of the weight and of the bias.
/// @return the gradients of x and those; undefined if not wanted.
using ResidualNormBackwardOperator =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>(
        const std::optional<at::Tensor>& gradient_sum,
        const at::Tensor& gradient_y,
        const at::Tensor& sum,
        const at::Tensor& statistics,
        const std::optional<at::Tensor>& mask,
        const std::optional<at::Tensor>& weight,
        bool centered,
        double weight_offset,
        double branch_scale,
        std::array<bool, 3> wanted);

at::Tensor float_parameter(
    const std::optional<at::Tensor>& parameter,
    double offset = 0) {
  at::Tensor local = contiguous_or_none(parameter);
  if (local.defined()) {
    local = local.to(at::kFloat);
    local = offset == 0 ? local : local + offset;
  }
  return local;
}

const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

void* mutable_data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

const uint8_t* mask_data(const at::Tensor& mask) {
  return static_cast<const uint8_t*>(data_or_null(mask));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> residual_norm_of_cpu(
    const at::Tensor& x_,
    const std::optional<at::Tensor>& branch_,
    const std::optional<at::Tensor>& mask_,
    const std::optional<at::Tensor>& weight_,
    const std::optional<at::Tensor>& bias_,
    double eps,
    bool centered,
    double weight_offset,
    double branch_scale) {
  const at::Tensor x = x_.contiguous();
  const at::Tensor branch = contiguous_or_none(branch_);
  const at::Tensor mask = contiguous_or_none(mask_);
  const at::Tensor weight = float_parameter(weight_, weight_offset);
  const at::Tensor bias = float_parameter(bias_);
  const int64_t features = x.size(-1);
  const int64_t rows = x.numel() / features;
  at::Tensor sum = branch.defined() ? at::empty(x.sizes(), x.options())
                                    : at::empty({0}, x.options());
  at::Tensor y = at::empty(x.sizes(), x.options());
  at::Tensor statistics = at::empty({rows, 2}, x.options().dtype(at::kFloat));
  if (is_dry_memory(y.const_data_ptr())) {
    return {sum, y, statistics};
  }
  const ResidualNormRows all{
      .type = detail::low_precision_of(x),
      .features = features,
      .x = x.const_data_ptr(),
      .branch = data_or_null(branch),
      .mask = mask_data(mask),
      .branch_scale = static_cast<float>(branch_scale),
      .weight = float_data(weight),
      .bias = float_data(bias),
      .eps = static_cast<float>(eps),
      .centered = centered,
      .sum = sum.mutable_data_ptr(),
      .y = y.mutable_data_ptr(),
      .statistics = statistics.mutable_data_ptr<float>()};
  const ResidualNormKernel& kernel = residual_norm_kernel(best_isa());
  parallel_for(
      0, rows, kResidualGrain / features + 1, [&](int64_t begin, int64_t end) {
        kernel.forward(all, begin, end);
      });
  return {sum, y, statistics};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
residual_norm_backward_of_cpu(
    const std::optional<at::Tensor>& gradient_sum_,
    const at::Tensor& gradient_y_,
    const at::Tensor& sum_,
    const at::Tensor& statistics,
    const std::optional<at::Tensor>& mask_,
    const std::optional<at::Tensor>& weight_,
    bool centered,
    double weight_offset,
    double branch_scale,
    std::array<bool, 3> wanted) {
  const at::Tensor gradient_sum = contiguous_or_none(gradient_sum_);
  const at::Tensor gradient_y = gradient_y_.contiguous();
  const at::Tensor sum = sum_.contiguous();
  const at::Tensor mask = contiguous_or_none(mask_);
  const at::Tensor weight = float_parameter(weight_, weight_offset);
  const int64_t features = sum.size(-1);
  const int64_t rows = statistics.size(0);
  const int64_t block_rows =
      std::max(kLeastBlockRows, (rows + kMostRowBlocks - 1) / kMostRowBlocks);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  const at::Tensor gradient_x = at::empty(sum.sizes(), sum.options());
  const at::Tensor gradient_branch =
      wanted[0] ? at::empty(sum.sizes(), sum.options()) : at::Tensor();
  const auto zeros = [&](bool is_wanted) {
    return is_wanted ? at::zeros({blocks, features}, statistics.options())
                     : at::Tensor();
  };
  const at::Tensor weights = zeros(wanted[1]);
  const at::Tensor biases = zeros(wanted[2]);
  if (!is_dry_memory(gradient_x.const_data_ptr())) {
    const ResidualNormGradients all{
        .type = detail::low_precision_of(sum),
        .features = features,
        .gradient_sum = data_or_null(gradient_sum),
        .gradient_y = gradient_y.const_data_ptr(),
        .sum = sum.const_data_ptr(),
        .statistics = statistics.const_data_ptr<float>(),
        .mask = mask_data(mask),
        .branch_scale = static_cast<float>(branch_scale),
        .weight = float_data(weight),
        .centered = centered,
        .gradient_x = gradient_x.mutable_data_ptr(),
        .gradient_branch = mutable_data_or_null(gradient_branch)};
    const ResidualNormKernel& kernel = residual_norm_kernel(best_isa());
    float* const weights_data = mutable_float_data(weights);
    float* const biases_data = mutable_float_data(biases);
    const auto of_block = [&](float* data, int64_t block) {
      return data == nullptr ? nullptr : data + block * features;
    };
    parallel_for(
        0,
        blocks,
        kResidualGrain / (block_rows * features) + 1,
        [&](int64_t block, int64_t end) {
          for (; block < end; ++block) {
            kernel.backward(
                all,
                block * block_rows,
                std::min(rows, (block + 1) * block_rows),
                of_block(weights_data, block),
                of_block(biases_data, block));
          }
        });
  }
  const auto total = [](const at::Tensor& blocks_of) {
    return blocks_of.defined() ? blocks_of.sum(0) : blocks_of;
  };
  return {gradient_x, gradient_branch, total(weights), total(biases)};
}

/// Registers the operators with LibTorch.
void define_residual_norm() {
  // Never destroyed: graphs may be freed at exit.
  static auto* const library = [] {
    auto* defined = new torch::Library(
        torch::Library::FRAGMENT, "tessera", std::nullopt, __FILE__, __LINE__);
    defined->def(
        "residual_norm(Tensor x, Tensor? branch, Tensor? mask, Tensor? weight, Tensor? bias, float eps, bool centered, float weight_offset, float branch_scale) -> (Tensor, Tensor, Tensor)");
    defined->def(
        "residual_norm_backward(Tensor? gradient_sum, Tensor gradient_y, Tensor sum, Tensor statistics, Tensor? mask, Tensor? weight, bool centered, float weight_offset, float branch_scale, bool[3] wanted) -> (Tensor, Tensor, Tensor, Tensor)");
    defined->impl(
        "residual_norm",
        torch::dispatch(c10::DispatchKey::CPU, &residual_norm_of_cpu));
    defined->impl(
        "residual_norm_backward",
        torch::dispatch(c10::DispatchKey::CPU, &residual_norm_backward_of_cpu));
    return defined;
  }();
  static_cast<void>(library);
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> residual_operator(const char* name) {
  define_residual_norm();
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Signature>();
}

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> call_residual_norm(
    const at::Tensor& x,
    const std::optional<at::Tensor>& branch,
    const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    const ResidualNormOptions& options) {
  static const auto op =
      residual_operator<ResidualNormOperator>("tessera::residual_norm");
  return op.call(
      x,
      branch,
      mask,
      weight,
      bias,
      options.eps,
      options.centered,
      options.weight_offset,
      options.branch_scale);
}

struct ResidualGradients {
  at::Tensor x;
  at::Tensor branch;
  at::Tensor weight;
  at::Tensor bias;
};

/// What backward has of forward.
struct ResidualSaved {
  at::Tensor sum;
  at::Tensor weight;
  at::Tensor mask;
  at::Tensor statistics;
  ResidualNormOptions options;

  bool scales_branch() const {
    return mask.defined() || options.branch_scale != 1;
  }
  at::Tensor branch_gradient(const at::Tensor& of_sum) const {
    if (!scales_branch()) {
      return of_sum;
    }
    const at::Tensor scaled = of_sum * options.branch_scale;
    return mask.defined() ? scaled * mask : scaled;
  }
};

/// By operators that are differentiable themselves.
ResidualGradients differentiable_residual_gradients(
    const at::Tensor& gradient_sum,
    const at::Tensor& gradient_y,
    const ResidualSaved& saved) {
  const at::Tensor& sum = saved.sum;
  const ResidualNormOptions& options = saved.options;
  const NormLayout layout{sum.size(-1)};
  at::Tensor weight = saved.weight;
  if (weight.defined()) {
    weight = weight.to(at::kFloat) + options.weight_offset;
  }
  const NormGradients of_norm = norm_gradients(
      norm_rows(gradient_y, layout),
      normed_rows(norm_rows(sum, layout), options.eps, options.centered),
      weight,
      options.centered);
  ResidualGradients result;
  result.x = of_norm.x.view(sum.sizes()).to(sum.scalar_type());
  if (gradient_sum.defined()) {
    result.x = result.x + gradient_sum;
  }
  result.branch = saved.branch_gradient(result.x);
  result.weight = of_norm.weight.flatten();
  result.bias = of_norm.bias.flatten();
  return result;
}

class ResidualNormFunction
    : public torch::autograd::Function<ResidualNormFunction> {
 public:
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& x,
      const std::optional<at::Tensor>& branch,
      const std::optional<at::Tensor>& weight,
      const std::optional<at::Tensor>& bias,
      const std::optional<at::Tensor>& mask,
      const ResidualNormOptions& options) {
    auto [sum, y, statistics] =
        call_residual_norm(x, branch, mask, weight, bias, options);
    if (!branch) {
      sum = x;
    }
    context->save_for_backward(
        {sum,
         weight.value_or(at::Tensor()),
         mask.value_or(at::Tensor()),
         statistics});
    context->set_materialize_grads(false);
    context->saved_data["eps"] = options.eps;
    context->saved_data["centered"] = options.centered;
    context->saved_data["weight_offset"] = options.weight_offset;
    context->saved_data["branch_scale"] = options.branch_scale;
    context->saved_data["has_branch"] = branch.has_value();
    context->saved_data["has_bias"] = bias.has_value();
    return {sum, y};
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const auto tensors = context->get_saved_variables();
    auto& data = context->saved_data;
    const ResidualSaved saved{
        .sum = tensors[0],
        .weight = tensors[1],
        .mask = tensors[2],
        .statistics = tensors[3],
        .options = {
            .eps = data["eps"].toDouble(),
            .centered = data["centered"].toBool(),
            .weight_offset = data["weight_offset"].toDouble(),
            .branch_scale = data["branch_scale"].toDouble()}};
    const bool has_branch = data["has_branch"].toBool();
    // Numbered without inputs that are not there.
    size_t number = 1;
    const auto is_wanted = [&](bool is_there) {
      return is_there && context->needs_input_grad(number++);
    };
    const bool wants_branch = is_wanted(has_branch);
    const bool wants_weight = is_wanted(saved.weight.defined());
    const bool wants_bias = is_wanted(data["has_bias"].toBool());
    ResidualGradients result;
    if (!gradients[1].defined()) {
      if (gradients[0].defined()) {
        result.x = gradients[0];
        result.branch = saved.branch_gradient(gradients[0]);
      }
    } else if (at::GradMode::is_enabled()) {
      result =
          differentiable_residual_gradients(gradients[0], gradients[1], saved);
    } else {
      static const auto op = residual_operator<ResidualNormBackwardOperator>(
          "tessera::residual_norm_backward");
      std::tie(result.x, result.branch, result.weight, result.bias) = op.call(
          given(gradients[0]),
          gradients[1],
          saved.sum,
          saved.statistics,
          given(saved.mask),
          given(saved.weight),
          saved.options.centered,
          saved.options.weight_offset,
          saved.options.branch_scale,
          {wants_branch && saved.scales_branch(), wants_weight, wants_bias});
      if (!saved.scales_branch()) {
        result.branch = result.x;
      }
    }
    const auto if_wanted = [](const at::Tensor& gradient, bool wanted) {
      return wanted ? gradient : at::Tensor();
    };
    return {
        result.x,
        if_wanted(result.branch, wants_branch),
        if_wanted(result.weight, wants_weight),
        if_wanted(result.bias, wants_bias),
        {},
        {}};
  }
};

bool is_residual_type(at::ScalarType dtype) {
  return dtype == at::kFloat || c10::isReducedFloatingType(dtype);
}

} // namespace

bool takes_residual_norm(const at::Tensor& x) {
  return computes_on_cpu(x.device()) && x.layout() == at::kStrided &&
         is_residual_type(x.scalar_type()) && x.dim() >= 1 && x.size(-1) > 0;
}

ResidualNorm residual_norm(
    const at::Tensor& x,
    const at::Tensor& branch,
    const at::Tensor& mask,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const ResidualNormOptions& options) {
  TESSERA_CHECK(
      takes_residual_norm(x),
      "residual_norm: x is {} of shape {} on {}; it must be float32, bfloat16 or float16 [..., features] on the CPU",
      x.scalar_type(),
      x.sizes(),
      x.device());
  TESSERA_CHECK(
      !branch.defined() || (branch.sizes() == x.sizes() &&
                            branch.scalar_type() == x.scalar_type() &&
                            branch.device() == x.device()),
      "residual_norm: branch is {} of shape {} on {}; it must be as x, {} of shape {} on {}",
      branch.defined() ? branch.scalar_type() : x.scalar_type(),
      branch.defined() ? branch.sizes() : x.sizes(),
      branch.defined() ? branch.device() : x.device(),
      x.scalar_type(),
      x.sizes(),
      x.device());
  TESSERA_CHECK(
      !mask.defined() || (branch.defined() && mask.sizes() == x.sizes() &&
                          mask.scalar_type() == at::kBool),
      "residual_norm: mask is {} of shape {}; it must be bool of the shape of a branch, {}",
      mask.defined() ? mask.scalar_type() : at::kBool,
      mask.defined() ? mask.sizes() : x.sizes(),
      x.sizes());
  for (const at::Tensor& parameter : {weight, bias}) {
    TESSERA_CHECK(
        !parameter.defined() ||
            (parameter.is_floating_point() && parameter.dim() == 1 &&
             parameter.size(0) == x.size(-1)),
        "residual_norm: a parameter is {} of shape {}; it must be floating point of shape [{}]",
        parameter.scalar_type(),
        parameter.sizes(),
        x.size(-1));
  }
  const auto requires_gradient = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  if (!at::GradMode::is_enabled() ||
      !(requires_gradient(x) || requires_gradient(branch) ||
        requires_gradient(weight) || requires_gradient(bias))) {
    auto [sum, y, statistics] = call_residual_norm(
        x, given(branch), given(mask), given(weight), given(bias), options);
    return {branch.defined() ? sum : x, y};
  }
  const auto results = ResidualNormFunction::apply(
      x, given(branch), given(weight), given(bias), given(mask), options);
  // Outputs of a function require gradients, also where x does not.
  return {branch.defined() || x.requires_grad() ? results[0] : x, results[1]};
}

} // namespace tessera::runtime
