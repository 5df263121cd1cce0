// SPDX-License-Identifier: Apache-2.0
// Gradients on the virtual device: accumulated and clipped there, with the
// numbers of the CPU and without waits of the host.
#include "engine/checkpoint/checkpoint_support.h"
#include "support/expect_error.h"
#include "support/vdev/vdev.h"
#include "tessera/sharding/lazy/move_module.h"

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace tessera::tests::vdev::vdev_gradients_test {

namespace {

using Order = Policy::Order;

/// A net and its engine on one device.
class Training {
 public:
  Training(at::Device device, const EngineOptions& options)
      : device_(device), net_(make()), engine_(wrap(net_, options)) {}

  void backward(int64_t batch, double factor = 1) {
    torch::manual_seed(batch);
    const at::Tensor x = torch::randn({5, 7}).to(device_);
    engine_.backward(net_->forward(x).square().mean() * factor);
  }
  Engine& engine() {
    return engine_;
  }
  at::Tensor weight() const {
    return net_->named_parameters()["2.weight"];
  }
  std::map<std::string, at::Tensor> values() {
    auto values = values_of(engine_, *net_);
    for (auto& [name, value] : values) {
      value = value.cpu();
    }
    return values;
  }

 private:
  torch::nn::Sequential make() const {
    torch::manual_seed(1);
    torch::nn::Sequential net(
        torch::nn::Linear(7, 13),
        torch::nn::Tanh(),
        torch::nn::Linear(13, 13),
        torch::nn::Tanh(),
        torch::nn::Linear(13, 3));
    if (!device_.is_cpu()) {
      move_module(*net, device_);
    }
    return net;
  }
  at::Device device_;
  torch::nn::Sequential net_;
  Engine engine_;
};

EngineOptions with(const UpdateRule& rule) {
  auto options = group_per_layer();
  options.optimizer.rule = rule;
  return options;
}

std::vector<EngineOptions> optimizers() {
  return {
      with(AdamWOptions{}),
      with(SgdOptions{.momentum = 0.9}),
      with(LionOptions{}),
      with(AdanOptions{}),
      with(LambOptions{}),
      with(AdafactorOptions{})};
}

int64_t synchronizations() {
  return Runtime::instance().counters().synchronizations;
}

void expect_near(Training& device, Training& cpu, const std::string& label) {
  const auto expected = cpu.values();
  const auto found = device.values();
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : expected) {
    // The norm is added up in float32.
    EXPECT_TRUE(at::allclose(found.at(name), value, 1e-4, 1e-6))
        << label << ": " << name;
  }
}

} // namespace

class Gradients : public ::testing::TestWithParam<std::tuple<Policy, int>> {
 protected:
  void run(const std::function<void(World&)>& body) {
    const auto& [policy, ranks] = GetParam();
    run_ranks_on_vdev(
        ranks, policy, body, RankOptions{std::chrono::seconds(200)});
  }
};

TEST_P(Gradients, ClippedHaveTheNumbersOfTheCpu) {
  run([](World& world) {
    for (const EngineOptions& options : optimizers()) {
      const std::string label = name_of(options.optimizer.rule);
      Training device(world.device(), options);
      Training cpu(at::kCPU, options);
      for (int step = 0; step < 4; ++step) {
        std::vector<double> norms;
        for (Training* training : {&device, &cpu}) {
          training->backward(10 * step + world.rank());
          Engine& engine = training->engine();
          // Clipped, not clipped, clipped by either of two.
          const DeferredScalar norm =
              engine.clip_grad_norm(step % 2 == 0 ? 1e-2 : 1e9);
          if (step == 2) {
            engine.multiply_gradients(0.5);
            norms.push_back(engine.clip_grad_norm(1e-3));
          }
          if (step == 3) { // another backward after clipping
            engine.clip_grad_norm(1e-2);
            training->backward(100 + world.rank());
          }
          engine.step();
          norms.push_back(norm);
        }
        for (size_t i = 0; i < norms.size() / 2; ++i) {
          const double expected = norms[norms.size() / 2 + i];
          EXPECT_NEAR(norms[i], expected, 1e-5 * expected) << label;
        }
      }
      expect_near(device, cpu, label);
    }
  });
}

TEST_P(Gradients, ClippingAndStepDoNotWaitForTheDevice) {
  run([](World& world) {
    for (const EngineOptions& options : optimizers()) {
      Training training(world.device(), options);
      std::vector<DeferredScalar> norms;
      for (int step = 0; step < 4; ++step) {
        training.backward(10 * step + world.rank());
        const int64_t before = synchronizations();
        norms.push_back(training.engine().clip_grad_norm(1e-2));
        training.engine().step();
        if (step >= 2) {
          EXPECT_EQ(synchronizations(), before) << "step " << step;
        }
      }
      const int64_t before = synchronizations();
      for (int again = 0; again < 2; ++again) {
        EXPECT_GT(norms.back().value(), 0);
        EXPECT_EQ(synchronizations(), before + 1);
      }
    }
  });
}

TEST_P(Gradients, AStepWhoseGradientsOverflowIsSkipped) {
  run([](World& world) {
    EngineOptions options = with(AdamWOptions{});
    options.optimizer.weight_decay = 0; // gradients alone move weights
    options.precision.parameters = at::kHalf;
    Training training(world.device(), options);
    for (int step = 0; step < 4; ++step) {
      const auto before = training.values();
      const bool overflows = step % 2 == 1;
      const bool is_last = world.rank() + 1 == world.size();
      training.backward(
          10 * step + world.rank(),
          overflows && is_last ? std::numeric_limits<double>::infinity() : 1);
      const DeferredScalar norm = training.engine().clip_grad_norm(1e-2);
      EXPECT_EQ(training.engine().step(), !overflows);
      EXPECT_EQ(std::isfinite(norm), !overflows);
      for (const auto& [name, value] : training.values()) {
        EXPECT_EQ(at::equal(value, before.at(name)), overflows) << name;
      }
    }
  });
}

// A step waits for nothing to know of them, and no checkpoint has what they
// have done to the weights.
TEST_P(Gradients, ThatAreNotFiniteStopAtTheNextCheckpoint) {
  run([](World& world) {
    Training training(world.device(), with(AdamWOptions{}));
    const auto step = [&](int number, double factor) {
      training.backward(10 * number + world.rank(), factor);
      const int64_t before = synchronizations();
      training.engine().clip_grad_norm(1e-2);
      EXPECT_TRUE(training.engine().step());
      if (number == 2) {
        EXPECT_EQ(synchronizations(), before);
      }
    };
    step(0, 1);
    step(1, 1);
    step(2, std::nan(""));
    expect_error(
        [&] { training.engine().save("never"); },
        {"the norm of the gradients of the last step was nan", "on_nonfinite"});
  });
}

TEST_P(Gradients, ThatAreNotFiniteAreSkippedIfAsked) {
  run([](World& world) {
    EngineOptions options = with(AdamWOptions{});
    options.on_nonfinite = OnNonfinite::kSkip;
    Training training(world.device(), options);
    for (const bool clips : {false, true}) {
      const auto before = training.values();
      training.backward(world.rank(), std::nan(""));
      if (clips) {
        training.engine().clip_grad_norm(1e-2);
      }
      EXPECT_FALSE(training.engine().step());
      for (const auto& [name, value] : training.values()) {
        EXPECT_TRUE(at::equal(value, before.at(name))) << name;
      }
    }
  });
}

TEST_P(Gradients, AccumulatedHaveTheBitsOfTheCpu) {
  run([](World& world) {
    for (const int zero_stage : {1, 3}) {
      EngineOptions options = with(SgdOptions{});
      options.optimizer.lr = 0.1;
      options.sharding.zero_stage = zero_stage;
      Training device(world.device(), options);
      Training cpu(at::kCPU, options);
      for (int step = 0; step < 4; ++step) {
        for (Training* training : {&device, &cpu}) {
          for (int micro = 0; micro < 3; ++micro) {
            training->backward(10 * step + 3 * micro + world.rank());
          }
          // What a user adds may change at once.
          at::Tensor more = at::ones({13, 13}).to(training->weight().device());
          training->weight().mutable_grad().add_(more);
          more.fill_(1e6);
          training->engine().step();
        }
      }
      const auto expected = cpu.values();
      for (const auto& [name, value] : device.values()) {
        EXPECT_TRUE(at::equal(value, expected.at(name)))
            << name << ", stage " << zero_stage;
      }
    }
  });
}

// [Note: held slots]: a page takes the slot that an update began to read in the
// same backward, on lanes that nothing else of this step follows.
TEST_P(Gradients, StayInTheirSlotsWhileUpdatesInBackwardReadThem) {
  run([](World& world) {
    EngineOptions options = with(AdamWOptions{});
    options.update_in_backward = true;
    options.placement.optimizer = MemoryTier::kHost;
    options.offload.ratio = 0;
    options.optimizer.overlap = UpdateOverlap::kOff;
    Training serial(world.device(), options);
    options.optimizer.overlap = UpdateOverlap::kWait;
    Training overlapped(world.device(), options);
    for (Training* training : {&serial, &overlapped}) {
      for (int step = 0; step < 4; ++step) {
        training->backward(10 * step + world.rank());
        training->engine().step();
      }
    }
    const auto expected = serial.values();
    for (const auto& [name, value] : overlapped.values()) {
      EXPECT_TRUE(at::equal(value, expected.at(name))) << name;
    }
  });
}

TEST_P(Gradients, ADeferredScalarIsForAnyStream) {
  run([](World& world) {
    std::optional<DeferredScalar> value(
        torch::ones({}, torch::kDouble).to(world.device()) * 3);
    const c10::StreamGuard on_other(
        new_stream(world.device(), /*is_lane=*/true));
    const at::Tensor twice = value->on_device() * 2;
    value.reset(); // its memory must not be used again before that
    EXPECT_EQ(twice.item<double>(), 6);
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Gradients,
    ::testing::Combine(
        ::testing::Values(
            Policy{Order::kEager},
            Policy{Order::kLazy},
            Policy{Order::kRandom, 1},
            Policy{Order::kStarve, 0, 0}),
        ::testing::Values(1, 2)),
    [](const auto& which) {
      return std::get<Policy>(which.param).name() + "_" +
             std::to_string(std::get<int>(which.param)) + "_ranks";
    });

} // namespace tessera::tests::vdev::vdev_gradients_test
