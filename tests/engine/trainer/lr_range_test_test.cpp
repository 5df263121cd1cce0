// SPDX-License-Identifier: Apache-2.0
// A range test raises the rate until the loss diverges, and leaves the rest of
// the run folder as it was.
#include "tessera/engine/trainer/lr_range_test.h"

#include "engine/checkpoint/checkpoint_support.h"
#include "support/ranks.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/paging/pager.h"

#include <cmath>
#include <fstream>

namespace tessera::engine::lr_range_test_test {

namespace {

using namespace tests;

/// Learns y = 3 x by a linear layer: diverges at a rate that is not far above
/// the best one.
class Line : public TrainingTask {
 public:
  explicit Line(std::shared_ptr<torch::nn::LinearImpl> net)
      : net_(std::move(net)) {}

  int64_t batches_per_epoch() const override {
    return 100;
  }
  int64_t batch_size() const override {
    return 8;
  }
  void begin_epoch(int64_t /*epoch*/) override {}
  MicroBatch forward(int64_t /*index*/) override {
    const auto x = torch::randn({8, 4});
    return {torch::mse_loss(net_->forward(x), 3 * x), 32};
  }

 private:
  std::shared_ptr<torch::nn::LinearImpl> net_;
};

} // namespace

TEST(LrRangeTest, FindsWhereTheLossFallsAndDiverges) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    if (world.rank() == 0) {
      std::ofstream(folder / "result.json") << "of a run";
      std::filesystem::create_directories(folder / "checkpoints");
    }
    torch::manual_seed(1);
    auto net = std::make_shared<torch::nn::LinearImpl>(4, 4);
    EngineOptions options = group_per_layer();
    options.optimizer.rule = SgdOptions{};
    options.optimizer.lr = 0.125;
    auto engine = wrap(std::shared_ptr<torch::nn::Module>(net), options);
    torch::manual_seed(4 + world.rank());
    Line task(net);
    TrainerOptions trainer;
    trainer.run_folder = folder.path();
    trainer.save_every = 1;
    const LrRangeOptions range{.min_lr = 1e-4, .max_lr = 1e3, .steps = 100};
    const auto result = lr_range_test(world, engine, task, trainer, range);
    EXPECT_TRUE(result.has_diverged);
    EXPECT_EQ(engine.learning_rate(), 0.125);
    EXPECT_EQ(runtime::read_text_file(folder / "result.json"), "of a run");
    EXPECT_TRUE(std::filesystem::is_empty(folder / "checkpoints"));
    EXPECT_FALSE(std::filesystem::exists(folder / "metrics.jsonl"));
    if (world.rank() != 0) {
      return;
    }
    // The mean over 4 outputs of squares of 4 normal inputs: a curvature of
    // 2 / 4, so that rates above 4 / (2 / 4) certainly diverge.
    ASSERT_TRUE(result.steepest_lr && result.tenth_of_best_lr);
    EXPECT_GT(*result.steepest_lr, 1e-3);
    EXPECT_LT(*result.steepest_lr, 8);
    EXPECT_LT(*result.tenth_of_best_lr, 4);
    EXPECT_LT(result.points.size(), 100U);
    EXPECT_NEAR(result.points[0].lr, 1e-4, 1e-12);
    EXPECT_NEAR(
        result.points[10].lr / result.points[9].lr,
        std::pow(1e7, 1 / 99.),
        1e-9);
    EXPECT_TRUE(
        std::filesystem::exists(folder / "lr_range_test/lr_range_test.svg"));
    EXPECT_TRUE(
        std::filesystem::exists(folder / "lr_range_test/lr_range_test.json"));
  });
}

// The gradients of the bad loss are in the weights.
TEST(LrRangeTest, EndsTheStepThatUpdatedInBackward) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    torch::manual_seed(1);
    auto net = std::make_shared<torch::nn::LinearImpl>(4, 4);
    EngineOptions options = group_per_layer();
    options.update_in_backward = true;
    options.optimizer.rule = SgdOptions{};
    options.optimizer.lr = 0.125;
    auto engine = wrap(std::shared_ptr<torch::nn::Module>(net), options);
    torch::manual_seed(4 + world.rank());
    Line task(net);
    TrainerOptions trainer;
    trainer.run_folder = folder.path();
    const LrRangeOptions range{.min_lr = 1e-4, .max_lr = 1e3, .steps = 100};
    EXPECT_TRUE(
        lr_range_test(world, engine, task, trainer, range).has_diverged);
    EXPECT_EQ(engine.learning_rate(), 0.125);
    EXPECT_FALSE(engine.pager().pages().updated_in_backward());
    engine.backward(task.forward(0).loss);
    EXPECT_TRUE(engine.step());
  });
}

TEST(LrRangeTest, SuggestsByTheCurve) {
  std::vector<LrRangePoint> points;
  for (int i = 0; i < 30; ++i) { // falls at 10 and 11, rises from 20 on
    const double loss = i < 10 ? 4 : i == 10 ? 3 : i < 20 ? 1 : 1.0 + i - 19;
    points.push_back({.lr = std::pow(10, -4 + i * 0.1), .loss = loss});
  }
  const auto result = lr_range_result(points, false);
  // From 3 to 1.
  EXPECT_NEAR(*result.steepest_lr, std::pow(10, -4 + 1.1), 1e-9);
  EXPECT_NEAR(*result.tenth_of_best_lr, std::pow(10, -5 + 1.9), 3e-4);
  for (LrRangePoint& point : points) {
    point.loss = 1 + point.lr;
  }
  const auto rising = lr_range_result(points, true);
  EXPECT_FALSE(rising.steepest_lr.has_value());
  EXPECT_FALSE(rising.tenth_of_best_lr.has_value());
  const LrRangeOptions linear{
      .min_lr = 1, .max_lr = 3, .steps = 5, .growth = LrRangeGrowth::kLinear};
  EXPECT_EQ(lr_range_at(linear, 1), 1.5);
  EXPECT_EQ(lr_range_at(linear, 4), 3);
}

} // namespace tessera::engine::lr_range_test_test
