// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/activation.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <torch/types.h>

#include <cmath>
#include <numbers>

namespace tessera::zoo {

namespace {

struct Named {
  const char* name;
  Activation function;
};

at::Tensor gelu(const at::Tensor& x) {
  return at::gelu(x);
}

at::Tensor tanh_gelu(const at::Tensor& x) {
  return at::gelu(x, "tanh");
}

at::Tensor silu(const at::Tensor& x) {
  return at::silu(x);
}

// One polynomial inside of tanh, with the constant written out to ten digits.
at::Tensor fast_gelu(const at::Tensor& x) {
  return 0.5 * x * (1 + at::tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)));
}

at::Tensor laplace(const at::Tensor& x) {
  constexpr double kMean = 0.707107;
  constexpr double kDeviation = 0.282095;
  return 0.5 * (1 + at::erf((x - kMean) / (kDeviation * std::numbers::sqrt2)));
}

constexpr Named kActivations[] = {
    {"gelu", gelu},
    {"gelu_10", [](const at::Tensor& x) { return at::gelu(x).clamp(-10, 10); }},
    {"gelu_accurate", tanh_gelu},
    {"gelu_fast", fast_gelu},
    {"gelu_new", tanh_gelu},
    {"gelu_python", gelu},
    {"gelu_python_tanh", tanh_gelu},
    {"gelu_pytorch_tanh", tanh_gelu},
    {"hardswish", [](const at::Tensor& x) { return at::hardswish(x); }},
    {"laplace", laplace},
    {"leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x); }},
    {"linear", [](const at::Tensor& x) { return x; }},
    {"mish", [](const at::Tensor& x) { return at::mish(x); }},
    {"quick_gelu",
     [](const at::Tensor& x) { return x * at::sigmoid(1.702 * x); }},
    {"relu", [](const at::Tensor& x) { return at::relu(x); }},
    {"relu2", [](const at::Tensor& x) { return at::relu(x).square(); }},
    {"relu6", [](const at::Tensor& x) { return at::relu6(x); }},
    {"sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); }},
    {"silu", silu},
    {"sqrtsoftplus",
     [](const at::Tensor& x) { return at::softplus(x).sqrt(); }},
    {"swish", silu},
    {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
};

} // namespace

Activation activation(const std::string& name) {
  for (const Named& one : kActivations) {
    if (name == one.name) {
      return one.function;
    }
  }
  const std::string nearest = runtime::nearest_name(name, activation_names());
  TESSERA_FAIL(
      "the activation '{}' is not implemented{}",
      name,
      nearest.empty() ? "" : "; the nearest is '" + nearest + "'");
}

std::vector<std::string> activation_names() {
  std::vector<std::string> names;
  for (const Named& one : kActivations) {
    names.emplace_back(one.name);
  }
  return names;
}

} // namespace tessera::zoo
