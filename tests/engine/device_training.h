// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training on a device: against plain LibTorch, and with streams of the user's.

#include "engine/parity.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/streams/stream_marks.h"
#include "tessera/sharding/lazy/move_module.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

namespace tessera::tests::device_training {

inline EngineOptions quiet() {
  EngineOptions options;
  options.log_memory = false;
  options.optimizer.lr = 1e-3;
  options.optimizer.rule = AdamWOptions{.eps = 1e-3};
  options.sharding.groups.min_group_numel = 64;
  return options;
}

/// Six layers that all read the same input, every other one on a stream of the
/// user's that is far behind: its work is still to come when the host has gone
/// on to other layers and their slots.
struct BranchesImpl : torch::nn::Module {
  /// @param busy size of the matrices that keep that stream busy; 0: it lags
  ///   anyway.
  BranchesImpl(int64_t width, int64_t busy) : busy_size(busy) {
    for (int i = 0; i < 6; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i), torch::nn::Linear(width, width)));
    }
  }

  at::Tensor forward(const at::Tensor& x, std::optional<c10::Stream> other) {
    const at::Device device = x.device();
    at::Tensor sum = torch::zeros_like(x);
    std::vector<at::Tensor> late;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (!other || i % 2 == 0) {
        sum = sum + layers[i](x);
        continue;
      }
      runtime::mark_current(device).block(*other);
      const c10::StreamGuard guard(*other);
      if (busy_size > 0) {
        const torch::NoGradGuard no_grad;
        at::Tensor busy = torch::ones({busy_size, busy_size}, x.options());
        for (int k = 0; k < 20; ++k) {
          busy = busy.mm(busy) * 0;
        }
      }
      late.push_back(layers[i](x));
    }
    if (other) {
      runtime::StreamMarks done;
      done.add(*other);
      done.block_current(device);
    }
    for (const at::Tensor& part : late) {
      // Its memory is that stream's.
      part.record_stream(*runtime::current_stream(device));
      sum = sum + part;
    }
    return sum;
  }

  int64_t busy_size;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Branches);

/// A net that LibTorch trains, and one that an engine does.
template <typename Net>
struct Pair {
  /// @param make returns equal nets.
  template <typename Make>
  Pair(const Make& make, double weight_decay)
      : plain(make()),
        wrapped(make()),
        optimizer(
            plain->parameters(),
            torch::optim::AdamWOptions(1e-3).eps(1e-3).weight_decay(
                weight_decay)),
        engine(wrap(wrapped, [weight_decay] {
          EngineOptions options = quiet();
          options.optimizer.weight_decay = weight_decay;
          return options;
        }())) {}

  /// A step with losses that are the same.
  /// @param tolerance of them.
  /// @param check is called before the update.
  template <typename Check>
  void step(
      const at::Tensor& expected,
      const at::Tensor& loss,
      double tolerance,
      const Check& check) {
    expect_same(loss.detach(), expected.detach(), tolerance, 1, "loss");
    optimizer.zero_grad();
    expected.backward();
    engine.backward(loss);
    check();
    optimizer.step();
    engine.step();
  }

  Net plain;
  Net wrapped;
  torch::optim::AdamW optimizer;
  Engine engine;
};

/// A transformer on one rank trains as plain LibTorch does.
inline void expect_plain_training(World& world) {
  const auto make = [&] {
    torch::manual_seed(5);
    auto net =
        torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
            torch::nn::TransformerEncoderLayerOptions(64, 4)
                .dim_feedforward(128)
                .dropout(0),
            3));
    move_module(*net, world.device());
    return net;
  };
  Pair<torch::nn::TransformerEncoder> nets(make, /*weight_decay=*/0.01);
  for (int step = 0; step < 5; ++step) {
    torch::manual_seed(step);
    const auto x = torch::randn({7, 3, 64}, world.device());
    // cuBLAS adds up in float32; an update rounds in another order.
    nets.step(
        nets.plain->forward(x).square().mean(),
        nets.wrapped->forward(x).square().mean(),
        1e-5,
        [&] {
          for (const auto& item : nets.plain->named_parameters()) {
            expect_same(
                nets.engine.grad(nets.wrapped->named_parameters()[item.key()]),
                item.value().grad(),
                1e-4,
                0.1,
                item.key());
          }
        });
  }
}

/// A page that one stream still reads is not given to the next gather.
inline void expect_training_beside_a_lagging_stream(
    World& world,
    int64_t width,
    int64_t busy) {
  const auto make = [&] {
    torch::manual_seed(5);
    Branches net(width, busy);
    move_module(*net, world.device());
    return net;
  };
  Pair<Branches> nets(make, /*weight_decay=*/0);
  const auto other = c10::impl::getDeviceGuardImpl(world.device().type())
                         ->getStreamFromGlobalPool(world.device(), false);
  for (int step = 0; step < 6; ++step) {
    torch::manual_seed(step);
    const auto x = torch::randn({16, width}, world.device());
    nets.step(
        nets.plain(x, std::nullopt).square().mean(),
        nets.wrapped(x, other).square().mean(),
        1e-4,
        [] {});
  }
  nets.engine.unwrap();
  for (const auto& item : nets.plain->named_parameters()) {
    expect_same(
        nets.wrapped->named_parameters()[item.key()].detach(),
        item.value().detach(),
        1e-4,
        1,
        item.key());
  }
}

} // namespace tessera::tests::device_training
