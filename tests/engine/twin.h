// SPDX-License-Identifier: Apache-2.0
#pragma once
// One model twice: plain with LibTorch's AdamW, and wrapped. Every rank has a
// batch of its own; the plain one sees all of them.
//
// [Note: float64 twins] Models are float64, so that the order of a sum over the
// ranks shows in the 16th digit and AdamW, which divides a gradient by its own
// size, cannot blow it up: 1e-9 tells right from wrong.

#include "support/expect_error.h"

#include "tessera/engine/engine.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace tessera::tests {

inline constexpr int64_t kWidth = 6;

/// A residual block of two layers: a composite type, hence a group of its own.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width = kWidth)
      : up(register_module("up", torch::nn::Linear(width, width + 1))),
        down(register_module("down", torch::nn::Linear(width + 1, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x + down(torch::tanh(up(x)));
  }
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(Block);

/// Blocks one after the other, with a layer before and one behind.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int count = 3)
      : first(register_module("first", torch::nn::Linear(kWidth, kWidth))),
        last(register_module("last", torch::nn::Linear(kWidth, 2))) {
    for (int i = 0; i < count; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    x = first(x);
    for (auto& block : blocks) {
      x = block(x);
    }
    return last(x);
  }
  torch::nn::Linear first;
  torch::nn::Linear last;
  std::vector<Block> blocks;
};
TORCH_MODULE(Stack);

/// [3, kWidth] float64, another one for every step and rank.
inline at::Tensor batch_of(int step, int rank) {
  torch::manual_seed(1000 * (step + 1) + rank);
  return torch::randn({3, kWidth}, torch::kDouble);
}

inline EngineOptions group_per_layer() {
  EngineOptions options;
  options.sharding.groups.min_group_numel = 0;
  options.optimizer.lr = 1e-2;
  options.log_memory = false;
  return options;
}

/// The same model from the same seed.
template <typename Net, typename... Arguments>
std::shared_ptr<Net> make_net(Arguments... arguments) {
  torch::manual_seed(5);
  auto net = std::make_shared<Net>(arguments...);
  net->to(torch::kDouble);
  return net;
}

/// LibTorch lists a tied parameter as often as it is registered, and its
/// optimizers would then update it as often.
inline std::vector<at::Tensor> each_once(
    const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> unique;
  for (const auto& parameter : parameters) {
    if (std::none_of(unique.begin(), unique.end(), [&](const auto& known) {
          return known.is_same(parameter);
        })) {
      unique.push_back(parameter);
    }
  }
  return unique;
}

template <typename Net>
class Twin {
 public:
  Twin(
      std::shared_ptr<Net> plain_net,
      std::shared_ptr<Net> wrapped_net,
      const EngineOptions& options = group_per_layer())
      : plain(std::move(plain_net)),
        wrapped(std::move(wrapped_net)),
        optimizer(
            each_once(plain->parameters()),
            torch::optim::AdamWOptions(options.optimizer.lr)),
        engine(wrap(std::shared_ptr<torch::nn::Module>(wrapped), options)) {}

  explicit Twin(const EngineOptions& options = group_per_layer())
      : Twin(make_net<Net>(), make_net<Net>(), options) {}

  int rank() const {
    return world().rank();
  }

  /// Backward of the mean over all ranks of loss(net, batch of the rank).
  template <typename Loss>
  void plain_backward(int step, const Loss& loss) {
    const int size = world().size();
    for (int r = 0; r < size; ++r) {
      (loss(*plain, batch_of(step, r)) / size).backward();
    }
  }

  /// The same in the wrapped net, on this rank's batch.
  template <typename Loss>
  void wrapped_backward(int step, const Loss& loss) {
    engine.backward(loss(*wrapped, batch_of(step, rank())));
  }

  void step() {
    optimizer.step();
    optimizer.zero_grad();
    engine.step();
  }

  template <typename Loss>
  void train(int step_number, const Loss& loss) {
    plain_backward(step_number, loss);
    wrapped_backward(step_number, loss);
    step();
  }

  void train(int step_number) {
    train(step_number, [](Net& net, const at::Tensor& x) {
      return net.forward(x).square().mean();
    });
  }

  /// Collective.
  void expect_same_parameters(const std::string& when = "") {
    const auto expected = plain->named_parameters();
    engine.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          EXPECT_TRUE(torch::allclose(value, expected[name], 1e-9, 1e-11))
              << name << " " << when << ": off by "
              << (value - expected[name]).abs().max().template item<double>();
        });
  }

  /// Collective. Gradients that no rank has count as zero.
  void expect_same_gradients(const std::string& when = "") {
    const auto got_from = wrapped->named_parameters();
    for (const auto& item : plain->named_parameters()) {
      at::Tensor got = engine.grad(got_from[item.key()]);
      at::Tensor want = item.value().grad();
      if (!got.defined()) {
        got = torch::zeros_like(item.value());
      }
      if (!want.defined()) {
        want = torch::zeros_like(item.value());
      }
      EXPECT_TRUE(torch::allclose(got, want, 1e-9, 1e-12))
          << item.key() << " " << when << ": off by "
          << (got - want).abs().max().template item<double>();
    }
  }

  std::shared_ptr<Net> plain;
  std::shared_ptr<Net> wrapped;
  torch::optim::AdamW optimizer;
  Engine engine;
};

/// Expects `action` to throw with every one of `parts` in its message.
template <typename Action>
void expect_throws(Action&& action, std::initializer_list<const char*> parts) {
  const std::string message = error_of(std::forward<Action>(action));
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "expected: " << part << "\nfound: " << message;
  }
}

inline at::Tensor mean_square(StackImpl& net, const at::Tensor& x) {
  return net.forward(x).square().mean();
}

template <typename Net>
void expect_trains_like_plain(Twin<Net>& twin, int steps = 4) {
  for (int step = 0; step < steps; ++step) {
    twin.train(step);
    twin.expect_same_parameters("after step " + std::to_string(step));
  }
}

} // namespace tessera::tests
