// SPDX-License-Identifier: Apache-2.0
// An embedding that is the head too, on the first and the last pipeline stage,
// is one parameter for everything that reads or writes it between steps.
#include "engine/parallel/mesh_net.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/inspect_engine.h"
#include "tessera/sharding/pages/page.h"
#include "tessera/sharding/paging/gather_scopes.h"
#include "tessera/sharding/paging/pager.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::tests::tied_stages_test {

namespace {

constexpr const char* kName = "embedding.weight";

EngineOptions tied_options() {
  EngineOptions options;
  options.sharding.groups.min_group_numel = 0;
  options.log_memory = false;
  return options;
}

const std::vector<MeshLayout>& two_stages() {
  static const std::vector<MeshLayout> layouts{
      {"pipeline2", {.shard = 1, .pipeline = 2}},
      {"pipeline2_shard2", {.shard = 2, .pipeline = 2}}};
  return layouts;
}

/// Calls `body` on each rank of two pipeline stages, with one or two ranks
/// each.
void on_stages(const std::function<void(World&, MeshJob&)>& body) {
  for (const MeshLayout& layout : two_stages()) {
    SCOPED_TRACE(layout.name);
    run_ranks(layout.world_size(), [&](World& world) {
      MeshJob job(world, layout, tied_options(), /*tied=*/true);
      body(world, job);
    });
  }
}

/// The same model on one rank.
struct AloneJob {
  World world{0, 1, 0, nullptr, {}};
  MeshJob job{
      world,
      MeshLayout{"one", {.shard = 1}},
      tied_options(),
      /*tied=*/true};
};

/// The frozen ones have none.
std::map<std::string, at::Tensor> gradients_of(MeshJob& job) {
  std::map<std::string, at::Tensor> gradients;
  for (const auto& item : job.net()->named_parameters()) {
    if (item.value().requires_grad()) {
      gradients[item.key()] = job.engine().grad(item.value());
    }
  }
  return gradients;
}

void expect_values_of(MeshJob& job, AloneJob& alone) {
  std::map<std::string, at::Tensor> expected;
  alone.job.engine().for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        expected[name] = value.clone();
      });
  job.engine().for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        EXPECT_TRUE(value.allclose(expected.at(name), 1e-7, 1e-8)) << name;
      });
}

constexpr std::initializer_list<const char*> kWritten = {
    "pipeline stages have written other values to 'embedding.weight'",
    "one parameter"};

} // namespace

TEST(TiedStages, InspectModelHasTheWholeGradient) {
  on_stages([](World& /*world*/, MeshJob& job) {
    AloneJob alone;
    alone.job.run(0);
    job.run(0);
    std::map<std::string, double> norms;
    for (const TensorSummary& row : inspect_model(alone.job.engine())) {
      norms[row.name] = row.gradient ? row.gradient->norm() : 0;
    }
    bool has_tied = false;
    for (const TensorSummary& row : inspect_model(job.engine())) {
      has_tied = has_tied || row.name == kName;
      EXPECT_NEAR(
          row.gradient ? row.gradient->norm() : 0, norms.at(row.name), 1e-9)
          << row.name;
    }
    EXPECT_TRUE(has_tied);
  });
}

// Each stage reads the gradients of its own parameters, of which it has another
// number, in an order of its own.
TEST(TiedStages, GradientsAreReadByEachStageAlone) {
  on_stages([](World& /*world*/, MeshJob& job) {
    AloneJob alone;
    alone.job.run(0);
    const auto expected = gradients_of(alone.job);
    job.run(0);
    for (int again = 0; again <= job.stage(); ++again) {
      for (const auto& [name, gradient] : gradients_of(job)) {
        EXPECT_TRUE(gradient.allclose(expected.at(name), 1e-9, 1e-12)) << name;
      }
    }
    job.engine().step();

    job.run(1);
    job.engine().clip_grad_norm(0.5);
    if (job.stage() == 1) { // summed before
      job.engine().grad(job.net()->embedding->weight);
      inspect_model(job.engine());
    }
    job.engine().step();
  });
}

TEST(TiedStages, AReadThatOneStageLacksIsNamed) {
  const auto ends = run_ranks_expecting(2, [](World& world) {
    MeshJob job(world, two_stages()[0], tied_options(), /*tied=*/true);
    job.run(0);
    if (job.stage() == 0) {
      job.engine().grad(job.net()->embedding->weight);
    }
  });
  EXPECT_NE(ends[0].output.find("Engine::grad: "), std::string::npos)
      << ends[0].output;
  EXPECT_NE(ends[0].output.find(kName), std::string::npos);
}

// Each waits for the other. At the time limit the error would be another one.
TEST(TiedStages, AReadThatOtherStagesMeetWithAnotherCallIsAnErrorOfAll) {
  struct Other {
    const char* text;
    std::function<void(MeshJob&, const std::filesystem::path&)> call;
  };
  const std::vector<Other> others{
      {"applies the gradients",
       [](MeshJob& job, const auto&) { job.engine().step(); }},
      {"takes the norm of the gradients",
       [](MeshJob& job, const auto&) { job.engine().clip_grad_norm(1); }},
      {"runs the pipeline", [](MeshJob& job, const auto&) { job.run(1); }},
      {"adds up numbers",
       [](MeshJob& job, const auto&) {
         job.engine().sum_over_ranks(torch::ones({1}));
       }},
      {"saves or loads values of the model",
       [](MeshJob& job, const auto& folder) { job.engine().save(folder); }}};
  const std::vector<MeshLayout> layouts{
      two_stages()[0],
      {"pipeline3", {.shard = 1, .pipeline = 3}},
      two_stages()[1]};
  const TemporaryFolder folder;
  for (size_t i = 0; i < others.size(); ++i) {
    const MeshLayout& layout = layouts[i % layouts.size()];
    const Other& other = others[i];
    SCOPED_TRACE(other.text);
    run_ranks(layout.world_size(), [&](World& world) {
      MeshJob job(world, layout, tied_options(), /*tied=*/true);
      job.run(0);
      expect_error(
          [&] {
            if (job.stage() == 0) {
              job.engine().grad(job.net()->embedding->weight);
            } else {
              other.call(job, folder / "saved");
            }
          },
          {"Engine::grad: rank",
           "(pipeline stage 0) reads the gradient of 'embedding.weight'",
           other.text,
           "on all of these stages",
           "clip_grad_norm()"});
    });
  }
}

// A stage that is still in its run when another one reads, and reads later.
TEST(TiedStages, AReadWaitsForStagesThatAreSlower) {
  const MeshLayout layout{"pipeline3", {.shard = 1, .pipeline = 3}};
  run_ranks(3, [&](World& world) {
    MeshJob job(world, layout, tied_options(), /*tied=*/true);
    AloneJob alone;
    alone.job.run(0);
    // The last stage reads while the first one waits for the second one.
    int backwards = 0;
    if (job.stage() == 1) {
      job.net()->named_parameters()["block1.norm1.weight"].register_hook(
          [&](const at::Tensor& gradient) {
            if (++backwards == kMeshBatches) {
              std::this_thread::sleep_for(std::chrono::seconds(3));
            }
            return gradient;
          });
    }
    job.run(0);
    EXPECT_EQ(backwards, job.stage() == 1 ? kMeshBatches : 0);
    if (job.stage() == 0) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
    }
    if (job.stage() != 1) {
      EXPECT_TRUE(
          job.engine()
              .grad(job.net()->embedding->weight)
              .allclose(
                  alone.job.engine().grad(alone.job.net()->embedding->weight),
                  1e-9,
                  1e-12));
    }
    job.engine().step();
  });
}

TEST(TiedStages, AGradientOfTheUserIsAddedOnce) {
  on_stages([](World& /*world*/, MeshJob& job) {
    AloneJob alone;
    const auto pass = [](MeshJob& to) {
      const at::Tensor& weight = to.net()->embedding->weight;
      torch::manual_seed(7);
      to.engine().reduce(weight, torch::randn(weight.sizes(), torch::kDouble));
    };
    for (int step = 0; step < 3; ++step) {
      for (MeshJob* one : {&alone.job, &job}) {
        one->run(step);
        pass(*one);
      }
      EXPECT_NEAR(
          job.engine().clip_grad_norm(0.5),
          alone.job.engine().clip_grad_norm(0.5),
          1e-9);
      alone.job.engine().step();
      job.engine().step();
    }
    expect_values_of(job, alone);

    job.run(3);
    pass(job);
    job.engine().zero_grad(); // drops what was passed, too
    job.run(4);
    if (job.stage() == 0) {
      pass(job);
    }
    expect_error(
        [&] { job.engine().step(); },
        {"Engine::reduce", "'embedding.weight'", "1", "every stage"});
  });
}

TEST(TiedStages, OtherWrittenValuesAreTheErrorOfCommit) {
  on_stages([](World& /*world*/, MeshJob& job) {
    const torch::NoGradGuard no_grad;
    const auto write = [&](double factor, bool all) {
      const at::Tensor& weight = job.net()->embedding->weight;
      auto scope = all ? job.engine().gather({.writable = true})
                       : job.engine().gather({weight}, {.writable = true});
      weight.mul_(factor);
      scope.commit();
    };
    for (const bool all : {false, true}) {
      write(0.5, all);
    }
    {
      const torch::AutoGradMode with_grad(true);
      job.train(0);
    }
    for (const bool all : {false, true}) {
      expect_error([&] { write(1 + job.stage(), all); }, kWritten);
    }
  });
}

TEST(TiedStages, OtherWrittenValuesWithoutCommitAreTheErrorOfTheStep) {
  on_stages([](World& /*world*/, MeshJob& job) {
    const at::Tensor& weight = job.net()->embedding->weight;
    for (const double factor : {0.5, 1.0 + job.stage()}) {
      {
        const torch::NoGradGuard no_grad;
        const auto scope = job.engine().gather({weight}, {.writable = true});
        weight.mul_(factor);
      }
      if (factor == 0.5) {
        job.train(0);
      }
    }
    job.run(1);
    expect_error([&] { job.engine().step(); }, kWritten);
  });
}

TEST(TiedStages, OtherValuesOfVisitorsAreAnError) {
  on_stages([](World& /*world*/, MeshJob& job) {
    const auto write = [&](double factor) {
      job.engine().for_each_parameter(
          [&](const std::string& name, const at::Tensor& value) {
            if (name == kName) {
              value.mul_(factor);
            }
          },
          /*writable=*/true);
    };
    write(0.5);
    expect_error([&] { write(1 + job.stage()); }, kWritten);
  });
}

TEST(TiedStages, OtherCopiesAreNotSaved) {
  const TemporaryFolder folder;
  on_stages([&](World& /*world*/, MeshJob& job) {
    for (int step = 0; step < 2; ++step) {
      job.train(step);
    }
    job.engine().save(folder / "good");
    for (const auto& page : job.engine().pager().pages()) {
      if (page->ranks.copies() != nullptr && job.stage() == 1) {
        const torch::NoGradGuard no_grad;
        sharding::GatherScopes::write_master(
            *page, page->master().load() * 1.5);
      }
    }
    expect_error(
        [&] { job.engine().save(folder / "bad"); },
        {"pipeline stages have other values of 'embedding.weight'",
         "nothing was written"});
    EXPECT_FALSE(std::filesystem::exists(folder / "bad"));
  });
}

TEST(TiedStages, AStageWithoutParametersIsNamed) {
  run_ranks(2, [](World& world) {
    const ParallelMesh mesh({.shard = 1, .pipeline = 2}, 2, 2);
    EngineOptions options = tied_options();
    options.parallel = &mesh;
    const std::string stage =
        "of pipeline stage " + std::to_string(world.rank());
    expect_error(
        [&] { wrap(std::make_shared<torch::nn::Module>(), options); },
        {stage.c_str(), "may be frozen", "a layer with parameters"});
  });
}

} // namespace tessera::tests::tied_stages_test
