// SPDX-License-Identifier: Apache-2.0
// Norms of the gradients of models that ranks divide, on the virtual device:
// numbers as on the CPU, and the host does not wait for them.
#include "support/vdev/vdev.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_mesh.h"
#include "tessera/sharding/expert_parallel/divided_experts.h"
#include "tessera/sharding/lazy/move_module.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::tests::vdev::vdev_divided_norms_test {

namespace {

using Order = Policy::Order;

struct Division {
  const char* name;
  ParallelSizes sizes; ///< of four ranks
  bool has_experts = false;
  bool names_stages = false; ///< else pipeline stages have the same layers
};

/// What several ranks have of one layer counts once; experts count everywhere.
std::vector<Division> divisions() {
  return {
      {"tensor", {.tensor = 2}},
      {"pipeline", {.pipeline = 2}, false, true},
      {"tied_stages", {.pipeline = 2}},
      {"tensor_pipeline", {.tensor = 2, .pipeline = 2}},
      {"experts", {.expert = 2}, true},
      {"experts_whole", {.data = 4, .shard = 1, .expert = 4}, true},
      {"replicas", {.data = 2, .shard = 2}},
  };
}

/// Layers that all ranks, or those of a pipeline stage, have and, if wanted, an
/// expert that some of them have.
class Net : public torch::nn::Module {
 public:
  Net(const World& world, const Division& division) {
    const int stage = division.names_stages ? world.rank() / 2 : 0;
    torch::manual_seed(1 + stage);
    layers_ = register_module(
        "layers" + std::to_string(stage),
        torch::nn::Sequential(
            torch::nn::Linear(5, 7), torch::nn::Linear(7, 7)));
    if (division.has_experts) {
      const int part = world.rank() % division.sizes.expert;
      const auto experts = register_module(
          "experts", std::make_shared<sharding::DividedExperts>());
      torch::manual_seed(2 + part);
      expert_ = experts->register_module(
          "expert" + std::to_string(part), torch::nn::Linear(7, 7));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = layers_->forward(x);
    return expert_ ? expert_->forward(y) : y;
  }

 private:
  torch::nn::Sequential layers_{nullptr};
  torch::nn::Linear expert_{nullptr};
};

class Training {
 public:
  Training(
      World& world,
      c10::Device device,
      const Division& division,
      std::optional<MemoryTier> placement = std::nullopt)
      : mesh_(division.sizes, world.size(), world.size()),
        net_(std::make_shared<Net>(world, division)),
        device_(device) {
    move_module(*net_, device);
    EngineOptions options;
    options.parallel = &mesh_;
    options.log_memory = false;
    options.placement.optimizer = placement;
    options.sharding.groups.min_group_numel = 0;
    engine_ = std::make_unique<Engine>(wrap(net_, options));
    batch_ = mesh_.index(ParallelGroup::kGradients, world.rank());
  }

  /// @param scale of the loss.
  void backward(int step, double scale = 1) {
    torch::manual_seed(100 * step + batch_);
    const at::Tensor x = torch::randn({6, 5}).to(device_);
    engine_->backward(net_->forward(x).square().mean() * scale);
  }
  /// Whether the rank has the last batch; ranks that divide layers have the
  /// same.
  bool has_last_batch() const {
    return batch_ + 1 == mesh_.size(ParallelGroup::kGradients);
  }
  Engine& engine() {
    return *engine_;
  }

 private:
  ParallelMesh mesh_;
  std::shared_ptr<Net> net_;
  c10::Device device_;
  std::unique_ptr<Engine> engine_;
  int batch_ = 0;
};

class DividedNorms
    : public ::testing::TestWithParam<std::tuple<Division, Policy>> {};

} // namespace

TEST_P(DividedNorms, StayOnTheDeviceAndAreThoseOfTheCpu) {
  const auto& [division, policy] = GetParam();
  run_ranks_on_vdev(4, policy, [&, &division = division](World& world) {
    Training device(world, world.device(), division);
    Training cpu(world, c10::kCPU, division);
    const std::vector<double> kinds{
        2, 1, 3, std::numeric_limits<double>::infinity()};
    for (int step = 0; step < 4; ++step) {
      const double p = kinds[static_cast<size_t>(step)];
      device.backward(step);
      cpu.backward(step);
      const int64_t waits = Runtime::instance().counters().synchronizations;
      const DeferredScalar norm = device.engine().clip_grad_norm(1e-2, p);
      device.engine().step();
      if (step > 1) { // planned
        // In the first steps an engine compares the gradients of
        // tensor-parallel ranks, for which the host waits twice.
        const int64_t compared = division.sizes.tensor > 1 ? 2 : 0;
        EXPECT_EQ(
            Runtime::instance().counters().synchronizations, waits + compared)
            << "p = " << p;
      }
      const double expected = cpu.engine().clip_grad_norm(1e-2, p);
      cpu.engine().step();
      EXPECT_NEAR(norm, expected, 1e-5 * expected) << "p = " << p;
    }
  });
}

TEST_P(DividedNorms, AreNotNumbersIfOneGradientIsNone) {
  const auto& [division, policy] = GetParam();
  run_ranks_on_vdev(4, policy, [&, &division = division](World& world) {
    Training device(world, world.device(), division);
    for (const double p : {2.0, std::numeric_limits<double>::infinity()}) {
      device.backward(0, device.has_last_batch() ? std::nan("") : 1);
      EXPECT_TRUE(std::isnan(device.engine().grad_norm(p))) << "p = " << p;
      device.engine().zero_grad();
    }
  });
}

// One stage has gradients that the host reads.
TEST(DividedNormsOfTiers, AreFormedInOnePlace) {
  const Division division{"pipeline", {.pipeline = 2}, false, true};
  run_ranks_on_vdev(4, {Order::kLazy}, [&](World& world) {
    Training device(
        world,
        world.device(),
        division,
        world.rank() < 2 ? std::optional(MemoryTier::kHost) : std::nullopt);
    Training cpu(world, c10::kCPU, division);
    device.backward(0);
    cpu.backward(0);
    const double expected = cpu.engine().grad_norm();
    EXPECT_NEAR(device.engine().grad_norm(), expected, 1e-5 * expected);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    DividedNorms,
    ::testing::Combine(
        ::testing::ValuesIn(divisions()),
        ::testing::ValuesIn(policies({{Order::kLazy}, {Order::kRandom, 1}}))),
    [](const auto& info) {
      return std::string(std::get<Division>(info.param).name) + "_" +
             std::get<Policy>(info.param).name();
    });

} // namespace tessera::tests::vdev::vdev_divided_norms_test
