// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model whose training depends on everything that a checkpoint keeps.

#include "engine/twin.h"
#include "support/temporary_folder.h"

#include "tessera/engine/checkpoint/checkpointable.h"

#include <map>
#include <string>

namespace tessera::tests {

/// Odd sizes; dropout, batch statistics, a frozen layer.
struct RestlessImpl : torch::nn::Module {
  RestlessImpl()
      : first(register_module("first", torch::nn::Linear(7, 13))),
        norm(register_module("norm", torch::nn::BatchNorm1d(13))),
        frozen(register_module("frozen", torch::nn::Linear(13, 13))),
        last(register_module("last", torch::nn::Linear(13, 3))) {
    frozen->weight.requires_grad_(false);
    frozen->bias.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = frozen(torch::relu(norm(first(x))));
    return last(torch::dropout(y, 0.3, is_training()));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear frozen;
  torch::nn::Linear last;
};
TORCH_MODULE(Restless);

inline Restless make_restless(uint64_t seed, at::ScalarType dtype) {
  torch::manual_seed(seed);
  Restless net;
  net->to(dtype);
  return net;
}

/// Steps with random batches: where the generators are shows.
inline void train_steps(Engine& engine, Restless& net, int steps) {
  for (int i = 0; i < steps; ++i) {
    const auto dtype = net->norm->running_mean.scalar_type();
    const auto x = torch::randn({5, 7}, dtype);
    engine.backward(net->forward(x).square().mean());
    engine.step();
  }
}

/// Collective. All parameters and buffers by name.
inline std::map<std::string, at::Tensor> values_of(
    Engine& engine,
    torch::nn::Module& net) {
  std::map<std::string, at::Tensor> values;
  engine.for_each_parameter([&](const std::string& name, const at::Tensor& v) {
    values[name] = v.clone();
  });
  for (const auto& buffer : net.named_buffers()) {
    values[buffer.key()] = buffer.value().clone();
  }
  return values;
}

inline void expect_equal(
    const std::map<std::string, at::Tensor>& got,
    const std::map<std::string, at::Tensor>& want,
    const std::string& label) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, value] : want) {
    EXPECT_TRUE(torch::equal(got.at(name), value)) << label << ": " << name;
  }
}

} // namespace tessera::tests
