// SPDX-License-Identifier: Apache-2.0
#pragma once
// Optimizers in float64, one whole parameter at a time, as their papers have
// them. Deliberately slow and plain.

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace tessera::tests {

/// What a reference keeps for one parameter.
struct ReferenceState {
  std::map<std::string, at::Tensor> tensors;
  int64_t steps = 0;

  at::Tensor& get(const std::string& name, const at::Tensor& like) {
    auto& tensor = tensors[name];
    if (!tensor.defined()) {
      tensor = torch::zeros_like(like);
    }
    return tensor;
  }
};

/// Updates p in place; `state` is p's own, its steps count this one.
using ReferenceUpdate = std::function<
    void(at::Tensor& p, const at::Tensor& g, ReferenceState& state, double lr)>;

inline ReferenceUpdate reference_adam(double wd, bool decoupled) {
  return [=](at::Tensor& p, at::Tensor g, ReferenceState& state, double lr) {
    auto& m = state.get("m", p);
    auto& v = state.get("v", p);
    const auto t = static_cast<double>(state.steps);
    if (!decoupled) {
      g = g + wd * p;
    }
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    const auto mhat = m / (1 - std::pow(0.9, t));
    const auto vhat = v / (1 - std::pow(0.999, t));
    p.copy_(
        p * (decoupled ? 1 - lr * wd : 1) - lr * mhat / (vhat.sqrt() + 1e-8));
  };
}

/// What the update keeps is rounded to bfloat16, through float32 as the kernels
/// do it; what it does to the weights is exact.
inline ReferenceUpdate keeping_bfloat16(ReferenceUpdate update) {
  return [update = std::move(update)](
             at::Tensor& p,
             const at::Tensor& g,
             ReferenceState& state,
             double lr) {
    update(p, g, state, lr);
    for (auto& [name, tensor] : state.tensors) {
      tensor = tensor.to(torch::kFloat).to(torch::kBFloat16).to(p.dtype());
    }
  };
}

inline ReferenceUpdate reference_sgd(double momentum, double wd) {
  return [=](at::Tensor& p, at::Tensor g, ReferenceState& state, double lr) {
    auto& m = state.get("m", p);
    m = momentum * m + g + wd * p;
    p.copy_(p - lr * m);
  };
}

inline ReferenceUpdate reference_lion(double wd) {
  return [=](at::Tensor& p, at::Tensor g, ReferenceState& state, double lr) {
    auto& m = state.get("m", p);
    const auto direction = torch::sign(0.9 * m + 0.1 * g);
    m = 0.99 * m + 0.01 * g;
    p.copy_(p - lr * (direction + wd * p));
  };
}

/// Adan (arXiv:2208.06677), Algorithm 1 with the paper's betas, which are 1
/// minus the options', and with bias corrections. `previous` has no value
/// before the first step, when the difference of the gradients is zero.
struct ReferenceAdan {
  double beta1 = 0.02;
  double beta2 = 0.08;
  double beta3 = 0.01;
  double eps = 1e-8;
  double wd = 0;
  bool proximal = true;

  void operator()(
      at::Tensor& p,
      const at::Tensor& g,
      ReferenceState& state,
      double lr) const {
    auto& m = state.get("m", p);
    auto& v = state.get("v", p);
    auto& n = state.get("n", p);
    const bool is_first = state.tensors.count("previous") == 0;
    auto& previous = state.get("previous", p);
    const at::Tensor difference =
        is_first ? torch::zeros_like(g) : g - previous;
    m = (1 - beta1) * m + beta1 * g;
    v = (1 - beta2) * v + beta2 * difference;
    n = (1 - beta3) * n + beta3 * (g + (1 - beta2) * difference).pow(2);
    previous = g.clone();
    const auto corrected = [&](const at::Tensor& moment, double beta) {
      return moment /
             (1 - std::pow(1 - beta, static_cast<double>(state.steps)));
    };
    const at::Tensor rate = lr / (corrected(n, beta3).sqrt() + eps);
    const at::Tensor step =
        rate * (corrected(m, beta1) + (1 - beta2) * corrected(v, beta2));
    p.copy_(proximal ? (p - step) / (1 + lr * wd) : p - lr * wd * p - step);
  }
};

inline ReferenceUpdate reference_lamb(double wd) {
  return [=](at::Tensor& p, at::Tensor g, ReferenceState& state, double lr) {
    auto& m = state.get("m", p);
    auto& v = state.get("v", p);
    const auto t = static_cast<double>(state.steps);
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    const auto mhat = m / (1 - std::pow(0.9, t));
    const auto vhat = v / (1 - std::pow(0.999, t));
    const auto direction = mhat / (vhat.sqrt() + 1e-6) + wd * p;
    const double weights = p.norm().item<double>();
    const double length = direction.norm().item<double>();
    const double trust =
        weights > 0 && length > 0 ? std::min(weights / length, 10.0) : 1.0;
    p.copy_(p - lr * trust * direction);
  };
}

inline ReferenceUpdate reference_adafactor() {
  return [](at::Tensor& p, at::Tensor g, ReferenceState& state, double lr) {
    const double beta2 = 1 - std::pow(static_cast<double>(state.steps), -0.8);
    const auto squares = g * g + 1e-30;
    at::Tensor moment;
    if (p.dim() >= 2 && p.size(-1) > 1 && p.size(-2) > 1) {
      auto& rows = state.get("rows", squares.mean(-1));
      auto& columns = state.get("columns", squares.mean(-2));
      rows = beta2 * rows + (1 - beta2) * squares.mean(-1);
      columns = beta2 * columns + (1 - beta2) * squares.mean(-2);
      moment = rows.unsqueeze(-1) * columns.unsqueeze(-2) /
               rows.mean(-1, true).unsqueeze(-1);
    } else {
      auto& v = state.get("v", p);
      v = beta2 * v + (1 - beta2) * squares;
      moment = v;
    }
    auto update = g / moment.sqrt();
    const auto rms = [](const at::Tensor& x) {
      return x.square().mean().sqrt().item<double>();
    };
    update = update / std::max(1.0, rms(update));
    p.copy_(p - lr * std::max(1e-3, rms(p)) * update);
  };
}

/// For matrices.
inline ReferenceUpdate reference_muon(double wd) {
  return [=](at::Tensor& p, at::Tensor g, ReferenceState& state, double lr) {
    auto& m = state.get("m", p);
    m = 0.95 * m + 0.05 * g;
    auto x = 0.05 * g + 0.95 * m;
    x = x / (x.norm() + 1e-7);
    for (int i = 0; i < 5; ++i) {
      // The polynomial acts on the singular values, whichever side it is on.
      const auto gram = x.mm(x.t());
      x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram.mm(gram)).mm(x);
    }
    const auto larger = static_cast<double>(std::max(p.size(0), p.size(1)));
    p.copy_(p * (1 - lr * wd) - lr * 0.2 * std::sqrt(larger) * x);
  };
}

} // namespace tessera::tests
