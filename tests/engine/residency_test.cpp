// SPDX-License-Identifier: Apache-2.0
// From the second step on, a model with static control flow finds every group
// gathered ahead of its use; forwards without gradients in between do not
// disturb that.
#include "engine/parity_subjects.h"
#include "support/ranks.h"

#include "tessera/sharding/paging/pager.h"

namespace tessera::engine::residency_test {

namespace {

using namespace tests;

struct ResidencyCase {
  std::string name;
  std::function<void(World&)> no_gather_on_demand;
  std::function<void(World&)> evaluation_between_steps;
};

template <typename Model>
void train_step(
    const World& world,
    Engine& engine,
    Model& model,
    const Subject<Model>& subject,
    int64_t micro_batches) {
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    engine.backward(subject.loss(model, world.rank(), world.size()));
  }
  engine.step();
}

template <typename Model>
void expect_no_gather_on_demand(World& world, const Subject<Model>& subject) {
  for (const int64_t micro_batches : {1, 2}) {
    torch::manual_seed(1);
    Model model = subject.make();
    auto engine = wrap(model, parity_options(world, 0).engine);
    EXPECT_GT(engine.pager().pages().size(), 3);
    train_step(world, engine, model, subject, micro_batches);
    const auto first = engine.stats().paging;
    EXPECT_GT(first.on_demand_unshards, 0); // the step that is recorded
    for (int step = 0; step < 3; ++step) {
      train_step(world, engine, model, subject, micro_batches);
    }
    const auto later = engine.stats().paging;
    EXPECT_EQ(later.on_demand_unshards, first.on_demand_unshards)
        << micro_batches << " micro-batches";
    EXPECT_GT(later.planned_unshards, first.planned_unshards);
    // Once per group, step and micro-batch, save a group that some parameters
    // of which never get a gradient: nothing is reduced twice.
    const auto groups = static_cast<int64_t>(engine.pager().pages().size());
    EXPECT_LE(later.reductions - first.reductions, 3 * micro_batches * groups);
  }
}

template <typename Model>
void expect_right_evaluation(World& world, const Subject<Model>& subject) {
  auto options = parity_options(world, 0);
  options.engine.optimizer = adamw_options(options);
  auto plain = subject.make_plain_ranks(world.size());
  torch::manual_seed(1);
  Model wrapped = subject.make();
  const Weights start = weights_of(*plain.model());
  auto adamw = plain_adamw(*plain.model(), options);
  auto engine = wrap(wrapped, options.engine);
  const auto evaluate = [&](Model& model, int seed) {
    const c10::NoGradGuard no_grad;
    model->eval();
    torch::manual_seed(seed);
    auto loss = subject.loss(model, world.rank(), world.size());
    model->train();
    return loss;
  };
  int64_t on_demand = 0;
  for (int step = 0; step < 5; ++step) {
    const std::string now = "step " + std::to_string(step);
    // None, one, or two forwards, before and after the first plan.
    for (int i = 0; i < step % 3; ++i) {
      const int seed = 10 * step + i;
      expect_same(
          evaluate(wrapped, seed),
          evaluate(plain.of(world.rank()), seed),
          options.tolerance,
          1,
          now + ", evaluation " + std::to_string(i));
    }
    on_demand = engine.stats().paging.on_demand_unshards;
    const auto loss_of = [&](Model& model, int rank) {
      return subject.loss(model, rank, world.size());
    };
    const at::Tensor expected =
        plain.backward(100 + step, world.rank(), loss_of);
    plain.finish_gradients();
    adamw.step();
    plain.follow();
    torch::manual_seed(100 + step);
    auto loss = loss_of(wrapped, world.rank());
    engine.backward(loss);
    engine.step();
    expect_same(loss.detach(), expected, options.tolerance, 1, now);
    if (step > 0) {
      EXPECT_EQ(engine.stats().paging.on_demand_unshards, on_demand)
          << "training after an evaluation, " << now;
    }
  }
  expect_same_parameters(
      engine, *plain.model(), start, options.tolerance, "in the end");
}

template <typename Model>
ResidencyCase residency_case(
    const std::string& name,
    const Subject<Model>& subject) {
  return {
      name,
      [=](World& world) { expect_no_gather_on_demand(world, subject); },
      [=](World& world) { expect_right_evaluation(world, subject); }};
}

std::vector<ResidencyCase> cases() {
  return {
      residency_case("Text", kText),
      residency_case("Gpt", kGpt),
      residency_case("ResNet", kResNet),
      residency_case("UNet", kUNet),
      residency_case("Transformer", kTransformer),
      residency_case("Bert", kBert),
      residency_case("Frozen", kFrozen),
  };
}

} // namespace

class ResidencyTest
    : public ::testing::TestWithParam<std::tuple<ResidencyCase, int>> {};

TEST_P(ResidencyTest, NoGatherOnDemandFromTheSecondStepOn) {
  const auto& [subject, ranks] = GetParam();
  run_ranks(ranks, subject.no_gather_on_demand);
}

TEST_P(ResidencyTest, EvaluationBetweenSteps) {
  const auto& [subject, ranks] = GetParam();
  run_ranks(ranks, subject.evaluation_between_steps);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    ResidencyTest,
    ::testing::Combine(::testing::ValuesIn(cases()), ::testing::Values(2, 3)),
    [](const auto& info) {
      return std::get<0>(info.param).name + "On" +
             std::to_string(std::get<1>(info.param));
    });

} // namespace tessera::engine::residency_test
