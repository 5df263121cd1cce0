// SPDX-License-Identifier: Apache-2.0
// Models that run on streams of the user's, in every way in which an engine
// orders its own streams after those: a missing wait is a race.
#include "engine/device_budget.h"
#include "engine/parity.h"
#include "support/vdev/vdev.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/streams/stream_marks.h"
#include "tessera/sharding/lazy/move_module.h"

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::tests::vdev::vdev_streams_test {

namespace {

constexpr int64_t kWidth = 24;

void make_wait(const c10::Stream& waiting, const c10::Stream& other) {
  runtime::StreamMarks done;
  done.add(other);
  done.block(waiting);
}

/// Makes the current stream wait.
void wait_for(const c10::Stream& other) {
  make_wait(*runtime::current_stream(other.device()), other);
}

/// Layers that read the same input; every other one runs on another stream.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (int i = 0; i < 6; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
  }

  at::Tensor forward(const at::Tensor& x, std::optional<c10::Stream> other) {
    at::Tensor sum;
    std::vector<at::Tensor> from_other;
    // The last page comes first.
    for (size_t i = layers.size(); i-- > 0;) {
      if (!other || i % 2 == 0) {
        const at::Tensor part = layers[i](x);
        sum = sum.defined() ? sum + part : part;
        continue;
      }
      runtime::mark_current(x.device()).block(*other);
      const c10::StreamGuard guard(*other);
      from_other.push_back(layers[i](x));
    }
    if (other) {
      wait_for(*other);
    }
    for (const at::Tensor& part : from_other) {
      // Its memory is that stream's.
      part.record_stream(*runtime::current_stream(x.device()));
      sum = sum + part;
    }
    return sum.tanh();
  }

  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Branches);

Branches make_net(World& world) {
  torch::manual_seed(5);
  Branches net;
  move_module(*net, world.device());
  return net;
}

/// A way to train, and what is done beside it in a step.
struct Way {
  std::string name;
  std::function<void(EngineOptions&)> set = [](EngineOptions&) {};
  int backwards = 1; ///< per step
  bool zeroes = false; ///< gradients, in place, before the last backward
  bool writes = false; ///< weights, before forward
  bool evaluates = false; ///< on a third stream, beside backward
  /// Whether every second forward and backward is on the other stream; forward
  /// passes are in no order.
  bool alternates = false;
  bool adds = false; ///< to gradients, before forward
  int64_t unsharded_bytes = 0; ///< that the budget leaves; 0: no budget
};

std::vector<Way> ways() {
  const auto on_host = [](EngineOptions& options) {
    options.placement.optimizer = MemoryTier::kHost;
  };
  const auto streamed_without_prefetch = [on_host](EngineOptions& options) {
    on_host(options);
    options.offload.ratio = 0;
    options.optimizer.overlap = UpdateOverlap::kWait;
    options.sharding.prefetch_depth = 0;
  };
  return {
      {"plain"},
      {"accumulated", [](EngineOptions&) {}, 2},
      {"zeroed", [](EngineOptions&) {}, 2, true},
      {"written", [](EngineOptions&) {}, 1, false, true},
      {.name = "written_in_little_memory", // two of three pages fit
       .set = [](EngineOptions&) {},
       .writes = true,
       .unsharded_bytes = 10 << 10},
      {"whole_gradients",
       [](EngineOptions& options) { options.sharding.zero_stage = 1; },
       2,
       true},
      {"in_backward",
       [](EngineOptions& options) { options.update_in_backward = true; }},
      {.name = "whole_gradients_alternating",
       .set = [](EngineOptions& options) { options.sharding.zero_stage = 1; },
       .backwards = 3,
       .alternates = true},
      {.name = "alternating", .backwards = 3, .alternates = true},
      {.name = "in_backward_streamed",
       .set =
           [on_host](EngineOptions& options) {
             on_host(options);
             options.offload.ratio = 0;
             options.update_in_backward = true;
           }},
      {.name = "in_backward_evaluated",
       .set = [](EngineOptions& options) { options.update_in_backward = true; },
       .evaluates = true},
      {"state_on_host", on_host, 2, true},
      {"overlapped",
       [on_host](EngineOptions& options) {
         on_host(options);
         options.optimizer.overlap = UpdateOverlap::kWait;
       },
       2,
       true,
       true},
      {"streamed",
       [on_host](EngineOptions& options) {
         on_host(options);
         options.offload.ratio = 0;
       },
       1,
       false,
       true},
      {"overlapped_and_streamed",
       [on_host](EngineOptions& options) {
         on_host(options);
         options.offload.ratio = 0;
         options.optimizer.overlap = UpdateOverlap::kWait;
       },
       2,
       true,
       true},
      {.name = "overlapped_and_streamed_added",
       .set = streamed_without_prefetch,
       .adds = true},
      {.name = "overlapped_and_streamed_added_alone",
       .set = streamed_without_prefetch,
       .backwards = 0,
       .adds = true},
      {"gradients_on_host",
       [](EngineOptions& options) {
         options.placement.gradients = MemoryTier::kHost;
       },
       2,
       true},
      {"parameters_on_host",
       [](EngineOptions& options) {
         options.placement.parameters = MemoryTier::kHost;
       },
       1,
       false,
       true}};
}

EngineOptions options_of(const Way& way) {
  EngineOptions options;
  options.log_memory = false;
  options.optimizer.rule = AdamWOptions{.eps = 1e-2};
  options.optimizer.lr = 1e-2;
  options.optimizer.weight_decay = 0;
  // Two layers form a group: one on each stream.
  options.sharding.groups.min_group_numel = 2 * kWidth * (kWidth + 1);
  way.set(options);
  return options;
}

/// A training loop, whoever updates the weights.
struct Trainer {
  Branches net;
  std::optional<c10::Stream> other;
  std::optional<c10::Stream> third;
  std::function<void(const at::Tensor& loss)> backward;
  std::function<void()> zero;
  std::function<void()> step;
  std::function<void(const std::function<void()>&)> write;
  std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)>
      add;

  /// Every layer on the third stream, which nothing waits for yet.
  void evaluate(const at::Tensor& x) {
    if (third) {
      const torch::NoGradGuard no_grad;
      runtime::mark_current(x.device()).block(*third);
      const c10::StreamGuard guard(*third);
      for (auto& layer : net->layers) {
        layer->forward(x);
      }
    }
  }

  void run(World& world, const Way& way) {
    const auto main = runtime::current_stream(world.device());
    for (int step = 0; step < 5; ++step) {
      if (way.alternates && other) {
        // Once: from here on the two streams know nothing of each other.
        runtime::mark_current(world.device()).block(*other);
      }
      if (way.writes) {
        write([&] {
          const torch::NoGradGuard no_grad;
          for (const auto& layer : net->layers) {
            layer->weight.mul_(0.99);
          }
        });
      }
      if (way.adds) {
        for (const auto& layer : net->layers) {
          add(layer->weight,
              at::full(
                  {kWidth, kWidth},
                  0.01,
                  at::TensorOptions().device(layer->weight.device())));
        }
      }
      for (int i = 0; i < way.backwards; ++i) {
        if (way.zeroes && i + 1 == way.backwards) {
          zero();
        }
        torch::manual_seed(100 * step + 10 * i);
        std::optional<c10::StreamGuard> guard;
        if (way.alternates && other && i % 2 == 1) {
          guard.emplace(*other);
        }
        const auto x = torch::randn({8, kWidth}, at::kCPU).to(world.device());
        // Before forward or after it, in turns.
        const bool evaluates_first = way.evaluates && step % 2 == 0;
        if (evaluates_first) {
          evaluate(x);
        }
        const at::Tensor loss =
            net(x, way.alternates ? std::nullopt : other).square().mean();
        if (way.evaluates && !evaluates_first) {
          evaluate(x);
        }
        if (way.alternates && other) {
          // LibTorch too wants backward passes in order, not forward passes.
          make_wait(*other, *main);
          make_wait(*main, *other);
        }
        backward(loss);
        if (way.evaluates && third) {
          wait_for(*third);
        }
      }
      if (way.alternates && other) {
        wait_for(*other);
      }
      this->step();
    }
  }
};

void zero_gradients(const Branches& net) {
  for (const at::Tensor& parameter : net->parameters()) {
    if (parameter.grad().defined()) {
      parameter.grad().zero_();
    }
  }
}

} // namespace

class Streams : public ::testing::TestWithParam<std::tuple<Way, int, Policy>> {
};

TEST_P(Streams, OfTheUsersTrainAsOneStream) {
  const auto& [way, ranks, policy] = GetParam();
  run_ranks_on_vdev(ranks, policy, [&, &way = way](World& world) {
    Trainer plain{make_net(world), std::nullopt, std::nullopt};
    torch::optim::AdamW adamw(
        plain.net->parameters(),
        torch::optim::AdamWOptions(1e-2).eps(1e-2).weight_decay(0));
    plain.backward = [](const at::Tensor& loss) { loss.backward(); };
    plain.zero = [&] { zero_gradients(plain.net); };
    plain.step = [&] {
      adamw.step();
      adamw.zero_grad();
    };
    plain.write = [](const auto& work) { work(); };
    plain.add = [](const at::Tensor& parameter, const at::Tensor& gradient) {
      parameter.mutable_grad() = gradient;
    };
    plain.run(world, way);

    Trainer wrapped{
        make_net(world),
        new_stream(world.device()),
        new_stream(world.device())};
    EngineOptions options = options_of(way);
    if (way.unsharded_bytes > 0) {
      options.memory.device_bytes =
          device_budget(wrap(make_net(world), options), way.unsharded_bytes);
    }
    Engine engine = wrap(wrapped.net, options);
    wrapped.backward = [&](const at::Tensor& loss) { engine.backward(loss); };
    wrapped.zero = [&] { zero_gradients(wrapped.net); };
    wrapped.step = [&] { engine.step(); };
    wrapped.write = [&](const auto& work) {
      const auto scope = engine.gather({.writable = true});
      work();
    };
    wrapped.add = [&](const at::Tensor& parameter, const at::Tensor& gradient) {
      engine.reduce(parameter, gradient);
    };
    wrapped.run(world, way);
    engine.unwrap();
    for (const auto& item : plain.net->named_parameters()) {
      // Updates round in another order.
      expect_same(
          wrapped.net->named_parameters()[item.key()].detach(),
          item.value().detach(),
          1e-5,
          1e-3,
          item.key());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Streams,
    ::testing::Combine(
        ::testing::ValuesIn(ways()),
        ::testing::Values(1, 2),
        ::testing::Values(
            Policy{Policy::Order::kEager},
            Policy{Policy::Order::kLazy})),
    [](const auto& which) {
      return std::get<0>(which.param).name + "_" +
             std::to_string(std::get<1>(which.param)) + "_ranks_" +
             std::get<2>(which.param).name();
    });

} // namespace tessera::tests::vdev::vdev_streams_test
