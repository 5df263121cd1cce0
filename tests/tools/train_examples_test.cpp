// SPDX-License-Identifier: Apache-2.0
// `tessera train` and `eval` of any head of the zoo on examples in files: it
// learns, has the same losses under any layout of ranks, and goes on where it
// was.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tools/example_data.h"
#include "tools/run_forked.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <set>
#include <string>
#include <vector>

namespace tessera::train_examples_test {

namespace {

using tests::ExampleTensors;
using tests::images;
using tests::losses_of;
using tests::of_rows;
using tests::padded_texts;
using tests::read_json;
using tests::run_forked;
using tests::run_program;
using tests::token_of;

constexpr int64_t kRows = 32;

class TrainExamples : public ::testing::Test {
 protected:
  TrainExamples() {
    std::ofstream(folder_ / "train.json") << R"({"task": "examples",
        "model": {}, "data": {}, "output": {}, "optimizer": {"lr": 5e-3},
        "schedule": {"decay": "constant"},
        "training": {"batch_size": 4, "accumulate": 2, "clip_grad_norm": 1.0,
          "seed": 3, "epochs": 100}})";
  }

  void write(const ExampleTensors& tensors) const {
    tests::write_examples(file(), tensors);
  }

  std::filesystem::path file() const {
    return folder_ / "examples.safetensors";
  }

  static std::string fresh(const std::string& fixture) {
    return "model.config=" + tests::source_dir() +
           "/tests/zoo/fixtures/models/" + fixture + "/config.json";
  }

  tests::LaunchedJob::Result train(
      const std::string& name,
      int ranks,
      const std::vector<std::string>& overrides) const {
    std::vector<std::string> words{
        "train",
        (folder_ / "train.json").string(),
        "data.train=" + file().string(),
        "output.folder=" + (folder_ / name).string()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return run_forked(ranks, words);
  }

  std::vector<double> losses(const std::string& name) const {
    return losses_of(folder_ / name);
  }

  const TemporaryFolder folder_;
};

struct Case {
  std::string fixture; ///< whose config.json is trained from fresh weights
  ExampleTensors examples;
  std::vector<std::string> overrides;
  std::string score; ///< of the held-out examples, in result.json
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.fixture;
}

ExampleTensors with(
    ExampleTensors tensors,
    const std::string& name,
    tests::ExampleTensor tensor) {
  tensors.insert_or_assign(name, std::move(tensor));
  return tensors;
}

int64_t class_of(int64_t row) {
  return row % 4;
}

std::vector<Case> cases() {
  const ExampleTensors texts = padded_texts(kRows);
  const auto labels = [](int64_t length,
                         const std::function<double(int64_t, int64_t)>& value) {
    return tests::ExampleTensor{
        runtime::SafetensorsDtype::kI32, {kRows, length}, value};
  };
  return {
      {"vit_classifier",
       {{"pixel_values", images(kRows, 12, 20)},
        {"labels", of_rows(kRows, class_of)}},
       {R"(data.pixels={"mean": [0.3], "std": [0.2]})"},
       "heldout_accuracy"},
      {"swin_classifier",
       {{"pixel_values", images(kRows, 20, 20)},
        {"labels", of_rows(kRows, class_of)}},
       {},
       "heldout_accuracy"},
      {"mae", {{"pixel_values", images(kRows, 12, 12)}}, {}, "heldout_loss"},
      {"t5",
       with(
           texts,
           "labels",
           labels(
               8,
               [](int64_t row, int64_t place) {
                 return place < 4 + row % 4 ? token_of(row, place) : -100;
               })),
       {},
       "heldout_accuracy"},
      {"bert",
       texts,
       {R"(data.mask={"mask_token": 4, "never_masked": [3]})"},
       "heldout_accuracy"},
      {"bert_questions",
       with(
           with(
               texts,
               "start_positions",
               of_rows(kRows, [](int64_t row) { return row % 4; })),
           "end_positions",
           of_rows(kRows, [](int64_t row) { return row % 4 + 2; })),
       {},
       "heldout_exact_match"},
      {"bert_tokens",
       with(
           texts,
           "labels",
           labels(
               12,
               [](int64_t row, int64_t place) {
                 return place < 7 ? static_cast<int>(token_of(row, place)) % 5
                                  : -100;
               })),
       {},
       "heldout_accuracy"},
      {"gpt2_classifier",
       with(texts, "labels", of_rows(kRows, class_of)),
       {},
       "heldout_accuracy"},
      {"gpt2", texts, {}, "heldout_accuracy"},
      {"cpm2",
       with(
           texts,
           "labels",
           labels(
               8,
               [](int64_t row, int64_t place) {
                 return token_of(row, place);
               })),
       {},
       "heldout_accuracy"}};
}

class TrainExamplesOf : public TrainExamples,
                        public ::testing::WithParamInterface<Case> {};

} // namespace

TEST_P(TrainExamplesOf, LearnsTheSameUnderAnyLayout) {
  const Case& one = GetParam();
  write(one.examples);
  const auto losses_under = [&](const std::string& name,
                                int ranks,
                                std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), fresh(one.fixture));
    overrides.insert(
        overrides.end(), one.overrides.begin(), one.overrides.end());
    const auto result = train(name, ranks, overrides);
    EXPECT_EQ(result.exit_code, 0) << name << result.output;
    return losses(name);
  };
  const auto alone = losses_under(
      "alone", 1, {"training.max_steps=24", "data.heldout=" + file().string()});
  ASSERT_EQ(alone.size(), 24U);
  EXPECT_LT(alone.back(), 0.9 * alone.front());
  const nlohmann::json result = read_json(folder_ / "alone/result.json");
  EXPECT_TRUE(result.contains(one.score)) << result;
  // The exported model scores as the one in memory did.
  const auto score = run_forked(1, {"eval", (folder_ / "alone").string()});
  EXPECT_EQ(score.exit_code, 0) << score.output;
  char expected[40];
  std::snprintf(
      expected,
      sizeof(expected),
      "loss %.4f over 32 examples",
      result.at("heldout_loss").get<double>());
  EXPECT_NE(score.output.find(expected), std::string::npos)
      << expected << " is not in " << score.output;

  const auto expect_same = [&](const std::string& name,
                               int ranks,
                               std::vector<std::string> overrides) {
    overrides.emplace_back("training.max_steps=3");
    const auto found = losses_under(name, ranks, overrides);
    ASSERT_EQ(found.size(), 3U) << name;
    for (size_t i = 0; i < found.size(); ++i) {
      // Float32 sums in other orders, over three steps of AdamW.
      EXPECT_NEAR(found[i], alone[i], 2e-4 * std::max(1.0, alone[i]))
          << name << ", step " << i + 1;
    }
  };
  expect_same("tensor", 2, {"parallel.tensor=2"});
  expect_same("pipeline", 2, {"parallel.shard=1", "parallel.pipeline=2"});
  expect_same("zero", 2, {"training.accumulate=1"});
  expect_same(
      "offload",
      1,
      {"placement.optimizer=host",
       "placement.parameters=host",
       "placement.gradients=host",
       "placement.activations=host",
       "offload.min_tensor_bytes=1"});
}

INSTANTIATE_TEST_SUITE_P(
    Heads,
    TrainExamplesOf,
    ::testing::ValuesIn(cases()),
    [](const auto& one) { return one.param.fixture; });

// Rows have between one label and eleven: the mean over micro-batches would
// weigh those with few more.
TEST_F(TrainExamples, LossIsTheMeanOverAllLabelsOfAStep) {
  struct Layout {
    const char* name;
    int ranks;
    std::vector<std::string> overrides;
  };
  const auto rows = [](int64_t size, int64_t micro_batches) {
    return std::vector<std::string>{
        "training.batch_size=" + std::to_string(size),
        "training.accumulate=" + std::to_string(micro_batches)};
  };
  const auto with_more = [](std::vector<std::string> all, const char* more) {
    all.emplace_back(more);
    return all;
  };
  const std::vector<Layout> layouts{
      {"accumulated", 1, rows(4, 2)},
      {"single", 1, rows(1, 8)},
      {"two", 2, rows(4, 1)},
      {"four", 4, rows(2, 1)},
      {"both", 2, rows(2, 2)},
      {"pipeline",
       2,
       with_more(rows(1, 8), R"(parallel={"shard": 1, "pipeline": 2})")},
      {"context", 4, with_more(rows(2, 2), "parallel.context=2")}};
  struct Fixture {
    const char* name;
    int64_t length; ///< of labels
    std::vector<const char*> layouts;
    ExampleTensors more;
  };
  const std::vector<Fixture> fixtures{
      {"gpt2",
       12,
       {"accumulated", "single", "two", "four", "both", "pipeline", "context"},
       {}},
      {"t5", 12, {"both"}, {}},
      {"bert_pretraining",
       12,
       {"both", "pipeline"},
       {{"next_sentence_label",
         of_rows(kRows, [](int64_t row) { return row % 2; })}}}};
  for (const Fixture& fixture : fixtures) {
    ExampleTensors tensors = padded_texts(kRows);
    tensors.insert_or_assign(
        "labels",
        tests::ExampleTensor{
            runtime::SafetensorsDtype::kI32,
            {kRows, fixture.length},
            [](int64_t row, int64_t place) {
              return place > 0 && place <= 1 + row * 5 % 11
                         ? token_of(row, place)
                         : -100;
            }});
    for (const auto& [name, tensor] : fixture.more) {
      tensors.insert_or_assign(name, tensor);
    }
    write(tensors);
    // Without dropout, whose masks are those of micro-batches.
    nlohmann::json model = read_json(
        tests::source_dir() + "/tests/zoo/fixtures/models/" + fixture.name +
        "/config.json");
    for (auto& [key, value] : model.items()) {
      if (key.find("drop") != std::string::npos && value.is_number()) {
        value = 0;
      }
    }
    if (model.contains("n_head")) {
      model["n_head"] = 4; // of 24 features, for two context-parallel ranks
    }
    const auto config = folder_ / (std::string(fixture.name) + ".json");
    std::ofstream(config) << model;
    // Loss and gradient norm of each step.
    const auto steps_under = [&](const std::string& layout,
                                 int ranks,
                                 std::vector<std::string> overrides) {
      const std::string name = std::string(fixture.name) + "-" + layout;
      overrides.insert(
          overrides.end(),
          {"model.config=" + config.string(), "training.max_steps=2"});
      const auto result = train(name, ranks, overrides);
      EXPECT_EQ(result.exit_code, 0) << name << result.output;
      std::vector<double> values;
      std::ifstream lines(folder_ / name / "metrics.jsonl");
      for (std::string line; std::getline(lines, line);) {
        const auto step = nlohmann::json::parse(line);
        values.push_back(step.at("loss"));
        values.push_back(step.at("grad_norm"));
      }
      EXPECT_EQ(values.size(), 4U) << name;
      values.resize(4);
      return values;
    };
    const auto alone = steps_under("alone", 1, rows(8, 1));
    for (const Layout& layout : layouts) {
      if (std::find_if(
              fixture.layouts.begin(),
              fixture.layouts.end(),
              [&](const char* name) {
                return std::string(name) == layout.name;
              }) == fixture.layouts.end()) {
        continue;
      }
      const auto found =
          steps_under(layout.name, layout.ranks, layout.overrides);
      for (size_t i = 0; i < found.size(); ++i) {
        // Float32 sums in other orders.
        EXPECT_NEAR(found[i], alone[i], 1e-4 * alone[i])
            << fixture.name << " " << layout.name << ", value " << i;
      }
    }
    if (std::string(fixture.name) == "gpt2") {
      const auto of_batches = steps_under(
          "micro_batches",
          1,
          with_more(rows(1, 8), "training.loss_mean=micro_batches"));
      EXPECT_GT(std::abs(of_batches[1] - alone[1]), 0.05 * alone[1]);
    }
  }
}

TEST_F(TrainExamples, GoesOnAsIfItHadNotBeenInterrupted) {
  const auto expect_same = [&](const std::string& fixture,
                               const std::vector<std::string>& more) {
    const auto run = [&](const std::string& name) {
      std::vector<std::string> overrides = more;
      overrides.insert(
          overrides.end(),
          {fresh(fixture),
           "training.resume=true",
           "training.save_every=3",
           "training.max_steps=6"}); // an epoch has two
      const auto result = train(name, 2, overrides);
      EXPECT_EQ(result.exit_code, 0) << fixture << result.output;
      return losses(name);
    };
    const auto full = run(fixture);
    ASSERT_EQ(full.size(), 6U);
    // As it was when the third step was done.
    const auto checkpoints = folder_ / fixture / "checkpoints";
    const std::set<std::filesystem::path> both(
        std::filesystem::directory_iterator(checkpoints), {});
    ASSERT_EQ(both.size(), 2U);
    const auto again = folder_ / (fixture + "-again") / "checkpoints";
    std::filesystem::create_directories(again);
    std::filesystem::copy(
        *both.begin(),
        again / both.begin()->filename(),
        std::filesystem::copy_options::recursive);
    const auto rest = run(fixture + "-again");
    ASSERT_EQ(rest.size(), 3U);
    for (size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(rest[i], full[i + 3]) << fixture;
    }
  };
  write(padded_texts(kRows));
  expect_same("bert", {R"(data.mask={"mask_token": 4, "never_masked": [3]})"});
  write({{"pixel_values", images(kRows, 12, 12)}});
  expect_same("mae", {});
  write(
      {{"pixel_values", images(kRows, 12, 12)},
       {"second_pixel_values", images(kRows, 12, 12)}});
  expect_same("moco", {});
}

TEST_F(TrainExamples, DividesExperts) {
  write(padded_texts(kRows));
  const std::string heldout = "data.heldout=" + file().string();
  const auto losses_under = [&](const std::string& name,
                                int ranks,
                                const std::vector<std::string>& more) {
    std::vector<std::string> overrides{
        fresh("qwen2_moe"), heldout, "training.max_steps=3"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const auto result = train(name, ranks, overrides);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return losses(name);
  };
  const auto alone = losses_under("alone", 1, {});
  const auto divided = losses_under(
      "divided", 2, {"training.accumulate=1", "parallel.expert=2"});
  ASSERT_EQ(alone.size(), 3U);
  ASSERT_EQ(divided.size(), 3U);
  for (size_t i = 0; i < alone.size(); ++i) {
    // As above.
    EXPECT_NEAR(divided[i], alone[i], 2e-4 * std::max(1.0, alone[i]));
  }
  // The exported model is whole.
  const auto score = run_forked(
      1, {"eval", (folder_ / "divided").string(), "parallel.expert=1"});
  EXPECT_EQ(score.exit_code, 0) << score.output;
  const auto loss_in = [&](const std::string& name) {
    return read_json(folder_ / name / "result.json")
        .at("heldout_loss")
        .get<double>();
  };
  EXPECT_NEAR(loss_in("divided"), loss_in("alone"), 1e-3);
}

TEST_F(TrainExamples, TrainsAdaptersAndOtherHeads) {
  write(with(padded_texts(kRows), "labels", of_rows(kRows, class_of)));
  const std::string folder =
      tests::source_dir() + "/tests/zoo/fixtures/models/bert";
  const std::vector<std::string> overrides{
      "model.folder=" + folder,
      "model.architecture=BertForSequenceClassification",
      R"(model.classes=["a", "b", "c", "d"])",
      R"(model.lora={"target_modules": ["query", "value"]})",
      "data.heldout=" + file().string(),
      "training.max_steps=6"};
  const auto trained = train("adapter", 2, overrides);
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_NE(trained.output.find("adapter/\n"), std::string::npos)
      << trained.output;
  const auto score = run_forked(1, {"eval", (folder_ / "adapter").string()});
  EXPECT_EQ(score.exit_code, 0) << score.output;
  char expected[40];
  std::snprintf(
      expected,
      sizeof(expected),
      "loss %.4f over",
      read_json(folder_ / "adapter/result.json")
          .at("heldout_loss")
          .get<double>());
  EXPECT_NE(score.output.find(expected), std::string::npos)
      << expected << " is not in " << score.output;
}

TEST_F(TrainExamples, PredictsNumbersByAKey) {
  const tests::ExampleTensor numbers{
      runtime::SafetensorsDtype::kF32,
      {kRows},
      [](int64_t row, int64_t /*place*/) {
        return 0.5 * static_cast<double>(class_of(row));
      }};
  write(with(padded_texts(kRows), "labels", numbers));
  const auto trained = train(
      "numbers",
      1,
      {"model.folder=" + tests::source_dir() +
           "/tests/zoo/fixtures/models/bert",
       "model.architecture=BertForSequenceClassification",
       "model.problem_type=regression",
       R"(model.classes=["score"])",
       "data.heldout=" + file().string(),
       "training.max_steps=6"});
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const auto config = read_json(folder_ / "numbers/model/config.json");
  EXPECT_EQ(config.at("problem_type"), "regression");
  EXPECT_EQ(config.at("id2label"), (nlohmann::json{{"0", "score"}}));
  const auto score = run_forked(1, {"eval", (folder_ / "numbers").string()});
  EXPECT_EQ(score.exit_code, 0) << score.output;
}

TEST_F(TrainExamples, SaysWhatIsWrongWithExamples) {
  const auto fails = [&](const std::string& fixture,
                         const ExampleTensors& tensors,
                         const std::string& expected,
                         const std::vector<std::string>& more = {}) {
    write(tensors);
    std::vector<std::string> overrides{fresh(fixture), "training.max_steps=3"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const auto result = train("wrong", 2, overrides);
    EXPECT_NE(result.exit_code, 0) << expected;
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << result.output;
    EXPECT_LT(result.seconds, 25) << expected;
  };
  const ExampleTensors texts = padded_texts(kRows);
  const auto classes = [](int64_t rows, int64_t last) {
    return of_rows(
        rows, [=](int64_t row) { return row + 1 == rows ? last : row % 4; });
  };
  fails("gpt2_classifier", texts, "lacks 'labels'");
  fails(
      "gpt2_classifier",
      with(texts, "labels", classes(kRows, 4)),
      "'labels' holds 4, outside 0 .. 3");
  fails(
      "gpt2_classifier",
      with(texts, "labels", classes(31, 0)),
      "'input_ids' has 32 rows and 'labels' has 31");
  // Several values per row, which transformers takes for several labels by
  // their type: here, the configuration says what they are.
  const auto several = [](runtime::SafetensorsDtype dtype, double value) {
    return tests::ExampleTensor{
        dtype, {kRows, 4}, [=](int64_t row, int64_t place) {
          return row == 17 && place == 2 ? value : static_cast<double>(row % 2);
        }};
  };
  const std::string several_labels =
      "model.problem_type=multi_label_classification";
  for (const auto dtype :
       {runtime::SafetensorsDtype::kF32, runtime::SafetensorsDtype::kI64}) {
    fails(
        "gpt2_classifier",
        with(texts, "labels", several(dtype, 1)),
        "for several labels per row, [rows, 4] of 0 and 1, set " +
            several_labels);
  }
  fails(
      "gpt2_classifier",
      with(texts, "labels", several(runtime::SafetensorsDtype::kF32, -0.5)),
      "'labels' holds -0.5; several labels per row are 0 or 1 each",
      {several_labels});
  fails(
      "gpt2_classifier",
      with(
          texts,
          "labels",
          {runtime::SafetensorsDtype::kF32,
           {kRows, 2},
           [](int64_t, int64_t) { return 0.5; }}),
      "'labels' is F32 [rows, 2]; the model predicts 1 number for each row",
      {"model.problem_type=regression"});
  // Chances of the classes, of which the likeliest is scored.
  write(with(texts, "labels", several(runtime::SafetensorsDtype::kF32, 0.25)));
  const auto chances = train(
      "chances",
      1,
      {fresh("gpt2_classifier"),
       "model.problem_type=single_label_classification",
       "data.heldout=" + file().string(),
       "training.max_steps=1"});
  EXPECT_EQ(chances.exit_code, 0) << chances.output;
  EXPECT_TRUE(
      read_json(folder_ / "chances/result.json").contains("heldout_accuracy"));
  fails(
      "bert_tokens",
      with(texts, "labels", classes(kRows, 0)),
      "'labels' is I64 [rows]; it must be [rows, 12]");
  auto short_mask = texts;
  short_mask["attention_mask"].shape = {kRows, 11};
  fails("gpt2", short_mask, "'attention_mask' is U8 [rows, 11]; it must be");
  fails(
      "gpt2",
      with(texts, "atention_mask", texts.at("attention_mask")),
      "did you mean 'attention_mask'?");
  fails(
      "gpt2",
      with(texts, "start_positions", classes(kRows, 0)),
      "but a GPT2LMHeadModel does not take it");
  auto floats = texts;
  floats["input_ids"].dtype = runtime::SafetensorsDtype::kF32;
  fails("gpt2", floats, "its values must be integers");
  // One row of all, which one of the ranks sees.
  auto strange = texts;
  strange["input_ids"].value = [](int64_t row, int64_t place) {
    return row == 17 && place == 2 ? 61 : token_of(row, place);
  };
  fails("gpt2", strange, "'input_ids' holds 61, outside 0 .. 60");
  fails("gpt2", padded_texts(7), "the data are ");
  fails("gpt2", padded_texts(0), "cannot fill one batch");
  fails(
      "gpt2", padded_texts(kRows, 13), "multiple of 2", {"parallel.context=2"});
  fails(
      "bert",
      with(texts, "labels", texts.at("input_ids")),
      "data.mask makes labels",
      {R"(data.mask={"mask_token": 4})"});
  fails("bert", texts, "or data.mask, which makes them");
  fails(
      "bert",
      texts,
      "no token can be masked",
      {R"(data.mask={"mask_token": 4, "never_masked": [8, 9, 10, 11, 12, 13,
          14, 15, 3]})"});
  fails(
      "vit_classifier",
      {{"pixel_values", images(kRows, 12, 12)}, {"labels", classes(kRows, 0)}},
      "'pixel_values' is U8 [rows, 3, 12, 12]; it must be [rows, 3, 12, 20]");
  fails(
      "vit_classifier",
      {{"pixel_values", images(kRows, 12, 20)}, {"labels", classes(kRows, 0)}},
      "2 values for 3 channels",
      {"data.pixels.mean=[0.5, 0.5]"});
  const auto nowhere = of_rows(kRows, [](int64_t) { return 12; });
  fails(
      "bert_questions",
      with(with(texts, "start_positions", nowhere), "end_positions", nowhere),
      "none has a label that counts");
  std::ofstream(file()) << "no safetensors";
  const auto damaged = train("wrong", 2, {fresh("gpt2")});
  EXPECT_NE(damaged.exit_code, 0);
  EXPECT_NE(damaged.output.find("examples.safetensors"), std::string::npos)
      << damaged.output;
}

TEST_F(TrainExamples, SaysWhatIsWrongWithConfigurations) {
  write(padded_texts(kRows));
  const auto fails = [&](const std::vector<std::string>& overrides,
                         const std::string& expected) {
    const auto result = train("wrong", 1, overrides);
    EXPECT_NE(result.exit_code, 0) << expected;
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << result.output;
  };
  fails({}, "model.folder is");
  fails({fresh("bert_base")}, "a BertModel has no head");
  fails({fresh("gpt2"), "data.mask={}"}, "data.mask.mask_token");
  fails(
      {fresh("gpt2"), R"(data.mask={"mask_token": 4})"},
      "data.mask makes labels of masked tokens");
  fails(
      {fresh("bert"), R"(data.mask={"mask_token": 4, "random": 0.3})"},
      "at most 1");
  fails({fresh("bert"), "data.pixels.std=[0]"}, "greater than 0");
  fails({fresh("bert"), R"(model.classes=["a"])"}, "at least two names");
  fails({fresh("bert"), "data.train=absent"}, "absent");
  fails({fresh("bert"), "data.trian=x"}, "data.trian");
  const auto unscored =
      train("unscored", 1, {fresh("gpt2"), "training.max_steps=1"});
  ASSERT_EQ(unscored.exit_code, 0) << unscored.output;
  const auto score = run_forked(1, {"eval", (folder_ / "unscored").string()});
  EXPECT_EQ(score.exit_code, 1);
  EXPECT_NE(score.output.find("data.heldout=FILE"), std::string::npos)
      << score.output;
}

} // namespace tessera::train_examples_test
