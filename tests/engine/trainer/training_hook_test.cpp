// SPDX-License-Identifier: Apache-2.0
// Hooks of a program are called at their points of a run, and may change what
// they say that they may.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/ranks.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/engine/trainer/training_hook.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tessera::engine::training_hook_test {

namespace {

using namespace tests;

class Task : public TrainingTask {
 public:
  explicit Task(Restless net) : net_(std::move(net)) {}

  int64_t batches_per_epoch() const override {
    return 4;
  }
  int64_t batch_size() const override {
    return 5;
  }
  void begin_epoch(int64_t /*epoch*/) override {}
  MicroBatch forward(int64_t /*index*/) override {
    return {net_->forward(torch::randn({5, 7})).square().mean(), 35};
  }
  std::optional<TaskScore> score(
      const std::function<bool()>& /*stops*/) override {
    return TaskScore{"as given", {{"heldout_loss", 0.5}}};
  }

 private:
  Restless net_;
};

class Recorder : public TrainingHook {
 public:
  void before_step(const TrainingPoint& at) override {
    add("before", at);
  }
  void after_backward(const TrainingPoint& at) override {
    add("backward", at);
    EXPECT_TRUE(at.engine.grad(at.engine.trained_parameters()[0]).defined());
  }
  void after_step(const TrainingPoint& at, bool is_skipped) override {
    add(is_skipped ? "skipped" : "step", at);
  }
  void after_evaluation(const TrainingPoint& at, const TaskScore& score)
      override {
    add(score.text, at);
  }
  void on_checkpoint(
      const TrainingPoint& at,
      const std::filesystem::path& checkpoint) override {
    EXPECT_TRUE(std::filesystem::exists(checkpoint / "manifest.json"));
    add("saved " + checkpoint.filename().string(), at);
  }
  void at_end(const TrainingPoint& at, const TrainingSummary& summary)
      override {
    EXPECT_FALSE(summary.checkpoint.empty());
    add("end", at);
  }

  std::vector<std::string> calls;

 private:
  void add(const std::string& label, const TrainingPoint& at) {
    EXPECT_EQ(at.total_steps, 4);
    calls.push_back(label + " " + std::to_string(at.step));
  }
};

struct Freezer : TrainingHook {
  void after_backward(const TrainingPoint& at) override {
    at.engine.multiply_gradients(0);
  }
};

std::map<std::string, at::Tensor> trained(
    World& world,
    TrainerOptions options,
    std::vector<TrainingHook*> hooks,
    bool in_background = false) {
  auto net = make_restless(1, torch::kFloat);
  auto engine_options = group_per_layer();
  engine_options.optimizer.rule = SgdOptions{};
  engine_options.save_in_background = in_background;
  auto engine = wrap(net, engine_options);
  torch::manual_seed(4 + world.rank());
  Task task(net);
  std::filesystem::create_directories(options.run_folder);
  options.save_minutes = 0;
  options.hooks = std::move(hooks);
  train(world, engine, task, options);
  return values_of(engine, *net);
}

} // namespace

TEST(TrainerOptions, AreThoseOfAllRanks) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    TrainerOptions options;
    options.run_folder = folder / "run";
    options.clip_grad_norm = 0.5 + world.rank();
    expect_error(
        [&] { trained(world, options, {}); },
        {"training.clip_grad_norm is 0.5 on rank 0 and 1.5 on rank 1"});
  });
}

TEST(TrainingHook, IsCalledAtEachPoint) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    TrainerOptions options;
    options.save_every = 3;
    options.evaluate_every = 2;
    options.run_folder = folder / "run";
    Recorder first;
    trained(world, options, {&first});
    EXPECT_EQ(
        first.calls,
        (std::vector<std::string>{
            "before 1",
            "backward 1",
            "step 1",
            "before 2",
            "backward 2",
            "step 2",
            "as given 2",
            "before 3",
            "backward 3",
            "step 3",
            "saved step-000003 3",
            "before 4",
            "backward 4",
            "step 4",
            "as given 4",
            "saved step-000004 4",
            "end 4"}));
    options.run_folder = folder / "background";
    Recorder background;
    trained(world, options, {&background}, /*in_background=*/true);
    const auto has = [&](const char* call) {
      return std::count(background.calls.begin(), background.calls.end(), call);
    };
    EXPECT_EQ(has("saved step-000003 3"), 1);
    EXPECT_EQ(has("saved step-000004 4"), 1);
  });
}

TEST(TrainingHook, MayChangeGradients) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    Freezer freezer;
    TrainerOptions options;
    options.save_last = false;
    options.run_folder = folder / "frozen";
    const auto frozen = trained(world, options, {&freezer});
    options.run_folder = folder / "free";
    const auto free = trained(world, options, {});
    const auto net = make_restless(1, torch::kFloat);
    for (const auto& item : net->named_parameters()) {
      const std::string& name = item.key();
      EXPECT_TRUE(torch::equal(frozen.at(name), item.value())) << name;
    }
    for (const char* name : {"first.weight", "norm.bias", "last.weight"}) {
      EXPECT_FALSE(torch::equal(free.at(name), frozen.at(name))) << name;
    }
  });
}

} // namespace tessera::engine::training_hook_test
