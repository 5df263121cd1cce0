// SPDX-License-Identifier: Apache-2.0
// Whole runs from C++, of a model that this file registers with a head of its
// own.
#include "tessera/tasks/run_training.h"

#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/trainer/run_report.h"
#include "tessera/engine/trainer/step_metrics.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/inputs/column_checks.h"
#include "tessera/zoo/layers/linear.h"
#include "tessera/zoo/models/registry.h"
#include "tools/example_data.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace tessera::tasks::run_training_test {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kRows = 24;
constexpr int64_t kSteps = 200;

/// Predicts `amounts` [B] from `features` [B, 3] by a linear layer.
class Amounts : public zoo::Model {
 public:
  Amounts(const zoo::LayerContext& context, nlohmann::json json)
      : zoo::Model(
            std::move(json),
            {.base = {{"linear", {"linear"}}}},
            pipeline::StageLayers(context.position(), 1)) {
    linear_ = register_module("linear", torch::nn::Linear(3, 1));
  }

  std::unique_ptr<zoo::Head> head() override;

 protected:
  void check(const zoo::ModelInput& input) const override {
    TESSERA_CHECK(input.others.contains("features"), "no features");
  }
  zoo::LayerState run_layers(
      const zoo::ModelInput& input,
      zoo::LayerState state,
      int /*begin*/,
      int /*end*/) override {
    state.hidden = linear_->forward(input.others.at("features")).squeeze(-1);
    return state;
  }
  zoo::ModelOutput output(
      const zoo::ModelInput& input,
      const zoo::LayerState& state) override {
    zoo::ModelOutput output;
    output.logits = state.hidden;
    output.loss = at::mse_loss(state.hidden, input.others.at("amounts"));
    return output;
  }

 private:
  torch::nn::Linear linear_{nullptr};
};

int64_t steps_logged = 0; ///< to the head, in this process

class AmountHead : public zoo::Head {
 public:
  void check(const zoo::ColumnChecks& examples) const override {
    examples.shape("features", {3});
    examples.need("amounts");
  }
  /// Amounts are stored as cents, and as an integer type.
  void complete(zoo::NamedTensors& batch) const override {
    batch["amounts"] = batch.at("amounts").to(at::kFloat) / 100;
  }
  zoo::Metric metric() const override {
    return {"near hits", "amounts"};
  }
  void add_score(const zoo::ScoredBatch& batch, zoo::ScoreSums& sums)
      const override {
    const at::Tensor distance =
        batch.output.logits - batch.input.others.at("amounts");
    sums.items += batch.rows();
    sums.right += distance.abs().lt(0.25).sum().item<double>();
    sums.add_loss(batch, batch.rows());
  }
  void after_step(Engine& /*engine*/, int64_t step, int64_t steps) override {
    EXPECT_EQ(step, ++steps_logged);
    EXPECT_EQ(steps, kSteps);
  }
};

std::unique_ptr<zoo::Head> Amounts::head() {
  return std::make_unique<AmountHead>();
}

/// The same model without a head of its own.
class PlainAmounts : public Amounts {
 public:
  using Amounts::Amounts;
  std::unique_ptr<zoo::Head> head() override {
    return zoo::Model::head();
  }
};

template <typename Made>
zoo::Architecture architecture(const char* name) {
  return {
      name,
      [](const zoo::ConfigFields& /*fields*/,
         const zoo::LayerContext& context,
         nlohmann::json json) -> std::shared_ptr<zoo::Model> {
        return std::make_shared<Made>(context, std::move(json));
      }};
}

class RunTraining : public ::testing::Test {
 protected:
  RunTraining() {
    std::ofstream(folder_ / "model.json") << R"({"model_type": "amounts"})";
    write(
        {{"features", features()},
         {"amounts",
          {runtime::SafetensorsDtype::kI32,
           {kRows},
           [](int64_t row, int64_t /*place*/) {
             return static_cast<double>(100 * (row % 3) - 50 * (row % 2));
           }}}});
  }

  static tests::ExampleTensor features() {
    return {
        runtime::SafetensorsDtype::kF32,
        {kRows, 3},
        [](int64_t row, int64_t place) {
          return static_cast<double>(
              place == 0   ? row % 3
              : place == 1 ? row % 2
                           : 1);
        }};
  }

  void write_floats() const {
    write(
        {{"features", features()},
         {"amounts",
          {runtime::SafetensorsDtype::kF32,
           {kRows},
           [](int64_t row, int64_t /*place*/) {
             return static_cast<double>(row % 3);
           }}}});
  }

  void write(const tests::ExampleTensors& tensors) const {
    tests::write_examples(folder_ / "data.safetensors", tensors);
  }

  /// Runs on `ranks` ranks, whose assertions count.
  static tests::LaunchedJob::Result on_ranks(
      int ranks,
      const std::function<void()>& body) {
    return tests::on_ranks(ranks, [&] {
      zoo::register_model(
          {"amounts",
           {architecture<Amounts>("AmountModel"),
            architecture<PlainAmounts>("PlainAmountModel")}});
      body();
    });
  }

  /// As an embedder does: a configuration, and what is changed.
  TrainingConfig config(const std::vector<std::string>& overrides = {}) const {
    const fs::path file = folder_ / "train.json";
    nlohmann::json json = {
        {"task", "examples"},
        {"model", {{"config", (folder_ / "model.json").string()}}},
        {"data",
         {{"train", (folder_ / "data.safetensors").string()},
          {"heldout", (folder_ / "data.safetensors").string()}}},
        {"optimizer", {{"lr", 0.1}, {"weight_decay", 0}}},
        {"schedule", {{"decay", "linear"}}},
        {"training",
         {{"batch_size", 4}, {"epochs", 100}, {"max_steps", kSteps}}},
        {"output", {{"folder", run().string()}}}};
    runtime::write_file_atomically(file, json.dump());
    return read_training_config(file, overrides);
  }

  fs::path run() const {
    return folder_ / "run";
  }

  const TemporaryFolder folder_;
};

} // namespace

TEST_F(RunTraining, TrainsAndScoresAModelOfTheUserByItsHead) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    runtime::remove_tree(run());
    const auto job = on_ranks(ranks, [&] {
      const TrainingResult result = run_training(config());
      EXPECT_EQ(result.summary.steps, kSteps);
      EXPECT_EQ(result.summary.stop_signal, 0);
      EXPECT_EQ(steps_logged, kSteps);
      ASSERT_TRUE(result.score.has_value());
      // A sum of the features fits exactly; these steps come close.
      EXPECT_LT(result.score->values.at("heldout_loss"), 0.01);
      EXPECT_EQ(result.score->values.at("heldout_near_hits"), 1.0);
      EXPECT_EQ(result.score->values.at("heldout_amounts"), kRows);
      EXPECT_TRUE(result.score->text.starts_with(
          "near hits 100.0 % of 24 amounts, loss 0.00"))
          << result.score->text;
      // The exported model is loaded by its class, and scores the same.
      const TaskScore again = evaluate_run(run());
      EXPECT_EQ(again.text, result.score->text);
      EXPECT_EQ(again.values, result.score->values);
    });
    EXPECT_NE(job.output.find("held-out near hits 100.0 %"), std::string::npos)
        << job.output;
    for (const char* file :
         {"config.json", "result.json", "model/config.json", "metrics.jsonl"}) {
      EXPECT_TRUE(fs::exists(run() / file)) << file;
    }
  }
}

// A pattern for other names may match less than it should.
TEST_F(RunTraining, SaysWhichParametersRulesAreFor) {
  const auto job = on_ranks(1, [&] {
    run_training(config(
        {R"(optimizer.parameters=[{"pattern": ".*bias", "weight_decay": 0},
            {"pattern": "linear.*", "lr_scale": 0.5}])"}));
  });
  for (
      const char* line :
      {"optimizer.parameters[0] '.*bias': 1 of 2 parameters, such as linear.bias\n",
       "optimizer.parameters[1] 'linear.*': 2 of 2 parameters, such as linear.weight\n"}) {
    EXPECT_NE(job.output.find(line), std::string::npos) << job.output;
  }
}

TEST_F(RunTraining, RefusesRanksWithOtherSettings) {
  on_ranks(2, [&] {
    const bool is_first = std::string(std::getenv("RANK")) == "0";
    expect_error(
        [&] {
          run_training(config(
              {is_first ? "training.batch_size=4" : "training.batch_size=6"}));
        },
        {"training.batch_size is 4 on rank 0 and 6 on rank 1"});
  });
}

// Batches of other masks or other rows would be averaged without a word.
TEST_F(RunTraining, RefusesRanksWithOtherData) {
  fs::copy_file(folder_ / "data.safetensors", folder_ / "copy.safetensors");
  std::ofstream(folder_ / "other.safetensors") << "other rows";
  on_ranks(2, [&] {
    const bool is_first = std::string(std::getenv("RANK")) == "0";
    const auto run_with = [&](const std::string& first,
                              const std::string& other) {
      return run_training(config({is_first ? first : other}));
    };
    expect_error(
        [&] { run_with("data.trim_padding=true", "data.trim_padding=false"); },
        {"data.trim_padding is true on rank 0 and false on rank 1"});
    expect_error(
        [&] { run_with("model.strict=true", "model.strict=false"); },
        {"model.strict is true on rank 0 and false on rank 1"});
    const auto file = [&](const char* key, const char* name) {
      return formatted("data.{}={}", key, (folder_ / name).string());
    };
    for (const char* key : {"train", "heldout"}) {
      expect_error(
          [&] {
            run_with(
                file(key, "data.safetensors"), file(key, "other.safetensors"));
          },
          {key, " (its bytes) is ", " on rank 0 and 10 on rank 1"});
    }
    // The same data in a place of the rank's own.
    run_with(
        file("train", "data.safetensors"), file("train", "copy.safetensors"));
  });
}

TEST_F(RunTraining, ChecksExamplesByTheHeadBeforeItWritesAnything) {
  write({{"features", features()}});
  on_ranks(1, [&] {
    try {
      run_training(config());
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(
          std::string(error.what())
              .find("lacks 'amounts', which AmountModel needs for training"),
          std::string::npos)
          << error.what();
    }
  });
  EXPECT_FALSE(fs::exists(run()));
}

// Without a head of its own a model is trained on any inputs, and scored by its
// loss; here the amounts are floats.
TEST_F(RunTraining, TrainsAModelOfTheUserWithoutAHead) {
  write_floats();
  on_ranks(1, [&] {
    const TrainingResult result =
        run_training(config({"model.architecture=PlainAmountModel"}));
    ASSERT_TRUE(result.score.has_value());
    EXPECT_EQ(result.score->values.size(), 2U) << result.score->values;
    EXPECT_LT(result.score->values.at("heldout_loss"), 0.01);
    EXPECT_EQ(steps_logged, 0);
  });
}

TEST_F(RunTraining, ScoresWhileItTrainsWithoutChangingWhatIsTrained) {
  write_floats();
  const auto losses_of = [&](const std::string& every) {
    const std::string overrides = "training.evaluate_every=" + every;
    on_ranks(2, [&] {
      const auto result = run_training(config(
          {overrides,
           "training.max_steps=9",
           "model.architecture=PlainAmountModel"}));
      EXPECT_EQ(result.summary.best_step > 0, every != "0");
    });
    std::vector<double> losses;
    std::vector<double> scores;
    std::ifstream lines(run() / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const auto values = runtime::parse_json(line, "metrics.jsonl");
      losses.push_back(values.at("loss"));
      if (values.contains("heldout_loss")) {
        scores.push_back(values.at("heldout_loss"));
      }
    }
    EXPECT_EQ(losses.size(), 9U);
    if (every != "0") {
      EXPECT_EQ(scores.size(), 3U);
      // At the end the same weights are scored again.
      const auto result = runtime::parse_json(
          runtime::read_text_file(run() / "result.json"), "result.json");
      EXPECT_EQ(scores.back(), result.at("heldout_loss").get<double>());
    }
    runtime::remove_tree(run());
    return losses;
  };
  EXPECT_EQ(losses_of("3"), losses_of("0"));
}

// A process may make several runs; a finished one is refused before anything is
// changed.
TEST_F(RunTraining, ClipsAndWarmsUpUnlessSomethingElseIsSet) {
  struct Case {
    std::vector<std::string> overrides;
    double clip;
    double fraction;
  };
  const std::vector<Case> cases = {
      {{}, 1, 0.03},
      {{"training.clip_grad_norm=0"}, 0, 0.03},
      {{"training.clip_grad_norm=0.5", "schedule.warmup_steps=0"}, 0.5, 0},
      {{"schedule.warmup_steps=7"}, 1, 0},
      {{"schedule.warmup_fraction=0.1", "schedule.decay=constant"}, 1, 0.1},
      {{"schedule.decay=constant"}, 1, 0},
      {{"schedule.decay=cosine"}, 1, 0.03},
      {{"update_in_backward=true"}, 0, 0.03},
      {{"optimizer.type=one_bit_adam"}, 0, 0.03},
      {{R"(optimizer.parameters=[{"pattern":".*","type":"one_bit_adam"}])"},
       0,
       0.03}};
  for (const Case& expected : cases) {
    SCOPED_TRACE(expected.overrides.empty() ? "" : expected.overrides.front());
    const TrainingConfig read = config(expected.overrides);
    EXPECT_EQ(read.trainer.clip_grad_norm, expected.clip);
    EXPECT_EQ(read.trainer.schedule.warmup_fraction, expected.fraction);
    // The run folder's config.json means the same.
    const auto again = read_training_config(
        runtime::ConfigReader(nlohmann::json(read.resolved), "again"));
    EXPECT_EQ(again.resolved, read.resolved);
    EXPECT_EQ(again.trainer.clip_grad_norm, expected.clip);
    EXPECT_EQ(again.trainer.schedule.warmup_fraction, expected.fraction);
  }
  expect_error(
      [&] {
        config({"schedule.warmup_steps=7", "schedule.warmup_fraction=0.1"});
      },
      {"schedule.warmup_fraction", "set one of them"});
  // Run folders that have it can be read, but there is nothing to train for.
  EXPECT_NO_THROW(config({"training.best_metric=near_hits"}));
  on_ranks(1, [&] {
    expect_error(
        [&] { run_training(config({"training.best_metric=near_hits"})); },
        {"training.best_metric", "training.evaluate_every"});
  });
}

TEST_F(RunTraining, TheDefaultRateIsThatOfTheWeights) {
  const std::string lora = R"(model.lora={"target_modules": "all-linear"})";
  const std::string folder = "model.folder=" + folder_.path().string();
  const std::vector<std::pair<std::vector<std::string>, double>> cases = {
      {{"optimizer.lr=null"}, 1e-3},
      {{"optimizer=null"}, 1e-3},
      {{"optimizer.lr=null", "model.config=", folder}, 5e-5},
      {{"optimizer=null", "model.config=", folder}, 5e-5},
      {{"optimizer.type=sgd", "optimizer.lr=null", "model.config=", folder},
       5e-5},
      {{"optimizer.lr=null", "model.config=", folder, lora}, 2e-4},
      {{"model.config=", folder, lora}, 0.1}};
  for (const auto& [overrides, rate] : cases) {
    SCOPED_TRACE(nlohmann::json(overrides).dump());
    const TrainingConfig read = config(overrides);
    EXPECT_EQ(read.engine.optimizer.lr, rate);
    const auto again = read_training_config(
        runtime::ConfigReader(nlohmann::json(read.resolved), "again"));
    EXPECT_EQ(again.engine.optimizer.lr, rate);
  }
}

TEST_F(RunTraining, ARateThatAProgramSetsIsNotTheDefault) {
  for (const bool sets : {false, true}) {
    const auto job = on_ranks(1, [&] {
      TrainingConfig read =
          config({"optimizer.lr=null", "output.overwrite=true"});
      if (sets) {
        read.engine.optimizer.lr = 0.02;
      }
      run_training(std::move(read));
    });
    EXPECT_EQ(
        job.output.find("(optimizer.lr, by default)") == std::string::npos,
        sets)
        << job.output;
  }
}

TEST_F(RunTraining, SaysHowItUpdatesAndDoesSo) {
  const auto job = on_ranks(1, [&] { run_training(config()); });
  EXPECT_NE(
      job.output.find(
          "optimizer AdamW, learning rate 0.1, decay linear, warm-up over 3 % of the steps (schedule.warmup_fraction), gradients clipped to norm 1 (training.clip_grad_norm)"),
      std::string::npos)
      << job.output;
  const auto lines = engine::read_metrics(run());
  ASSERT_EQ(lines.size(), static_cast<size_t>(kSteps));
  EXPECT_DOUBLE_EQ(lines[0].lr, 0.1 / 6); // 3 % of 200 steps are 6
  EXPECT_DOUBLE_EQ(lines[5].lr, 0.1);
  EXPECT_LT(lines[7].lr, 0.1);
  EXPECT_TRUE(lines[0].grad_norm.has_value());
}

TEST_F(RunTraining, SaysThatAShortRunHasNoWarmUp) {
  write_floats();
  const auto job = on_ranks(1, [&] {
    run_training(config(
        {"model.architecture=PlainAmountModel", "training.max_steps=6"}));
  });
  EXPECT_NE(
      job.output.find(
          "no warm-up (3 % of 6 steps is less than one, schedule.warmup_fraction)"),
      std::string::npos)
      << job.output;
  EXPECT_DOUBLE_EQ(engine::read_metrics(run()).at(0).lr, 0.1);
}

TEST_F(RunTraining, WarnsOfHeldOutDataThatAreTrainedOn) {
  write_floats();
  fs::copy_file(folder_ / "data.safetensors", folder_ / "other.safetensors");
  fs::create_symlink(
      folder_ / "data.safetensors", folder_ / "link.safetensors");
  for (const char* file : {"data", "link", "other"}) {
    SCOPED_TRACE(file);
    const auto job = on_ranks(1, [&] {
      run_training(config(
          {"model.architecture=PlainAmountModel",
           "training.max_steps=2",
           "output.overwrite=true",
           "data.heldout=" +
               (folder_ / (file + std::string(".safetensors"))).string()}));
    });
    EXPECT_EQ(
        job.output.find("also in data.train") == std::string::npos,
        file == std::string("other"))
        << job.output;
  }
}

TEST_F(RunTraining, SaysWhyThereIsNoBestCheckpoint) {
  write_floats();
  fs::rename(folder_ / "data.safetensors", folder_ / "train.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  write(
      {{"features", features()},
       {"amounts",
        {runtime::SafetensorsDtype::kF32, {kRows}, [nan](int64_t, int64_t) {
           return nan;
         }}}});
  const auto job = on_ranks(1, [&] {
    const TrainingResult result = run_training(config(
        {"model.architecture=PlainAmountModel",
         "data.train=" + (folder_ / "train.safetensors").string(),
         "training.max_steps=4",
         "training.evaluate_every=2",
         "training.export_best=true"}));
    EXPECT_EQ(result.summary.best_step, 0);
  });
  EXPECT_NE(
      job.output.find(
          "there is no best checkpoint: no score of the held-out data was a finite loss; the last step is exported"),
      std::string::npos)
      << job.output;
  EXPECT_EQ(job.output.find("could not be saved"), std::string::npos)
      << job.output;
}

TEST_F(RunTraining, RunsOneAfterTheOther) {
  write_floats();
  on_ranks(1, [&] {
    const auto first = run_training(config(
        {"training.max_steps=30",
         "model.architecture="
         "PlainAmountModel"}));
    EXPECT_EQ(first.summary.steps, 30);
    EXPECT_THROW(run_training(config()), Error);
    const auto second = run_training(config(
        {"training.max_steps=40",
         "training.resume=true",
         "model.architecture=PlainAmountModel"}));
    EXPECT_EQ(second.summary.steps, 40);
    EXPECT_EQ(second.summary.new_steps, 10);
  });
}

} // namespace tessera::tasks::run_training_test
