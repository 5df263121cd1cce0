// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/gated_activation.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/layer_kernels.h"
#include "tessera/runtime/kernels/pack_segments.h"
#include "tessera/runtime/kernels/row_math.h"
#include "tessera/runtime/kernels/target_clones.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/threads/parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace tessera::runtime {

namespace {

using GatedOperator =
    at::Tensor(const at::Tensor& gate, const at::Tensor& up, int64_t function);
using GatedGradients = std::tuple<at::Tensor, at::Tensor>;
using GatedBackwardOperator = GatedGradients(
    const at::Tensor& gradient,
    const at::Tensor& gate,
    const at::Tensor& up,
    int64_t function);

// Elements that are worth a thread.
constexpr int64_t kGatedGrain = int64_t{1} << 14;

struct ValueAndSlope {
  float value;
  float slope;
};

/// x sigmoid(u), with the derivative of u.
TESSERA_INLINE ValueAndSlope by_sigmoid(float x, float u, float u_slope) {
  const float e = row_math::exponential(-u);
  const float s = 1 / (1 + e);
  const float rest = s > 0 ? e * s : 1; // 1 - s would cancel
  return {x * s, s * (1 + x * rest * u_slope)};
}

template <GateFunction kFunction>
TESSERA_INLINE ValueAndSlope gate_of(float x) {
  if constexpr (kFunction == GateFunction::kSilu) {
    return by_sigmoid(x, x, 1);
  } else if constexpr (kFunction == GateFunction::kTanhGelu) {
    // (1 + tanh(u / 2)) / 2 is the sigmoid of u.
    constexpr float kScale = 1.5957691216F; // 2 sqrt(2 / pi)
    constexpr float kCubic = 0.044715F;
    const float squared = x * x;
    return by_sigmoid(
        x,
        kScale * x * (1 + kCubic * squared),
        kScale * (1 + 3 * kCubic * squared));
  } else {
    constexpr float kDensity = 0.39894228F; // 1 / sqrt(2 pi)
    const float below = row_math::normal_distribution(x);
    const float density = kDensity * row_math::exponential(-0.5F * x * x);
    return {x * below, below + x * density};
  }
}

template <GateFunction kFunction, typename T>
TESSERA_CLONES void gated_range(
    const T* __restrict gate,
    const T* __restrict up,
    T* __restrict y,
    int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    y[i] = row_math::Narrow<T>::of(
        gate_of<kFunction>(row_math::widened(gate[i])).value *
        row_math::widened(up[i]));
  }
}

template <GateFunction kFunction, typename T>
TESSERA_CLONES void gated_backward_range(
    const T* __restrict gradient,
    const T* __restrict gate,
    const T* __restrict up,
    T* __restrict gradient_gate,
    T* __restrict gradient_up,
    int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const ValueAndSlope gated = gate_of<kFunction>(row_math::widened(gate[i]));
    const float from = row_math::widened(gradient[i]);
    gradient_gate[i] =
        row_math::Narrow<T>::of(from * row_math::widened(up[i]) * gated.slope);
    gradient_up[i] = row_math::Narrow<T>::of(from * gated.value);
  }
}

/// Calls call.operator()<function, element>().
template <typename Call>
void with_function(int64_t function, at::ScalarType dtype, const Call& call) {
  const auto of_type = [&]<GateFunction kFunction>() {
    switch (dtype) {
      case at::kFloat:
        call.template operator()<kFunction, float>();
        return;
      case at::kBFloat16:
        call.template operator()<kFunction, c10::BFloat16>();
        return;
      default:
        call.template operator()<kFunction, c10::Half>();
    }
  };
  switch (static_cast<GateFunction>(function)) {
    case GateFunction::kSilu:
      of_type.template operator()<GateFunction::kSilu>();
      return;
    case GateFunction::kGelu:
      of_type.template operator()<GateFunction::kGelu>();
      return;
    case GateFunction::kTanhGelu:
      of_type.template operator()<GateFunction::kTanhGelu>();
      return;
  }
}

at::Tensor gated_of_cpu(
    const at::Tensor& gate_,
    const at::Tensor& up_,
    int64_t function) {
  const at::Tensor gate = gate_.contiguous();
  const at::Tensor up = up_.contiguous();
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (is_dry_memory(y.const_data_ptr())) {
    return y;
  }
  with_function(
      function, gate.scalar_type(), [&]<GateFunction kFunction, typename T>() {
        const T* gates = gate.const_data_ptr<T>();
        const T* ups = up.const_data_ptr<T>();
        T* to = y.mutable_data_ptr<T>();
        parallel_for(
            0, y.numel(), kGatedGrain, [=](int64_t begin, int64_t end) {
              gated_range<kFunction, T>(
                  gates + begin, ups + begin, to + begin, end - begin);
            });
      });
  return y;
}

GatedGradients gated_backward_of_cpu(
    const at::Tensor& gradient_,
    const at::Tensor& gate_,
    const at::Tensor& up_,
    int64_t function) {
  const at::Tensor gradient = gradient_.contiguous();
  const at::Tensor gate = gate_.contiguous();
  const at::Tensor up = up_.contiguous();
  at::Tensor gradient_gate = at::empty(gate.sizes(), gate.options());
  at::Tensor gradient_up = at::empty(gate.sizes(), gate.options());
  if (is_dry_memory(gradient_up.const_data_ptr())) {
    return {gradient_gate, gradient_up};
  }
  with_function(
      function, gate.scalar_type(), [&]<GateFunction kFunction, typename T>() {
        const T* from = gradient.const_data_ptr<T>();
        const T* gates = gate.const_data_ptr<T>();
        const T* ups = up.const_data_ptr<T>();
        T* to_gate = gradient_gate.mutable_data_ptr<T>();
        T* to_up = gradient_up.mutable_data_ptr<T>();
        parallel_for(
            0, gate.numel(), kGatedGrain, [=](int64_t begin, int64_t end) {
              gated_backward_range<kFunction, T>(
                  from + begin,
                  gates + begin,
                  ups + begin,
                  to_gate + begin,
                  to_up + begin,
                  end - begin);
            });
      });
  return {gradient_gate, gradient_up};
}

GatedRows rows_of(
    const at::Tensor& gate,
    const at::Tensor& up,
    int64_t function) {
  return {
      .function = static_cast<GateFunction>(function),
      .type = *detail::element_type(gate.scalar_type()),
      .gate = gate.const_data_ptr(),
      .up = up.const_data_ptr(),
      .numel = gate.numel()};
}

at::Tensor gated_of_device(
    const at::Tensor& gate_,
    const at::Tensor& up_,
    int64_t function) {
  const c10::DeviceGuard guard(gate_.device());
  const at::Tensor gate = gate_.contiguous();
  const at::Tensor up = up_.contiguous();
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  GatedRows rows = rows_of(gate, up, function);
  rows.y = y.mutable_data_ptr();
  if (rows.numel > 0) {
    gated_cuda(rows);
  }
  return y;
}

GatedGradients gated_backward_of_device(
    const at::Tensor& gradient_,
    const at::Tensor& gate_,
    const at::Tensor& up_,
    int64_t function) {
  const c10::DeviceGuard guard(gate_.device());
  const at::Tensor gradient = gradient_.contiguous();
  const at::Tensor gate = gate_.contiguous();
  const at::Tensor up = up_.contiguous();
  at::Tensor gradient_gate = at::empty(gate.sizes(), gate.options());
  at::Tensor gradient_up = at::empty(gate.sizes(), gate.options());
  GatedRows rows = rows_of(gate, up, function);
  rows.gradient = gradient.const_data_ptr();
  rows.gradient_gate = gradient_gate.mutable_data_ptr();
  rows.gradient_up = gradient_up.mutable_data_ptr();
  if (rows.numel > 0) {
    gated_backward_cuda(rows);
  }
  return {gradient_gate, gradient_up};
}

at::Tensor gated_with_graph(
    const at::Tensor& gate,
    const at::Tensor& up,
    int64_t function);

/// Registers the operators with LibTorch.
void define_gated_operators() {
  // Never destroyed: graphs may be freed at exit.
  static auto* const library = [] {
    auto* defined = new torch::Library(
        torch::Library::FRAGMENT, "tessera", std::nullopt, __FILE__, __LINE__);
    const std::vector<at::Tag> tags = {at::Tag::pointwise};
    defined->def(
        "gated_activation(Tensor gate, Tensor up, int function) -> Tensor",
        tags);
    defined->def(
        "gated_activation_backward(Tensor gradient, Tensor gate, Tensor up, int function) -> (Tensor, Tensor)",
        tags);
    defined->impl(
        "gated_activation",
        torch::dispatch(c10::DispatchKey::Autograd, &gated_with_graph));
    defined->impl(
        "gated_activation",
        torch::dispatch(c10::DispatchKey::CPU, &gated_of_cpu));
    defined->impl(
        "gated_activation_backward",
        torch::dispatch(c10::DispatchKey::CPU, &gated_backward_of_cpu));
    defined->impl(
        "gated_activation",
        torch::dispatch(c10::DispatchKey::CUDA, &gated_of_device));
    defined->impl(
        "gated_activation_backward",
        torch::dispatch(c10::DispatchKey::CUDA, &gated_backward_of_device));
    return defined;
  }();
  static_cast<void>(library);
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> gated_operator(const char* name) {
  define_gated_operators();
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Signature>();
}

at::Tensor call_gated(
    const at::Tensor& gate,
    const at::Tensor& up,
    int64_t function) {
  static const auto op =
      gated_operator<GatedOperator>("tessera::gated_activation");
  return op.call(gate, up, function);
}

/// The gradients by operators that are differentiable themselves.
GatedGradients differentiable_gated_gradients(
    const at::Tensor& gradient,
    const at::Tensor& gate,
    const at::Tensor& up,
    int64_t function) {
  const at::Tensor of_value = gradient * up;
  switch (static_cast<GateFunction>(function)) {
    case GateFunction::kSilu: {
      // silu_backward() has no derivative.
      const at::Tensor s = at::sigmoid(gate);
      return {of_value * s * (1 + gate * (1 - s)), gradient * gate * s};
    }
    case GateFunction::kGelu:
      return {at::gelu_backward(of_value, gate), gradient * at::gelu(gate)};
    case GateFunction::kTanhGelu:
      return {
          at::gelu_backward(of_value, gate, "tanh"),
          gradient * at::gelu(gate, "tanh")};
  }
  return {};
}

class GatedActivation : public torch::autograd::Function<GatedActivation> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& gate,
      const at::Tensor& up,
      int64_t function) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({gate, up});
    context->saved_data["function"] = function;
    return call_gated(gate, up, function);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const int64_t function = context->saved_data["function"].toInt();
    if (at::GradMode::is_enabled()) {
      const auto [gate, up] = differentiable_gated_gradients(
          gradients[0], saved[0], saved[1], function);
      return {gate, up, {}};
    }
    static const auto op = gated_operator<GatedBackwardOperator>(
        "tessera::gated_activation_backward");
    const auto [gate, up] = op.call(gradients[0], saved[0], saved[1], function);
    return {gate, up, {}};
  }
};

using GatedNode = torch::autograd::CppNode<GatedActivation>;

at::Tensor gated_with_graph(
    const at::Tensor& gate,
    const at::Tensor& up,
    int64_t function) {
  return GatedActivation::apply(gate, up, function);
}

} // namespace

at::Tensor gated_activation(
    const at::Tensor& gate,
    const at::Tensor& up,
    GateFunction function) {
  TESSERA_CHECK(
      gate.scalar_type() == at::kFloat ||
          c10::isReducedFloatingType(gate.scalar_type()),
      "gated_activation: gate is {} of shape {}; it must be float32, bfloat16 or float16",
      gate.scalar_type(),
      gate.sizes());
  TESSERA_CHECK(
      up.sizes() == gate.sizes() && up.scalar_type() == gate.scalar_type() &&
          up.device() == gate.device(),
      "gated_activation: up is {} of shape {} on {}; it must be as gate, {} of shape {} on {}",
      up.scalar_type(),
      up.sizes(),
      up.device(),
      gate.scalar_type(),
      gate.sizes(),
      gate.device());
  return call_gated(gate, up, static_cast<int64_t>(function));
}

bool is_gated_activation(const torch::autograd::Node& node) {
  return dynamic_cast<const GatedNode*>(&node) != nullptr;
}

at::Tensor gated_activation_again(torch::autograd::Node& node) {
  auto& context = dynamic_cast<GatedNode&>(node).ctx_;
  const auto saved = context.get_saved_variables();
  const at::AutoDispatchBelowADInplaceOrView below;
  return call_gated(saved[0], saved[1], context.saved_data["function"].toInt());
}

} // namespace tessera::runtime
