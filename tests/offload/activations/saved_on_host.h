// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models whose saved tensors go to the host, and what they come to.

#include "tessera/offload/activations/host_activation_sink.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace F = torch::nn::functional;

/// A function of its parameters, the same at every call.
struct Subject {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor()> loss;
};

template <typename Holder, typename Loss>
inline Subject subject(
    const std::string& name,
    Holder holder,
    const Loss& loss) {
  return {name, holder.ptr(), [holder, loss]() mutable {
            torch::manual_seed(3);
            return loss(holder);
          }};
}

inline std::vector<Subject> subjects() {
  torch::manual_seed(1);
  std::vector<Subject> all;
  torch::nn::Sequential mlp(
      torch::nn::Linear(12, 20),
      torch::nn::GELU(),
      torch::nn::Dropout(0.3),
      torch::nn::Linear(20, 20),
      torch::nn::Tanh(),
      torch::nn::Linear(20, 5));
  all.push_back(subject("mlp", mlp, [](torch::nn::Sequential& net) {
    return F::cross_entropy(
        net->forward(torch::randn({9, 12})), torch::arange(9) % 5);
  }));
  torch::nn::Sequential conv(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1)),
      torch::nn::BatchNorm2d(6),
      torch::nn::ReLU(torch::nn::ReLUOptions(true)), // in place
      torch::nn::MaxPool2d(2),
      torch::nn::Conv2d(6, 4, 3),
      torch::nn::Flatten(),
      torch::nn::Linear(36, 3));
  all.push_back(subject("conv", conv, [](torch::nn::Sequential& net) {
    return net->forward(torch::randn({4, 3, 10, 10})).square().mean();
  }));
  torch::nn::MultiheadAttention attention(
      torch::nn::MultiheadAttentionOptions(8, 2).dropout(0.2));
  all.push_back(subject("attention", attention, [](auto& net) {
    const auto x = torch::randn({7, 3, 8});
    const auto mask = torch::ones({7, 7}, torch::kBool).triu(1);
    return std::get<0>(net->forward(x, x, x, {}, true, mask)).square().sum();
  }));
  torch::nn::LSTM lstm(
      torch::nn::LSTMOptions(5, 8).num_layers(2).dropout(0.2).bidirectional(
          true));
  all.push_back(subject("lstm", lstm, [](torch::nn::LSTM& net) {
    return std::get<0>(net->forward(torch::randn({6, 3, 5}))).square().sum();
  }));
  torch::nn::LSTMCell cell(5, 8); // changes parts of a storage in place
  all.push_back(subject("cell", cell, [](torch::nn::LSTMCell& net) {
    auto [hidden, state] = net->forward(torch::randn({3, 5}));
    for (int i = 0; i < 4; ++i) {
      std::tie(hidden, state) =
          net->forward(torch::randn({3, 5}), std::tuple(hidden, state));
    }
    return hidden.square().sum();
  }));
  return all;
}

inline std::map<std::string, at::Tensor> gradients(const Subject& subject) {
  subject.module->zero_grad();
  subject.loss().backward();
  std::map<std::string, at::Tensor> result;
  for (const auto& item : subject.module->named_parameters()) {
    result[item.key()] = item.value().grad().clone();
  }
  return result;
}

inline bool held_by(
    const torch::nn::Module& module,
    const c10::StorageImpl& storage) {
  const auto is_its = [&](const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl() == &storage;
  };
  const auto parameters = module.parameters();
  const auto buffers = module.buffers();
  return std::any_of(parameters.begin(), parameters.end(), is_its) ||
         std::any_of(buffers.begin(), buffers.end(), is_its);
}

inline offload::HostActivationSinkOptions options(
    std::optional<int64_t> device_bytes,
    int64_t prefetch_bytes = 0) {
  offload::HostActivationSinkOptions options;
  options.device_bytes = device_bytes;
  options.prefetch_bytes = prefetch_bytes;
  options.min_tensor_bytes = 0;
  return options;
}

inline std::shared_ptr<offload::HostActivationSink> make_sink(
    const offload::HostActivationSinkOptions& options) {
  return std::make_shared<offload::HostActivationSink>(options);
}

inline void expect_empty(
    const offload::HostActivationSink& sink,
    const std::string& when) {
  const auto statistics = sink.statistics();
  EXPECT_EQ(statistics.live_device_bytes, 0) << when;
  EXPECT_EQ(statistics.live_host_bytes, 0) << when;
  EXPECT_EQ(statistics.live_storages, 0) << when;
}

/// A chain of n operators that each save one [256] float tensor: 1 KiB.
inline at::Tensor chain(at::Tensor x, int n) {
  for (int i = 0; i < n; ++i) {
    x = x.exp().neg();
  }
  return x.sum();
}

inline at::Tensor chain_input() {
  return torch::linspace(-1, 0, 256).requires_grad_();
}

} // namespace tessera
