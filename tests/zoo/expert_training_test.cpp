// SPDX-License-Identifier: Apache-2.0
// Steps of models whose experts are divided over ranks, with optimizers of
// one's own and with engines, against one rank that has all of them.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/expert_engines.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/sharding/parallel/divided_experts.h"
#include "zoo/divided_models.h"
#include "zoo/expert_models.h"

#include <map>
#include <string>
#include <vector>

namespace tessera::zoo {
namespace {

using testing::run_ranks;

constexpr int kSteps = 3;
constexpr double kRate = 1e-3;

constexpr double kMaxNorm = 0.1;

/// One rank's steps of AdamW on all experts and the whole batch.
/// @param norms where it is not null, gradients are clipped, and their norms
///     are written here.
std::shared_ptr<Model> trained_alone(
    const ChangedModel& changed,
    const ModelInput& whole,
    std::vector<double>* norms = nullptr) {
  const auto model = from_pretrained(changed.folder());
  torch::optim::AdamW adam(
      model->parameters(),
      torch::optim::AdamWOptions(kRate).weight_decay(0.01));
  for (int step = 0; step < kSteps; ++step) {
    adam.zero_grad();
    model->forward(whole).loss.backward();
    if (norms != nullptr) {
      norms->push_back(
          torch::nn::utils::clip_grad_norm_(model->parameters(), kMaxNorm));
    }
    adam.step();
  }
  return model;
}

/// Adam divides by the gradient's size: where that is rounding noise, so is the
/// step, of kRate at most. On average it is not.
void expect_trained(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_LE((found - expected).abs().mean().item<double>(), kRate / 100);
}

} // namespace

TEST(ExpertTraining, IsThatOfOneRank) {
  run_ranks(2, [](World& world) {
    ParallelGroups groups(
        world,
        ParallelMesh({.shard = 2, .expert = 2}, 2, 2),
        torch::Device(torch::kCPU));
    Communicator& gradients = groups[ParallelGroup::kGradients];
    Communicator& same = groups[ParallelGroup::kSameExperts];
    const ChangedModel changed("qwen3_moe", kBalanced);
    const ModelInput whole = labelled_input(kRows, kLength);
    const auto plain = trained_alone(changed, whole);
    const auto model = from_pretrained(
        changed.folder(),
        {.context = LayerContext().over_experts(
             {&groups[ParallelGroup::kExpert], &gradients})});
    torch::optim::AdamW adam(
        model->parameters(),
        torch::optim::AdamWOptions(kRate).weight_decay(0.01));
    const ModelInput own = part_of(whole, world.rank(), 2);
    for (int step = 0; step < kSteps; ++step) {
      adam.zero_grad();
      model->forward(own).loss.backward();
      average_gradients(*model, gradients, same);
      adam.step();
    }
    const auto expected = plain->named_parameters();
    for (const auto& item : model->named_parameters()) {
      SCOPED_TRACE(item.key());
      expect_trained(item.value().detach(), expected[item.key()].detach());
    }
  });
}

// Everything divided: experts over the two ranks that have the same ones, the
// rest over all four; clipped by one norm, and gone on with from a checkpoint.
TEST(ExpertTraining, IsThatOfOneRankUnderEngines) {
  const TemporaryFolder saved;
  run_ranks(4, [&](World& world) {
    const ParallelSizes sizes{.shard = 4, .expert = 2};
    ParallelGroups groups(
        world, ParallelMesh(sizes, 4, 4), torch::Device(torch::kCPU));
    const ChangedModel changed("qwen3_moe", kBalanced);
    const ModelInput whole = labelled_input(kRows, kLength);
    std::vector<double> norms;
    const auto plain = trained_alone(changed, whole, &norms);
    EngineOptions options;
    options.log_memory = false;
    options.sharding.groups.min_group_numel = 1000;
    options.optimizer.lr = kRate;
    options.optimizer.weight_decay = 0.01;
    const auto make = [&] {
      return from_pretrained(
          changed.folder(),
          {.context = LayerContext().over_experts(
               {&groups[ParallelGroup::kExpert],
                &groups[ParallelGroup::kGradients]})});
    };
    const auto model = make();
    // Names before the engines: of the whole model.
    const size_t parameters = model->named_parameters().size();
    expect_error(
        [&] { Engine(world, model, options); },
        {"expert that other ranks do not have", "ExpertEngines"});
    expect_error(
        [&] { ExpertEngines(world, model, options); },
        {"EngineOptions::parallel"});
    options.parallel = &groups.mesh();
    options.memory.device_bytes = 1 << 30;
    expect_error(
        [&] { ExpertEngines(world, model, options); }, {"memory budget"});
    options.memory.device_bytes.reset();
    const ModelInput own = part_of(whole, world.rank(), 4);
    const auto train = [&](Model& one, ExpertEngines& engines, int begin) {
      for (int step = begin; step < kSteps; ++step) {
        engines.backward(one.forward(own).loss);
        // Float32 sums in another order.
        const double norm = norms[static_cast<size_t>(step)];
        EXPECT_NEAR(engines.clip_grad_norm(kMaxNorm), norm, 1e-4 * norm);
        engines.step();
        if (step == 0) {
          engines.save(saved.path());
        }
      }
    };
    const auto compare = [&](ExpertEngines& engines) {
      size_t seen = 0;
      const auto expected = plain->named_parameters();
      engines.for_each_parameter(
          [&](const std::string& name, const at::Tensor& value) {
            SCOPED_TRACE(name);
            expect_trained(value, expected[name].detach());
            ++seen;
          });
      EXPECT_EQ(seen, parameters);
    };
    ExpertEngines engines(world, model, options);
    train(*model, engines, 0);
    compare(engines);

    const auto again = make();
    ExpertEngines resumed(world, again, options);
    EXPECT_EQ(resumed.load(saved.path()), 1);
    train(*again, resumed, 1);
    std::map<std::string, at::Tensor> values;
    engines.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          values[name] = value.clone();
        });
    resumed.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          EXPECT_TRUE(value.equal(values.at(name))) << name;
        });
    expect_error(
        [&] { resumed.load(saved.path() / "absent"); },
        {"experts-", "of-2", "is not there"});
  });
}

} // namespace tessera::zoo
