// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/mixed_norm.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/norm_arguments.h"
#include "tessera/runtime/kernels/operator_norms.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/threads/parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

namespace tessera::runtime {

namespace {

at::Tensor as_rows(const at::Tensor& x, int64_t features) {
  return x.contiguous().view({x.numel() / features, features});
}

/// Sum of term(i) for i in [0, count), in an order that depends on `count`
/// only.
template <typename Term>
float lane_sum(int64_t count, const Term& term) {
  constexpr int64_t kLanes = 16;
  std::array<float, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[static_cast<size_t>(lane)] += term(i + lane);
    }
  }
  float sum = 0;
  for (; i < count; ++i) {
    sum += term(i);
  }
  return std::accumulate(lanes.begin(), lanes.end(), sum);
}

// Elements that are worth a thread.
constexpr int64_t kGrain = int64_t{1} << 14;

/// Calls call(row) for all rows, on several threads.
template <typename Call>
void for_rows(const at::Tensor& rows, const Call& call) {
  if (is_dry_memory(rows.const_data_ptr())) {
    return;
  }
  parallel_for(
      0,
      rows.size(0),
      kGrain / rows.size(1) + 1,
      [&](int64_t row, int64_t end) {
        for (; row < end; ++row) {
          call(row);
        }
      });
}

/// Null if `matrix` is.
const float* row_of(const float* matrix, int64_t row, int64_t features) {
  return matrix == nullptr ? nullptr : matrix + row * features;
}

template <typename T>
void normalize(
    const at::Tensor& x,
    int64_t groups,
    const float* weights, // [groups, features], as biases
    const float* biases,
    float eps,
    const at::Tensor& y,
    float* means, // null: not centered
    float* rstds) {
  const int64_t features = x.size(1);
  const auto count = static_cast<float>(features);
  const T* from = x.const_data_ptr<T>();
  T* to = y.mutable_data_ptr<T>();
  for_rows(x, [&](int64_t row) {
    const T* in = from + row * features;
    T* out = to + row * features;
    const float* weight = row_of(weights, row % groups, features);
    const float* bias = row_of(biases, row % groups, features);
    float mean = 0;
    if (means != nullptr) {
      mean =
          lane_sum(
              features, [in](int64_t i) { return static_cast<float>(in[i]); }) /
          count;
      means[row] = mean;
    }
    const float squares = lane_sum(features, [in, mean](int64_t i) {
      const float centered = static_cast<float>(in[i]) - mean;
      return centered * centered;
    });
    const float rstd = 1 / std::sqrt(squares / count + eps);
    rstds[row] = rstd;
    for (int64_t i = 0; i < features; ++i) {
      float value = (static_cast<float>(in[i]) - mean) * rstd;
      value = weight == nullptr ? value : value * weight[i];
      out[i] = static_cast<T>(bias == nullptr ? value : value + bias[i]);
    }
  });
}

/// What backward reads.
template <typename T>
struct Saved {
  const T* x;
  const T* gradient;
  const float* means; ///< null: not centered
  const float* rstds;

  float mean(int64_t row) const {
    return means == nullptr ? 0 : means[row];
  }
};

template <typename T>
void backward_of_x(
    const Saved<T>& saved,
    int64_t groups,
    const float* weights, // [groups, features]
    const at::Tensor& result) {
  const int64_t features = result.size(1);
  const auto count = static_cast<float>(features);
  T* to = result.mutable_data_ptr<T>();
  for_rows(result, [&](int64_t row) {
    const T* in = saved.x + row * features;
    const T* from = saved.gradient + row * features;
    T* out = to + row * features;
    const float* weight = row_of(weights, row % groups, features);
    const float mean = saved.mean(row);
    const float rstd = saved.rstds[row];
    const auto normed = [=](int64_t i) {
      return (static_cast<float>(in[i]) - mean) * rstd;
    };
    const auto scaled = [=](int64_t i) {
      const auto local = static_cast<float>(from[i]);
      return weight == nullptr ? local : local * weight[i];
    };
    const float product_mean =
        lane_sum(features, [=](int64_t i) { return scaled(i) * normed(i); }) /
        count;
    const float sum_mean =
        saved.means == nullptr ? 0 : lane_sum(features, scaled) / count;
    for (int64_t i = 0; i < features; ++i) {
      out[i] = static_cast<T>(
          rstd * (scaled(i) - sum_mean - normed(i) * product_mean));
    }
  });
}

/// A thread has columns of its own, so that the sums over rows do not depend on
/// the number of threads.
template <typename T>
void backward_of_parameters(
    const Saved<T>& saved,
    int64_t rows,
    int64_t groups,
    int64_t features,
    float* weights, // [groups, features], as biases; null: not wanted
    float* biases) {
  if (is_dry_memory(saved.x)) {
    return;
  }
  parallel_for(0, groups * features, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t group = row % groups * features;
      const int64_t first = std::max(begin, group) - group;
      const int64_t last = std::min(end, group + features) - group;
      const T* in = saved.x + row * features;
      const T* from = saved.gradient + row * features;
      const float mean = saved.mean(row);
      const float rstd = saved.rstds[row];
      for (int64_t i = first; weights != nullptr && i < last; ++i) {
        weights[group + i] += static_cast<float>(from[i]) *
                              (static_cast<float>(in[i]) - mean) * rstd;
      }
      for (int64_t i = first; biases != nullptr && i < last; ++i) {
        biases[group + i] += static_cast<float>(from[i]);
      }
    }
  });
}

template <typename Call>
void with_type(at::ScalarType dtype, const Call& call) {
  if (dtype == at::kBFloat16) {
    call(at::BFloat16());
  } else {
    call(at::Half());
  }
}

/// [groups, features], one for each element of a row; undefined for None.
at::Tensor by_element(
    const std::optional<at::Tensor>& parameter,
    const NormLayout& layout) {
  const at::Tensor local = contiguous_or_none(parameter);
  return local.defined() && layout.spatial > 1
             ? local.reshape({-1, 1}).expand({-1, layout.spatial}).contiguous()
             : local;
}

NormResults forward_cpu(
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool centered) {
  const NormLayout layout{features, groups, spatial};
  const at::Tensor rows = as_rows(x, features);
  const at::Tensor scale = by_element(weight, layout);
  const at::Tensor shift = by_element(bias, layout);
  const auto statistics = rows.options().dtype(at::kFloat);
  at::Tensor y = at::empty(x.sizes(), rows.options());
  at::Tensor mean = at::empty({centered ? rows.size(0) : 0}, statistics);
  at::Tensor rstd = at::empty({rows.size(0)}, statistics);
  with_type(x.scalar_type(), [&]<typename T>(T) {
    normalize<T>(
        rows,
        groups,
        float_data(scale),
        float_data(shift),
        static_cast<float>(eps),
        y,
        centered ? mutable_float_data(mean) : nullptr,
        mutable_float_data(rstd));
  });
  return {y, mean, rstd};
}

NormResults backward_cpu(
    const at::Tensor& gradient,
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight,
    bool centered,
    std::array<bool, 3> wanted) {
  const NormLayout layout{features, groups, spatial};
  const at::Tensor rows = as_rows(x, features);
  const at::Tensor from = as_rows(gradient, features);
  const at::Tensor scale = by_element(weight, layout);
  const auto zeros = [&](bool is_wanted) {
    return is_wanted ? at::zeros({groups * features}, rstd.options())
                     : at::Tensor();
  };
  const auto by_parameter = [&](const at::Tensor& by_element) {
    return by_element.defined() && spatial > 1
               ? by_element.view({layout.parameters(), spatial}).sum(1)
               : by_element;
  };
  at::Tensor gradient_x;
  const at::Tensor gradient_weight = zeros(wanted[1]);
  const at::Tensor gradient_bias = zeros(wanted[2]);
  with_type(x.scalar_type(), [&]<typename T>(T) {
    const Saved<T> saved{
        rows.const_data_ptr<T>(),
        from.const_data_ptr<T>(),
        centered ? float_data(mean) : nullptr,
        float_data(rstd)};
    if (wanted[0]) {
      gradient_x = at::empty_like(rows);
      backward_of_x(saved, groups, float_data(scale), gradient_x);
      gradient_x = gradient_x.view(x.sizes());
    }
    backward_of_parameters(
        saved,
        rows.size(0),
        groups,
        features,
        mutable_float_data(gradient_weight),
        mutable_float_data(gradient_bias));
  });
  return {
      gradient_x, by_parameter(gradient_weight), by_parameter(gradient_bias)};
}

/// Registers the operators with LibTorch.
void define_operators() {
  // Never destroyed: graphs may be freed at exit.
  static auto* const library = [] {
    auto* defined = new torch::Library(
        torch::Library::FRAGMENT, "tessera", std::nullopt, __FILE__, __LINE__);
    defined->def(
        "mixed_norm(Tensor x, int features, int groups, int spatial, Tensor? weight, Tensor? bias, float eps, bool centered) -> (Tensor, Tensor, Tensor)");
    defined->def(
        "mixed_norm_backward(Tensor gradient, Tensor x, int features, int groups, int spatial, Tensor mean, Tensor rstd, Tensor? weight, bool centered, bool[3] wanted) -> (Tensor, Tensor, Tensor)");
    defined->impl(
        "mixed_norm", torch::dispatch(c10::DispatchKey::CPU, &forward_cpu));
    defined->impl(
        "mixed_norm_backward",
        torch::dispatch(c10::DispatchKey::CPU, &backward_cpu));
    return defined;
  }();
  static_cast<void>(library);
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  define_operators();
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Signature>();
}

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

/// The gradients by operators that are differentiable themselves.
NormGradients differentiable_gradients(
    const at::Tensor& gradient,
    const at::Tensor& x,
    const NormLayout& layout,
    const at::Tensor& weight,
    double eps,
    bool centered) {
  NormGradients result = norm_gradients(
      norm_rows(gradient, layout),
      normed_rows(norm_rows(x, layout), eps, centered),
      weight,
      centered);
  result.x = result.x.view(x.sizes()).to(x.scalar_type());
  return result;
}

class MixedNorm : public torch::autograd::Function<MixedNorm> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      const std::optional<at::Tensor>& weight,
      const std::optional<at::Tensor>& bias,
      at::IntArrayRef shape,
      const NormLayout& layout,
      double eps,
      bool centered) {
    static const auto op = find_operator<NormOperator>("tessera::mixed_norm");
    const auto [y, mean, rstd] = op.call(
        x,
        layout.features,
        layout.groups,
        layout.spatial,
        weight,
        bias,
        eps,
        centered);
    context->save_for_backward({x, weight.value_or(at::Tensor()), mean, rstd});
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["shape"] = shape.vec();
    context->saved_data["layout"] =
        std::vector<int64_t>{layout.features, layout.groups, layout.spatial};
    context->saved_data["eps"] = eps;
    context->saved_data["centered"] = centered;
    return y;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const auto shape = context->saved_data["shape"].toIntVector();
    const auto numbers = context->saved_data["layout"].toIntVector();
    const NormLayout layout{numbers[0], numbers[1], numbers[2]};
    const bool centered = context->saved_data["centered"].toBool();
    // Numbered without inputs that are not there.
    const size_t bias_number = weight.defined() ? 2 : 1;
    const std::array<bool, 3> wanted = {
        context->needs_input_grad(0),
        weight.defined() && context->needs_input_grad(1),
        context->saved_data["has_bias"].toBool() &&
            context->needs_input_grad(bias_number)};
    NormGradients result;
    if (at::GradMode::is_enabled()) {
      result = differentiable_gradients(
          gradients[0],
          x,
          layout,
          weight,
          context->saved_data["eps"].toDouble(),
          centered);
    } else {
      static const auto op =
          find_operator<NormBackwardOperator>("tessera::mixed_norm_backward");
      std::tie(result.x, result.weight, result.bias) = op.call(
          gradients[0],
          x,
          layout.features,
          layout.groups,
          layout.spatial,
          saved[2],
          saved[3],
          optional_of(weight),
          centered,
          wanted);
    }
    const auto shaped = [&](const at::Tensor& gradient, bool is_wanted) {
      return is_wanted ? gradient.view(shape) : at::Tensor();
    };
    return {
        result.x,
        shaped(result.weight, wanted[1]),
        shaped(result.bias, wanted[2]),
        {},
        {},
        {},
        {}};
  }
};

void check_dtype(const char* name, const at::Tensor& x) {
  TESSERA_CHECK(
      c10::isReducedFloatingType(x.scalar_type()),
      "{}: x is {} of shape {}; it must be bfloat16 or float16",
      name,
      x.scalar_type(),
      x.sizes());
}

at::Tensor norm(
    const char* name,
    const at::Tensor& x,
    at::IntArrayRef shape,
    const NormLayout& layout,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps,
    bool centered) {
  for (const at::Tensor& parameter : {weight, bias}) {
    TESSERA_CHECK(
        !parameter.defined() ||
            (parameter.scalar_type() == at::kFloat &&
             parameter.sizes() == shape && parameter.device() == x.device()),
        "{}: a parameter is {} of shape {} on {}; it must be float32 of shape {} on {}",
        name,
        parameter.scalar_type(),
        parameter.sizes(),
        parameter.device(),
        shape,
        x.device());
  }
  return MixedNorm::apply(
      x, optional_of(weight), optional_of(bias), shape, layout, eps, centered);
}

/// Of the last dimensions.
at::Tensor norm_of_last(
    const char* name,
    const at::Tensor& x,
    at::IntArrayRef shape,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps,
    bool centered) {
  check_dtype(name, x);
  TESSERA_CHECK(
      !shape.empty() && x.dim() >= static_cast<int64_t>(shape.size()) &&
          x.sizes().slice(x.sizes().size() - shape.size()) == shape,
      "{}: x has shape {}; it must end in {}",
      name,
      x.sizes(),
      shape);
  const NormLayout layout{c10::multiply_integers(shape)};
  return norm(name, x, shape, layout, weight, bias, eps, centered);
}

} // namespace

at::Tensor mixed_layer_norm(
    const at::Tensor& x,
    at::IntArrayRef shape,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps) {
  return norm_of_last("mixed_layer_norm", x, shape, weight, bias, eps, true);
}

at::Tensor mixed_rms_norm(
    const at::Tensor& x,
    at::IntArrayRef shape,
    const at::Tensor& weight,
    double eps) {
  return norm_of_last("mixed_rms_norm", x, shape, weight, {}, eps, false);
}

at::Tensor mixed_group_norm(
    const at::Tensor& x,
    int64_t groups,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps) {
  check_dtype("mixed_group_norm", x);
  TESSERA_CHECK(
      x.dim() >= 2 && groups > 0 && x.size(1) % groups == 0 && x.numel() > 0,
      "mixed_group_norm: x has shape {}; it must have elements, and channels for {} groups of one size",
      x.sizes(),
      groups);
  const int64_t channels = x.size(1);
  const int64_t spatial = x.numel() / (x.size(0) * channels);
  const NormLayout layout{channels / groups * spatial, groups, spatial};
  return norm(
      "mixed_group_norm", x, {channels}, layout, weight, bias, eps, true);
}

} // namespace tessera::runtime
