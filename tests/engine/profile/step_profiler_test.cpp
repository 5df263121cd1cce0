// SPDX-License-Identifier: Apache-2.0
// Where the time of steps goes, by layer.
#include "tessera/engine/profile/step_profiler.h"

#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/profile/span_recorder.h"
#include "tessera/sharding/checkpointing/checkpoint_block.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <map>
#include <set>

namespace tessera::engine::step_profiler_test {

namespace {

using namespace tests;

constexpr int64_t kWidth = 32;
constexpr int64_t kRows = 8;
constexpr double kProduct = 2.0 * kRows * kWidth * kWidth;

/// "embed", "layers.0", "layers.1", "head"; the second layer is recomputed.
struct Net : torch::nn::Module {
  struct Layer : torch::nn::Module {
    Layer() {
      a = register_module("a", torch::nn::Linear(kWidth, kWidth));
      b = register_module("b", torch::nn::Linear(kWidth, kWidth));
    }
    at::Tensor forward(const at::Tensor& x) {
      return b(torch::gelu(a(x))).tanh();
    }
    torch::nn::Linear a{nullptr};
    torch::nn::Linear b{nullptr};
  };

  Net() {
    embed = register_module("embed", torch::nn::Embedding(10, kWidth));
    layers = register_module("layers", torch::nn::ModuleList());
    layers->push_back(std::make_shared<Layer>());
    layers->push_back(std::make_shared<Layer>());
    head = register_module("head", torch::nn::Linear(kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed(ids);
    x = layers[0]->as<Layer>()->forward(x);
    const auto again = layers[1];
    CheckpointMode mode;
    mode.trains = true;
    x = checkpoint(
        mode,
        [again](at::Tensor& y) { return again->as<Layer>()->forward(y); },
        x);
    return head(x).square().mean();
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear head{nullptr};
};

struct Wrapped {
  Wrapped() {
    torch::manual_seed(1);
    net = std::make_shared<Net>();
    EngineOptions options;
    options.log_memory = false;
    options.sharding.groups.min_group_numel = 8;
    engine.emplace(wrap(net, options));
  }
  void step() {
    engine->backward(net->forward(torch::arange(kRows)));
    engine->clip_grad_norm(1);
    engine->step();
  }
  std::shared_ptr<Net> net;
  std::optional<Engine> engine;
};

} // namespace

TEST(StepProfiler, CountsOperationsAndTimeByLayer) {
  run_ranks(2, [](World& world) {
    Wrapped wrapped;
    wrapped.step();
    wrapped.step();
    StepProfiler profiler(*wrapped.engine);
    for (int i = 0; i < 3; ++i) {
      wrapped.step();
      profiler.end_step();
    }
    profiler.finish();
    const StepProfile& profile = profiler.profile();
    EXPECT_EQ(profile.rank, world.rank());
    EXPECT_EQ(profile.steps, 3);
    std::vector<std::string> names;
    double seconds = profile.waits_s + profile.optimizer_s + profile.data_s +
                     profile.other_s;
    for (const ProfileRow& row : profile.layers) {
      names.push_back(row.name);
      EXPECT_GT(row.forward_s, 0) << row.name;
      EXPECT_GT(row.backward_s, 0) << row.name;
      seconds += row.seconds();
    }
    EXPECT_EQ(
        names,
        (std::vector<std::string>{"embed", "layers.0", "layers.1", "head"}));
    EXPECT_NEAR(seconds, profile.step_s, 1e-6);
    const auto& layers = profile.layers;
    EXPECT_EQ(layers[0].forward_flops, 0);
    EXPECT_EQ(layers[1].forward_flops, 2 * kProduct);
    EXPECT_EQ(layers[1].backward_flops, 4 * kProduct);
    EXPECT_EQ(layers[2].forward_flops, 2 * kProduct);
    EXPECT_EQ(layers[2].backward_flops, 6 * kProduct); // recomputed
    EXPECT_EQ(layers[3].forward_flops, kProduct);
    EXPECT_EQ(layers[3].backward_flops, 2 * kProduct);
    EXPECT_GT(profile.optimizer_s, 0);
    EXPECT_GT(profile.waits_s, 0); // two ranks: there are gathers
    const std::string text = to_text(profile);
    for (const char* expected :
         {"layers.1", "waits for transfers", "3 steps"}) {
      EXPECT_NE(text.find(expected), std::string::npos) << expected;
    }
    // What a layer keeps: the inputs of a and gelu, and the output of tanh at
    // least, where nothing is recomputed.
    const double tensor = kRows * kWidth * 4;
    EXPECT_GE(layers[1].kept_bytes, 3 * tensor);
    EXPECT_LE(layers[2].kept_bytes, 2 * tensor);
  });
}

TEST(StepProfiler, TracesLanesThatDoNotOverlap) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    Wrapped wrapped;
    wrapped.step();
    wrapped.step();
    StepProfiler profiler(*wrapped.engine);
    wrapped.step();
    profiler.end_step();
    profiler.finish();
    const auto path =
        folder.path() / ("trace-" + std::to_string(world.rank()) + ".json");
    profiler.write_trace(path);
    const auto json = nlohmann::json::parse(runtime::read_text_file(path));
    std::map<int, std::string> lines;
    std::map<std::string, std::set<std::string>> names;
    std::map<int, std::vector<std::pair<double, double>>> spans;
    for (const auto& event : json.at("traceEvents")) {
      EXPECT_EQ(event.at("pid"), world.rank());
      const int line = event.at("tid");
      if (event.at("ph") == "M" && event.at("name") == "thread_name") {
        lines[line] = event.at("args").at("name");
      } else if (event.at("ph") == "X") {
        names[lines.at(line)].insert(event.at("name"));
        const double begin = event.at("ts");
        spans[line].emplace_back(begin, begin + event.at("dur").get<double>());
      }
    }
    EXPECT_EQ(names["compute"].count("layers.0 forward"), 1U);
    EXPECT_EQ(names["compute"].count("layers.1 backward"), 1U);
    EXPECT_EQ(names["operators"].count("aten::gelu"), 1U);
    EXPECT_EQ(names["unshard"].count("unshard of 'layers.0'"), 1U);
    EXPECT_EQ(names["reduce"].count("reduction of 'layers.0'"), 1U);
    EXPECT_EQ(names["optimizer"].count("step"), 1U);
    EXPECT_EQ(names["steps"].count("backward"), 1U);
    for (auto& [line, all] : spans) {
      std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
        return a.first < b.first || (a.first == b.first && a.second > b.second);
      });
      std::vector<double> open;
      for (const auto& [begin, end] : all) {
        // Microseconds since 1970 in float64 have a resolution of 0.25.
        while (!open.empty() && open.back() <= begin + 0.5) {
          open.pop_back();
        }
        EXPECT_TRUE(open.empty() || end <= open.back() + 0.5) << lines[line];
        open.push_back(end);
      }
    }
  });
}

TEST(StepProfiler, OthersAreAnError) {
  run_ranks(1, [](World&) {
    Wrapped wrapped;
    {
      StepProfiler profiler(*wrapped.engine);
      EXPECT_THROW(StepProfiler other(*wrapped.engine), Error);
      EXPECT_THROW(profiler.profile(), Error);
      profiler.finish();
    }
    EXPECT_EQ(runtime::SpanRecorder::current(), nullptr);
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
    wrapped.step();
  });
}

} // namespace tessera::engine::step_profiler_test
