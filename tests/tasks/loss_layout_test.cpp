// SPDX-License-Identifier: Apache-2.0
// The losses of training and of held-out data are those of rows alone, however
// these are padded and divided into ranks and micro-batches.
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/tasks/run_training.h"
#include "tessera/zoo/models/pretrained.h"
#include "tools/example_data.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <torch/torch.h>
#include <fstream>

namespace tessera::tasks::loss_layout_test {

namespace {

using nlohmann::json;

constexpr int64_t kRows = 6;

/// The sum of -log of the probability of targets.
double surprise(const at::Tensor& logits, const at::Tensor& targets) {
  return -logits.to(at::kDouble)
              .log_softmax(-1)
              .gather(-1, targets.unsqueeze(-1))
              .sum()
              .item<double>();
}

struct Layout {
  int ranks;
  int batch_size;
  int accumulate;
};

class LossLayout : public ::testing::Test {
 protected:
  std::filesystem::path file() const {
    return folder_ / "examples.safetensors";
  }

  /// A model that is far from guessing all alike.
  std::shared_ptr<zoo::Model> write_model(const std::string& name) const {
    json values = read_json(fixture("models") / name / "config.json");
    values["initializer_range"] = 0.6;
    for (auto& [key, value] : values.items()) {
      if (key.find("drop") != std::string::npos && value.is_number()) {
        value = 0.0;
      }
    }
    torch::manual_seed(3);
    auto model = zoo::from_config(values);
    model->eval();
    zoo::save_pretrained(*model, folder_ / "model");
    return model;
  }

  TrainingConfig config(const Layout& layout) const {
    const json values = {
        {"task", "examples"},
        {"model", {{"folder", (folder_ / "model").string()}}},
        {"data", {{"train", file().string()}, {"heldout", file().string()}}},
        {"optimizer", {{"lr", 0}, {"weight_decay", 0}}},
        {"training",
         {{"max_steps", 1},
          {"batch_size", layout.batch_size},
          {"accumulate", layout.accumulate}}},
        {"output",
         {{"folder", (folder_ / "run").string()}, {"overwrite", true}}}};
    runtime::write_file_atomically(folder_ / "train.json", values.dump());
    return read_training_config(folder_ / "train.json", {});
  }

  void expect_loss_in_all_layouts(double expected) const {
    for (const Layout& layout :
         {Layout{1, 6, 1}, {1, 4, 1}, {1, 2, 3}, {1, 1, 6}, {2, 1, 3}}) {
      SCOPED_TRACE(layout.batch_size);
      tests::on_ranks(layout.ranks, [&] {
        const TrainingResult result = run_training(config(layout));
        if (layout.ranks * layout.batch_size * layout.accumulate == kRows) {
          EXPECT_NEAR(result.summary.last_loss, expected, 1e-4);
        }
        ASSERT_TRUE(result.score.has_value());
        EXPECT_NEAR(
            result.score->values.at("heldout_loss").get<double>(),
            expected,
            1e-4);
      });
    }
  }

  /// The first line of the log of config().
  json first_metrics() const {
    std::ifstream metrics(folder_ / "run" / "metrics.jsonl");
    std::string line;
    std::getline(metrics, line);
    return json::parse(line);
  }

  struct Found {
    double loss;
    double grad_norm;
    double heldout;
  };

  Found found_in(const Layout& layout) const {
    tests::on_ranks(layout.ranks, [&] { run_training(config(layout)); });
    const json step = first_metrics();
    return {
        step.at("loss").get<double>(),
        step.at("grad_norm").get<double>(),
        read_json(folder_ / "run" / "result.json")
            .at("heldout_loss")
            .get<double>()};
  }

  /// Training and held-out losses and gradients are those of one batch.
  void expect_same_in(
      const std::string& model,
      const tests::ExampleTensors& examples,
      const std::vector<Layout>& layouts = {{1, 1, 6}, {2, 1, 3}}) const {
    SCOPED_TRACE(model);
    tests::write_examples(file(), examples);
    tests::on_ranks(1, [&] { write_model(model); });
    const Found alone = found_in({1, kRows, 1});
    EXPECT_GT(alone.loss, 0.01);
    EXPECT_GT(alone.grad_norm, 0.01);
    EXPECT_NEAR(alone.heldout, alone.loss, 1e-4 * alone.loss);
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(
          std::to_string(layout.ranks) + " ranks, " +
          std::to_string(layout.accumulate) + " micro-batches");
      const Found found = found_in(layout);
      // Float32 sums in other orders.
      EXPECT_NEAR(found.loss, alone.loss, 1e-4 * alone.loss);
      EXPECT_NEAR(found.grad_norm, alone.grad_norm, 1e-4 * alone.grad_norm);
      EXPECT_NEAR(found.heldout, alone.heldout, 1e-4 * alone.heldout);
    }
  }

  const TemporaryFolder folder_;
};

/// Labels of 1 to 5 tokens of each row.
tests::ExampleTensor token_labels(int64_t length, int64_t classes) {
  return {
      runtime::SafetensorsDtype::kI32,
      {kRows, length},
      [=](int64_t row, int64_t place) {
        return place > 0 && place <= 1 + row * 5 % 6
                   ? static_cast<double>(
                         static_cast<int64_t>(tests::token_of(row, place)) %
                         classes)
                   : -100.0;
      }};
}

} // namespace

TEST_F(LossLayout, OfAnswersHasNoPadding) {
  auto examples = tests::padded_texts(kRows);
  examples["start_positions"] =
      tests::of_rows(kRows, [](int64_t row) { return row % 3; });
  examples["end_positions"] =
      tests::of_rows(kRows, [](int64_t row) { return 6 + row % 6; });
  tests::write_examples(file(), examples);
  tests::on_ranks(1, [&] {
    // Each row by itself, without a mask.
    const auto model = write_model("bert_questions");
    double sum = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      zoo::ModelInput input;
      input.input_ids = torch::zeros({1, 7 + row}, at::kLong);
      for (int64_t place = 0; place < 7 + row; ++place) {
        input.input_ids[0][place] =
            static_cast<int64_t>(tests::token_of(row, place));
      }
      const torch::NoGradGuard no_grad;
      const auto output = model->forward(input);
      sum +=
          surprise(output.others.at("start_logits"), torch::tensor({row % 3}));
      sum += surprise(output.others.at("end_logits"), torch::tensor({6 + row}));
    }
    runtime::write_file_atomically(
        folder_ / "expected.json",
        json(sum / (2 * static_cast<double>(kRows))).dump());
  });
  expect_loss_in_all_layouts(read_json(folder_ / "expected.json"));
}

TEST_F(LossLayout, TokensWithoutPaddingAreThoseOfTheRows) {
  auto examples = tests::padded_texts(kRows);
  examples["labels"] =
      tests::of_rows(kRows, [](int64_t row) { return row % 2; });
  tests::write_examples(file(), examples);
  tests::on_ranks(1, [&] { write_model("bert_classifier"); });
  int64_t all = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    all += 7 + row;
  }
  const int64_t widest = kRows * (7 + kRows - 1);
  for (const Layout& layout :
       {Layout{1, kRows, 1}, {1, 1, kRows}, {2, 1, kRows / 2}}) {
    tests::on_ranks(layout.ranks, [&] { run_training(config(layout)); });
    const json step = first_metrics();
    EXPECT_EQ(step.at("non_padding_tokens"), all);
    EXPECT_EQ(step.at("tokens"), layout.batch_size == 1 ? all : widest);
    EXPECT_EQ(
        step.at("padding_ratio"),
        layout.batch_size == 1
            ? 0
            : 1 - static_cast<double>(all) / static_cast<double>(widest));
  }
}

// The sum of the mean over masked tokens and the mean over rows, which have
// different numbers of those.
TEST_F(LossLayout, OfPreTrainingIsTheSumOfMeansOverAll) {
  const auto count = [](int64_t row) { return 1 + row % 5; };
  auto examples = tests::padded_texts(kRows);
  examples["labels"] = {
      runtime::SafetensorsDtype::kI32,
      {kRows, 12},
      [&](int64_t row, int64_t place) {
        return place < count(row) ? tests::token_of(row, place + 1) : -100;
      }};
  examples["next_sentence_label"] =
      tests::of_rows(kRows, [](int64_t row) { return row % 4 / 3; });
  tests::write_examples(file(), examples);
  tests::on_ranks(1, [&] {
    const auto model = write_model("bert_pretraining");
    double of_tokens = 0;
    double of_rows = 0;
    int64_t tokens = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      zoo::ModelInput input;
      input.input_ids = torch::zeros({1, 7 + row}, at::kLong);
      for (int64_t place = 0; place < 7 + row; ++place) {
        input.input_ids[0][place] =
            static_cast<int64_t>(tests::token_of(row, place));
      }
      const torch::NoGradGuard no_grad;
      const auto output = model->forward(input);
      for (int64_t place = 0; place < count(row); ++place, ++tokens) {
        of_tokens += surprise(
            output.others.at("prediction_logits")[0][place],
            torch::tensor(
                static_cast<int64_t>(tests::token_of(row, place + 1))));
      }
      of_rows += surprise(
          output.others.at("seq_relationship_logits"),
          torch::tensor({row % 4 / 3}));
    }
    runtime::write_file_atomically(
        folder_ / "expected.json",
        json(
            of_tokens / static_cast<double>(tokens) +
            of_rows / static_cast<double>(kRows))
            .dump());
  });
  expect_loss_in_all_layouts(read_json(folder_ / "expected.json"));
}

// Masked tokens, completions, pieces of words that have no class, and second
// texts: rows have different numbers of labels.
TEST_F(LossLayout, OfTokensIsTheMeanOverThoseWithLabels) {
  auto examples = tests::padded_texts(kRows);
  for (const char* model : {"bert", "gpt2", "t5"}) {
    examples.insert_or_assign("labels", token_labels(12, 16));
    expect_same_in(model, examples);
  }
  examples.insert_or_assign("labels", token_labels(12, 2));
  expect_same_in("bert_tokens", examples);
}

// Some rows have no label of their pair, and micro-batches of such rows none.
TEST_F(LossLayout, OfPreTrainingLeavesOutPairsWithoutLabel) {
  auto examples = tests::padded_texts(kRows);
  examples["labels"] = token_labels(12, 16);
  examples["next_sentence_label"] = tests::of_rows(
      kRows, [](int64_t row) { return row % 2 == 0 ? -100 : row % 4 / 3; });
  expect_same_in("bert_pretraining", examples);
  // No pair has one: the loss is that of tokens.
  examples["next_sentence_label"] =
      tests::of_rows(kRows, [](int64_t) { return -100; });
  expect_same_in("bert_pretraining", examples);
}

TEST_F(LossLayout, OfAnswersCountsStartsAndEndsByThemselves) {
  auto examples = tests::padded_texts(kRows);
  examples["start_positions"] = tests::of_rows(
      kRows, [](int64_t row) { return row % 2 == 0 ? -100 : row % 3; });
  examples["end_positions"] =
      tests::of_rows(kRows, [](int64_t row) { return 6 + row % 6; });
  for (const char* model : {"bert_questions", "t5_questions"}) {
    expect_same_in(model, examples);
  }
}

TEST_F(LossLayout, OfClassesLeavesOutRowsWithoutOne) {
  auto examples = tests::padded_texts(kRows);
  examples["labels"] = tests::of_rows(
      kRows, [](int64_t row) { return row < 2 ? -100 : row % 2; });
  expect_same_in("bert_classifier", examples, {{1, 3, 2}, {2, 3, 1}});
}

TEST_F(LossLayout, OfMaskedPatchesIsTheMeanOverAllOfThem) {
  tests::ExampleTensors examples{
      {"pixel_values", tests::images(kRows, 16, 16)}};
  examples["bool_masked_pos"] = {
      runtime::SafetensorsDtype::kU8,
      {kRows, 16},
      [](int64_t row, int64_t place) { return place <= 3 * row ? 1.0 : 0.0; }};
  expect_same_in("vit_masked", examples);
}

} // namespace tessera::tasks::loss_layout_test
