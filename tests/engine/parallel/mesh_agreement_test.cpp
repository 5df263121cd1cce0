// SPDX-License-Identifier: Apache-2.0
// Where ranks with one part of a model write other values than each other, all
// ranks of the job get the same error, and none waits for another.
#include "engine/parallel/mesh_checkpoint.h"
#include "tessera/engine/inspect_engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/sharding/pages/page.h"
#include "tessera/sharding/paging/pager.h"

#include <functional>
#include <string>
#include <vector>

namespace tessera::engine::mesh_agreement_test {

namespace {

using namespace tests;

const MeshLayout kTensorLayout{"tensor2_shard2", {.shard = 2, .tensor = 2}};
const MeshLayout kStagesLayout{"pipeline2_shard2", {.shard = 2, .pipeline = 2}};
const MeshLayout kAllAxes{
    "tensor2_pipeline2_shard2",
    {.shard = 2, .tensor = 2, .pipeline = 2}};

/// `action` fails on all ranks with one error, which has all `parts`.
void expect_error_of_all(
    World& world,
    const std::function<void()>& action,
    std::initializer_list<const char*> parts) {
  std::string message;
  expect_error(
      [&] {
        try {
          action();
        } catch (const Error& error) {
          message = error.what();
          throw;
        }
      },
      parts);
  const auto all = world.new_communicator(world.unique_name("messages"));
  for (const std::string& text :
       runtime::gather_texts(*all, message, "messages")) {
    EXPECT_EQ(text, message);
  }
}

/// The last rank writes something else to all that it has.
void write(World& world, MeshJob& job) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : job.net()->parameters()) {
    parameter.mul_(world.rank() + 1 == world.size() ? 1.5 : 0.5);
  }
}

/// No rank is behind, and nothing is told again.
void train_on(MeshJob& job) {
  job.engine().for_each_parameter(
      [](const std::string&, const at::Tensor& value) { value.fill_(0.25); },
      /*writable=*/true);
  job.train(2);
}

} // namespace

TEST(MeshWrittenValues, AreTheErrorOfCommitOnAllRanks) {
  for (const MeshLayout* layout : {&kTensorLayout, &kStagesLayout, &kAllAxes}) {
    run_ranks(layout->world_size(), [&](World& world) {
      MeshJob job(world, *layout, mesh_options());
      job.train(0);
      auto scope = job.engine().gather({.writable = true});
      write(world, job);
      expect_error_of_all(
          world,
          [&] { scope.commit(); },
          {"have written other values to", "load_weights()"});
      train_on(job);
    });
  }
}

TEST(MeshWrittenValues, AreTheErrorOfTheNextStepOnAllRanks) {
  for (const MeshLayout* layout : {&kTensorLayout, &kStagesLayout}) {
    run_ranks(layout->world_size(), [&](World& world) {
      MeshJob job(world, *layout, mesh_options());
      job.train(0);
      {
        const auto scope = job.engine().gather({.writable = true});
        write(world, job);
      }
      expect_error_of_all(
          world, [&] { job.train(1); }, {"have written other values to"});
      train_on(job);
    });
  }
}

TEST(MeshWrittenValues, AreTheErrorOfVisitorsOnAllRanks) {
  for (const MeshLayout* layout : {&kTensorLayout, &kStagesLayout}) {
    run_ranks(layout->world_size(), [&](World& world) {
      MeshJob job(world, *layout, mesh_options());
      const bool is_last = world.rank() + 1 == world.size();
      expect_error_of_all(
          world,
          [&] {
            job.engine().for_each_parameter(
                [&](const std::string&, const at::Tensor& value) {
                  value.mul_(is_last ? 1.5 : 0.5);
                },
                /*writable=*/true);
          },
          {"have written other values to"});
      expect_error_of_all(
          world,
          [&] {
            job.engine().check_same_values(
                "restore", {{"a", torch::full({2}, is_last ? 1.0 : 2.0)}});
          },
          {"restore: rank", "other values of 'a'"});
      train_on(job);
    });
  }
}

// Ranks of one stage may write to what they alone have.
TEST(MeshWrittenValues, OfOneStageDoNotWaitForTheOthers) {
  const auto write_last_stage = [](World& world, MeshJob& job, double factor) {
    if (job.net()->head.is_empty()) {
      return;
    }
    auto scope =
        job.engine().gather({job.net()->head->weight}, {.writable = true});
    const torch::NoGradGuard no_grad;
    job.net()->head->weight.mul_(world.rank() == 3 ? factor : 0.5);
    scope.commit();
  };
  run_ranks(4, [&](World& world) {
    MeshJob job(world, kStagesLayout, mesh_options());
    write_last_stage(world, job, 0.5);
    job.train(0);
    // One of all stages that nothing has told of, and then one of a stage.
    { const auto scope = job.engine().gather({.writable = true}); }
    write_last_stage(world, job, 0.5);
    job.train(1);
    expect_error(
        [&] {
          write_last_stage(world, job, 1.5);
          job.engine().sum_over_ranks(torch::zeros({1})); // the other stage
        },
        {"have written other values to 'head.weight'"});
  });
}

TEST(MeshOptions, AreThoseOfAllStagesAndParts) {
  const MeshLayout layout{
      "tensor2_pipeline2", {.shard = 1, .tensor = 2, .pipeline = 2}};
  for (const int other : {1, 2}) {
    run_ranks(layout.world_size(), [&](World& world) {
      EngineOptions options = mesh_options();
      const double lr = options.optimizer.lr;
      options.optimizer.lr = world.rank() == other ? 0.5 : lr;
      const std::string named =
          "the option optimizer.lr is 0.01 on rank 0 and 0.5 on rank " +
          std::to_string(other);
      expect_error(
          [&] { const MeshJob job(world, layout, options); }, {named.c_str()});
      // Stages may have rules for parameters that they alone have.
      options.optimizer.lr = lr;
      if (world.rank() >= 2) {
        options.optimizer.parameters = {
            {.pattern = "head\\.weight", .weight_decay = 0.25}};
      }
      MeshJob job(world, layout, options);
      job.train(0);
    });
  }
}

TEST(MeshOptions, RulesMayBeForLayersOfAnyStage) {
  run_ranks(kStagesLayout.world_size(), [&](World& world) {
    EngineOptions options = mesh_options();
    options.optimizer.parameters = {
        {.pattern = "head\\.weight", .weight_decay = 0.25},
        {.pattern = "embedding\\..*", .lr_scale = 0.5}};
    MeshJob job(world, kStagesLayout, options);
    job.train(0);
    options.optimizer.parameters[0].pattern = "haed\\.weight";
    expect_error_of_all(
        world,
        [&] { const MeshJob other(world, kStagesLayout, options); },
        {"optimizer.parameters: 'haed\\.weight' matches nothing",
         "'head.weight'"});
  });
}

TEST(MeshOptions, ModulesMayBeThoseOfAnyStageByTheNamesOfCheckpoints) {
  run_ranks(kStagesLayout.world_size(), [&](World& world) {
    EngineOptions options = mesh_options();
    options.other_names = {
        {"embedding.weight", {"wte.weight"}}, {"head.weight", {"lm_head.w"}}};
    options.sharding.modules = {
        {.path = "lm_head", .options = {.full_precision = true}},
        {.path = "wte", .options = {.group = true, .zero_stage = 1}},
        {.path = "block.", .options = {.group = true}}};
    MeshJob job(world, kStagesLayout, options);
    for (const auto& page : job.engine().pager().pages()) {
      EXPECT_EQ(page->spec().zero_stage == 1, page->name() == "embedding")
          << page->name();
    }
    job.train(0);
    const auto rows = inspect_model(job.engine(), "wte.*");
    EXPECT_EQ(rows.size(), job.stage() == 0 ? 1U : 0U);
    options.sharding.modules[0].path = "lm_haed";
    expect_error_of_all(
        world,
        [&] { const MeshJob other(world, kStagesLayout, options); },
        {"sharding.modules: 'lm_haed' matches nothing", "'lm_head'"});
  });
}

// Neither a wait for each other, nor other steps without a word.
TEST(MeshSettings, OfAStepAreThoseOfAllStagesAndParts) {
  const MeshLayout layout{
      "tensor2_pipeline2", {.shard = 1, .tensor = 2, .pipeline = 2}};
  for (const int other : {1, 2}) {
    for (const bool clips : {false, true}) {
      run_ranks(layout.world_size(), [&](World& world) {
        MeshJob job(world, layout, mesh_options());
        job.train(0);
        if (clips) {
          job.engine().multiply_gradients(world.rank() == other ? 0.5 : 0.25);
        } else if (world.rank() == other) {
          job.engine().set_learning_rate(0.5);
        }
        const std::string named = formatted(
            "rank {}: {}",
            other,
            clips
                ? "takes the norm of the gradients with p = 2 (multiply_gradients(0.5), clip_grad_norm(0.5))"
                : "applies the gradients at the learning rate 0.5 (clip_grad_norm(0.5))");
        expect_error_of_all(
            world,
            [&] { job.train(1); },
            {"the ranks have other settings for this step:",
             "rank 0: ",
             named.c_str()});
      });
    }
  }
}

TEST(MeshSettings, OfPipelinesAreThoseOfAllRanks) {
  run_ranks(2, [&](World& world) {
    ParallelOptions options;
    options.sizes.pipeline = 2;
    expect_error_of_all(
        world,
        [&] { const ParallelRun run(world, options, 4 - 2 * world.rank()); },
        {"training.accumulate is 4 on rank 0 and 2 on rank 1"});
    options.schedule = world.rank() == 0
                           ? PipelineScheduleKind::kGPipe
                           : PipelineScheduleKind::kOneForwardOneBackward;
    expect_error_of_all(
        world,
        [&] { const ParallelRun run(world, options, 4); },
        {"parallel.schedule is \"gpipe\" on rank 0 and \"1f1b\" on rank 1"});
  });
}

} // namespace tessera::engine::mesh_agreement_test
