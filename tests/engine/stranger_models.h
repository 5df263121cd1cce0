// SPDX-License-Identifier: Apache-2.0
#pragma once
// Modules with unusual use of their parameters. Nothing in this file knows
// that they will be trained in pieces.

#include "engine/stranger_sequence_models.h"
#include "engine/stranger_vision_models.h"

namespace strangers {

/// One block called three times in a forward.
struct SharedBlockImpl : torch::nn::Module {
  SharedBlockImpl()
      : in(register_module("in", torch::nn::Linear(9, 14))),
        shared(register_module(
            "shared",
            torch::nn::Sequential(
                torch::nn::Linear(14, 14),
                torch::nn::Tanh(),
                torch::nn::Linear(14, 14)))),
        out(register_module("out", torch::nn::Linear(14, 3))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = in(x);
    for (int i = 0; i < 3; ++i) {
      x = x + shared->forward(x);
    }
    return out(x);
  }

  torch::nn::Linear in;
  torch::nn::Sequential shared;
  torch::nn::Linear out;
};
TORCH_MODULE(SharedBlock);

/// Two experts and a gate that decides, from outside, which ones take part.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl()
      : in(register_module("in", torch::nn::Linear(6, 10))),
        left(register_module("left", torch::nn::Linear(10, 10))),
        right(register_module("right", torch::nn::Linear(10, 10))),
        out(register_module("out", torch::nn::Linear(10, 2))) {
    unused = register_parameter("unused", torch::ones({5}));
  }

  torch::Tensor forward(torch::Tensor x, bool use_left, bool use_right) {
    x = torch::tanh(in(x));
    auto y = x;
    if (use_left) {
      y = y + left(x);
    }
    if (use_right) {
      y = y + right(x);
    }
    return out(y);
  }

  torch::nn::Linear in, left, right, out;
  torch::Tensor unused;
};
TORCH_MODULE(Experts);

/// Parameters of one, two, three elements, a scalar, an odd prime, and none:
/// fewer elements than ranks, and sizes that do not divide by them.
struct OddSizesImpl : torch::nn::Module {
  OddSizesImpl() {
    scale = register_parameter("scale", torch::ones({}));
    shift = register_parameter("shift", torch::zeros({1}));
    pair = register_parameter("pair", torch::ones({2}));
    triple = register_parameter("triple", torch::ones({3, 1}));
    empty = register_parameter("empty", torch::ones({0, 4}));
    linear = register_module("linear", torch::nn::Linear(13, 17));
    last = register_module("last", torch::nn::Linear(17, 3));
    column = register_parameter("column", torch::randn({17, 5}).t());
  }

  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::tanh(linear(x)) * scale + shift;
    auto z = last(y).matmul(triple) * pair.sum();
    return z.mean() + y.matmul(column.t()).square().mean() + empty.sum();
  }

  torch::Tensor scale, shift, pair, triple, empty, column;
  torch::nn::Linear linear{nullptr}, last{nullptr};
};
TORCH_MODULE(OddSizes);

/// A float32 trunk with a float64 head, and a float64 scalar beside float32
/// weights in one module.
struct MixedPrecisionImpl : torch::nn::Module {
  MixedPrecisionImpl()
      : trunk(register_module("trunk", torch::nn::Linear(8, 12))),
        head(register_module("head", torch::nn::Linear(12, 2))) {
    head->to(torch::kDouble);
    temperature = register_parameter(
        "temperature", torch::full({1}, 1.5, torch::kDouble));
    bias = register_parameter("bias", torch::zeros({12}));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = torch::tanh(trunk(x) + bias).to(torch::kDouble);
    return head(y) / temperature;
  }

  torch::nn::Linear trunk, head;
  torch::Tensor temperature, bias;
};
TORCH_MODULE(MixedPrecision);

} // namespace strangers
