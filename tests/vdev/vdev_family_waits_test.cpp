// SPDX-License-Identifier: Apache-2.0
// How often the host waits for the device in a training step of each family of
// the zoo, and in a step of the trainer.
#include "engine/trainer/device_trainer.h"
#include "support/temporary_folder.h"
#include "support/vdev/vdev.h"
#include "tessera/engine/trainer/training_hook.h"
#include "vdev/waits.h"
#include "zoo/family_fixtures.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tests::vdev::vdev_family_waits_test {

namespace {

/// Families that are not here do not wait.
Waits expected_of(const std::string& family) {
  static const std::map<std::string, Waits> expected{
      // Where tokens are masked, for which alone there are logits.
      {"roberta", {1, 0}},
      {"roformer", {1, 0}},
      // The same, and the largest number of global tokens, for the shapes of
      // attention.
      {"longformer", {2, 0}},
      // The number of tokens of each expert: one for each layer with experts.
      {"qwen2_moe", {1, 0}},
      {"qwen3_moe", {2, 0}},
      // Whether each text has an end token, whose features are classified.
      {"t5_classifier", {1, 0}},
  };
  const auto found = expected.find(family);
  return found == expected.end() ? Waits{} : found->second;
}

/// Of forward, backward and update, in a step that follows the plan.
Waits waits_of_family(World& world, const std::string& name) {
  const zoo::ModelFixture reference(name);
  const auto model = zoo::from_pretrained(reference.folder(), {.lazy = true});
  move_module(*model, world.device());
  EngineOptions options;
  options.log_memory = false;
  options.optimizer.lr = zoo::kFamilyLearningRate;
  Engine engine(world, model, options);
  zoo::ModelInput input = zoo::input_on(
      zoo::ModelInput::from_named(reference.tensors("in.")), world.device());
  input.loss_only = input.labels.defined(); // as in training
  const auto step = [&] {
    engine.backward(zoo::loss_of(model->forward(input), input));
    engine.clip_grad_norm(1);
    engine.step();
  };
  for (int i = 0; i < 3; ++i) {
    step();
  }
  return waits_of(step);
}

class FamilyWaits : public ::testing::TestWithParam<const char*> {};

/// Notes the counters before each step of a run.
class StepCounters : public TrainingHook {
 public:
  void before_step(const TrainingPoint& /*at*/) override {
    counters_.push_back(Runtime::instance().counters());
  }

  /// Of each step but the last, with what follows it.
  std::vector<Waits> waits() const {
    std::vector<Waits> all;
    for (size_t i = 1; i < counters_.size(); ++i) {
      const Counters& a = counters_[i - 1];
      const Counters& b = counters_[i];
      all.push_back(
          {b.synchronizations - a.synchronizations,
           b.pageable_copies - a.pageable_copies});
    }
    return all;
  }

 private:
  std::vector<Counters> counters_;
};

/// A run whose log has a line every two steps.
struct TrainerSetting {
  const char* name;
  Waits between = {}; ///< of a step without a line
  Waits logged = {1, 0}; ///< of a step with one, which reads the losses
  std::optional<at::ScalarType> dtype = std::nullopt;
  void (*choose)(TrainerOptions&) = [](TrainerOptions&) {};
};

void PrintTo(const TrainerSetting& setting, std::ostream* out) { // NOLINT
  *out << setting.name;
}

class TrainerWaits : public ::testing::TestWithParam<TrainerSetting> {};

} // namespace

TEST_P(FamilyWaits, OfATrainingStepAreThese) {
  run_ranks_on_vdev(1, {Policy::Order::kLazy}, [](World& world) {
    EXPECT_EQ(waits_of_family(world, GetParam()), expected_of(GetParam()));
  });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    FamilyWaits,
    ::testing::ValuesIn(zoo::kFamilyFixtures),
    [](const auto& info) { return std::string(info.param); });

TEST_P(TrainerWaits, OfAStepAreThese) {
  const TrainerSetting& setting = GetParam();
  const TemporaryFolder folder;
  run_ranks_on_vdev(1, {Policy::Order::kLazy}, [&](World& world) {
    torch::manual_seed(3);
    const auto model =
        lazy([] { return small_bert(device_trainer::without_dropout()); });
    move_module(*model, world.device());
    EngineOptions options;
    options.log_memory = false;
    options.precision.parameters = setting.dtype;
    auto engine = wrap(model, options);
    device_trainer::TokensTask task(model, world.device());
    StepCounters counters;
    TrainerOptions trainer;
    trainer.max_steps = 9;
    trainer.log_every = 2;
    trainer.save_last = false;
    trainer.step_timing = false;
    trainer.run_folder = folder.path();
    trainer.hooks = {&counters};
    setting.choose(trainer);
    train(world, engine, task, trainer);
    const std::vector<Waits> waits = counters.waits();
    ASSERT_EQ(waits.size(), 8U);
    for (const size_t step : {4, 6}) { // from 0 on
      EXPECT_EQ(waits[step], setting.between) << "step " << step + 1;
      EXPECT_EQ(waits[step + 1], setting.logged) << "step " << step + 2;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TrainerWaits,
    ::testing::Values(
        TrainerSetting{.name = "plain"},
        // The losses, and the norm.
        TrainerSetting{
            .name = "clipped",
            .logged = {2, 0},
            .choose =
                [](TrainerOptions& trainer) {
                  trainer.accumulate = 2;
                  trainer.clip_grad_norm = 1;
                }},
        TrainerSetting{.name = "bfloat16", .dtype = at::kBFloat16},
        // Whether gradients are finite decides about the update.
        TrainerSetting{
            .name = "half",
            .between = {1, 1},
            .logged = {2, 1},
            .dtype = at::kHalf},
        // Two events for each interval between marks, of which all but the
        // first wait have passed.
        TrainerSetting{
            .name = "timed",
            .logged = {41, 0},
            .choose =
                [](TrainerOptions& trainer) { trainer.step_timing = true; }}),
    [](const auto& info) { return std::string(info.param.name); });

} // namespace tessera::tests::vdev::vdev_family_waits_test
