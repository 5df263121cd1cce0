// SPDX-License-Identifier: Apache-2.0
// The task "text_classification" on models of all kinds of families: inputs
// that fit the model, runs, scores and predictions.
#include "tessera/tasks/run_training.h"

#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/tasks/text_predictor.h"
#include "tessera/text/metrics/class_counts.h"
#include "tessera/text/metrics/correlation.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace tessera::tasks::text_classification_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A family with the tokenizer that its models have.
struct Family {
  const char* config; ///< of tests/zoo/fixtures/models
  const char* tokenizer; ///< of tests/zoo/fixtures/tokenizers
  const char* padding; ///< a token of it
};

constexpr Family kFamilies[] = {
    {"bert_classifier", "bert", "[PAD]"},
    {"roberta_classifier", "roberta", "<pad>"},
    {"roformer_classifier", "bert", "[PAD]"},
    {"longformer_classifier", "roberta", "<pad>"},
    {"gpt2_classifier", "gpt2", "<|end|>"},
    {"gptj_classifier", "gpt2", "<|end|>"},
    {"opt_classifier", "gpt2", "<|end|>"},
    {"llama_classifier", "llama2", "</s>"},
    {"qwen2_classifier", "qwen2", "<|end|>"},
    {"qwen3_classifier", "qwen2", "<|end|>"},
    {"glm4_classifier", "llama2", "</s>"},
    {"t5_classifier", "t5", "<pad>"},
    {"mt5_classifier", "t5", "<pad>"}};

/// A model with newly initialized weights beside its tokenizer.
/// @param changes of config.json.
void write_model(
    const fs::path& folder,
    const Family& family,
    json changes = json::object()) {
  const fs::path tokenizer_file =
      fixture("tokenizers") / (std::string(family.tokenizer) + ".json");
  const auto tokenizer = text::Tokenizer::from_file(tokenizer_file);
  json config = read_json(fixture("models") / family.config / "config.json");
  config["vocab_size"] = tokenizer.size();
  config["pad_token_id"] = *tokenizer.id_of(family.padding);
  config["eos_token_id"] =
      tokenizer.id_of("</s>").value_or(config.at("eos_token_id"));
  for (const char* key : {"n_positions", "max_position_embeddings"}) {
    if (config.contains(key)) {
      config[key] = 144;
    }
  }
  for (const char* key :
       {"attn_pdrop",
        "embd_pdrop",
        "resid_pdrop",
        "dropout",
        "dropout_rate",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob"}) {
    if (config.contains(key)) {
      config[key] = 0.0;
    }
  }
  config.update(changes);
  torch::manual_seed(3);
  const auto model = zoo::from_config(config);
  // Newly initialized decoders say nearly the same of all texts.
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() == 2) {
      parameter.mul_(5);
    }
  }
  zoo::save_pretrained(*model, folder);
  fs::copy(
      tokenizer_file,
      folder / "tokenizer.json",
      fs::copy_options::overwrite_existing);
}

const char* const kTexts[] = {
    "a game of cards",
    "a mail server, and more than that: the server of a big company",
    "The cat sat on the mat.",
    "b",
    "numbers 12 and 13"};

class TextClassification : public ::testing::Test {
 protected:
  /// Pairs with labels, as CSV.
  fs::path write_pairs(
      const std::vector<std::string>& labels,
      int rows,
      const std::string& name = "data.csv") const {
    const fs::path path = folder_ / name;
    std::ofstream out(path);
    out << "question,answer,label\n";
    for (int i = 0; i < rows; ++i) {
      out << "\"" << kTexts[i % 5] << "\",\"" << kTexts[i / 5 % 4] << "\","
          << labels[static_cast<size_t>(i) % labels.size()] << "\n";
    }
    return path;
  }

  TrainingConfig config(const std::vector<std::string>& overrides = {}) const {
    const fs::path file = folder_ / "train.json";
    const json values = {
        {"task", "text_classification"},
        {"model", {{"folder", model_.string()}, {"max_length", 40}}},
        {"data",
         {{"train", (folder_ / "data.csv").string()},
          {"heldout", (folder_ / "data.csv").string()},
          {"text_key", {"question", "answer"}}}},
        {"optimizer", {{"lr", 0.001}}},
        {"training",
         {{"clip_grad_norm", 0}, {"batch_size", 4}, {"max_steps", 2}}},
        {"output", {{"folder", run_.string()}, {"overwrite", true}}}};
    runtime::write_file_atomically(file, values.dump());
    return read_training_config(file, overrides);
  }

  static void on_ranks(int ranks, const std::function<void()>& body) {
    output_ = tests::on_ranks(ranks, body).output;
  }

  /// Runs of `action` in a process of their own, which must fail with `part`.
  static void expect_refused(
      const std::function<void()>& action,
      const std::string& part) {
    on_ranks(1, [&] {
      try {
        action();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << error.what();
      }
    });
  }

  static inline std::string output_;
  const TemporaryFolder folder_;
  const fs::path model_ = folder_ / "base";
  const fs::path run_ = folder_ / "run";
};

std::vector<TextPair> some_pairs(size_t count) {
  std::vector<TextPair> pairs;
  for (size_t i = 0; i < count; ++i) {
    pairs.push_back({kTexts[i % 5], kTexts[i / 5 % 4]});
  }
  return pairs;
}

std::unique_ptr<TextPredictor> predictor_of(
    const fs::path& folder,
    const std::vector<std::string>& overrides = {}) {
  return TextPredictor::open(trained_model(folder, overrides), c10::kCPU);
}

} // namespace

TEST_F(TextClassification, TrainsAndPredictsWithEveryKindOfFamily) {
  write_pairs({"no", "yes", "maybe"}, 20);
  for (const Family& family : kFamilies) {
    SCOPED_TRACE(family.config);
    on_ranks(1, [&] {
      // Its head is kept, for it has the names of the data.
      write_model(
          model_,
          family,
          {{"id2label", {{"0", "maybe"}, {"1", "no"}, {"2", "yes"}}}});
      const TrainingResult result = run_training(config());
      EXPECT_EQ(result.summary.steps, 2);
      ASSERT_TRUE(result.score.has_value());
      EXPECT_EQ(evaluate_run(run_).values, result.score->values);
      const auto predictor = predictor_of(run_);
      EXPECT_EQ(
          predictor->labels().names,
          (std::vector<std::string>{"maybe", "no", "yes"}));
      // Padding changes nothing: a batch is as its texts alone, up to the
      // rounding of products of few rows (few_rows_linear.h).
      const auto pairs = some_pairs(5);
      const auto together = predictor->predict(pairs);
      double spread = 0;
      for (size_t i = 0; i < pairs.size(); ++i) {
        const auto alone = predictor->predict({pairs[i]}).front();
        for (size_t k = 0; k < 3; ++k) {
          EXPECT_NEAR(together[i][k], alone[k], 5e-5) << i;
          spread = std::max(spread, std::abs(together[i][k] - together[0][k]));
        }
      }
      // which would not be seen if all texts were alike
      EXPECT_GT(spread, 1e-3);
    });
  }
}

// Integers in the data are the ids of a trained head, whose names stay.
TEST_F(TextClassification, IntegersAreTheIdsOfANamedHead) {
  write_pairs({"0", "1"}, 10);
  on_ranks(1, [&] {
    write_model(
        model_,
        kFamilies[0],
        {{"id2label", {{"0", "bad"}, {"1", "good"}}},
         {"label2id", {{"bad", 0}, {"good", 1}}}});
    run_training(config());
    EXPECT_EQ(
        read_json(run_ / "model" / "config.json").at("id2label"),
        (json{{"0", "bad"}, {"1", "good"}}));
    evaluate_run(run_);
  });
  for (const char* part :
       {"whose names are kept",
        "2 of 10 examples are left out of each epoch"}) {
    EXPECT_NE(output_.find(part), std::string::npos) << output_;
  }
}

TEST_F(TextClassification, TheBestMetricIsKnownBeforeTheFirstStep) {
  write_pairs({"no", "yes"}, 10);
  on_ranks(1, [&] { write_model(model_, kFamilies[0]); });
  const auto with = [&](const std::string& metric) {
    return [this, metric] {
      run_training(config(
          {"training.evaluate_every=1000", "training.best_metric=" + metric}));
    };
  };
  expect_refused(with("acc"), "training.best_metric is 'acc'");
  EXPECT_FALSE(fs::exists(run_));
  on_ranks(1, with("accuracy"));
  EXPECT_TRUE(fs::exists(run_ / "result.json"));
}

TEST_F(TextClassification, OnlyModelsWithTokenTypesGetThem) {
  on_ranks(1, [&] {
    for (const Family& family : kFamilies) {
      SCOPED_TRACE(family.config);
      write_model(model_, family);
      const auto tokenizer = text::Tokenizer::from_folder(model_);
      const auto model = lazy_text_classifier(model_);
      const TextInputs inputs =
          text_inputs(*model, *model->head(), tokenizer, model_);
      const std::string name = family.config;
      EXPECT_EQ(
          inputs.has_token_types,
          name.starts_with("bert") || name.starts_with("roformer"));
      const zoo::ModelInput batch = padded_input(
          {tokenizer.encode_pair("a game", "of cards"), tokenizer.encode("b")},
          inputs);
      EXPECT_EQ(batch.token_type_ids.defined(), inputs.has_token_types);
      EXPECT_EQ(
          batch.input_ids[1][-1].item<int64_t>(),
          *tokenizer.id_of(family.padding));
      EXPECT_EQ(batch.attention_mask[1][-1].item<int64_t>(), 0);
      if (inputs.has_token_types) {
        EXPECT_EQ(batch.token_type_ids[0].max().item<int64_t>(), 1);
      }
    }
  });
}

TEST_F(TextClassification, AMissingPaddingTokenHasARemedy) {
  write_pairs({"no", "yes"}, 8);
  const Family gpt2 = kFamilies[4];
  expect_refused(
      [&] {
        write_model(model_, gpt2, {{"pad_token_id", nullptr}});
        run_training(config());
      },
      "set \"pad_token_id\" in config.json");
  EXPECT_FALSE(fs::exists(run_));
  // The tokenizer's is used if config.json has none, and is exported.
  on_ranks(1, [&] {
    write_model(model_, gpt2, {{"pad_token_id", nullptr}});
    std::ofstream(model_ / "tokenizer_config.json")
        << R"({"pad_token": "<|end|>"})";
    run_training(config());
    EXPECT_EQ(
        read_json(run_ / "model" / "config.json").at("pad_token_id"),
        *text::Tokenizer::from_folder(model_).id_of("<|end|>"));
  });
}

TEST_F(TextClassification, BadDataIsFoundBeforeTraining) {
  on_ranks(1, [&] { write_model(model_, kFamilies[0]); });
  const auto data = write_pairs({"no", "yes"}, 8);
  std::ofstream(data, std::ios::app) << "a,b\n";
  const auto bad = [&](const std::string& override_text,
                       const std::string& part) {
    expect_refused([&] { run_training(config({override_text})); }, part);
    EXPECT_FALSE(fs::exists(run_));
  };
  bad("training.max_steps=1", "data.csv:10: the row has 2 fields");
  write_pairs({"no", "yes"}, 8);
  const auto other = write_pairs({"no", "perhaps"}, 8, "other.csv");
  bad("data.heldout=" + other.string(), "other.csv:3: the label 'perhaps'");
  bad("data.metric=pearson", "data.metric is \"pearson\"");
  // Without the metrics of presets.
  bad("data.metric=f1macro",
      "'accuracy, f1, f1_macro, f1_micro, matthews'; did you mean 'f1_macro'?");
  bad("data.text_key=[\"question\", \"reply\"]", "there is no 'reply'");
  on_ranks(1, [&] {
    run_training(
        config({"data.heldout=" + other.string(), "data.skip_bad_rows=true"}));
  });
  EXPECT_NE(
      output_.find("4 rows of '" + other.string() + "' with unknown labels"),
      std::string::npos)
      << output_;
}

// Scores are those of predictions that are computed one text at a time, and the
// same over any number of ranks.
TEST_F(TextClassification, ScoresAreTheSameOverRanks) {
  constexpr int kRows = 21; // not all ranks have as many
  const auto first = write_pairs({"0", "1", "1"}, kRows);
  const auto second = write_pairs({"1", "0"}, 6, "second.csv");
  json scores;
  on_ranks(1, [&] {
    write_model(
        model_,
        kFamilies[4],
        {{"id2label", {{"0", "0"}, {"1", "1"}}},
         {"label2id", {{"0", 0}, {"1", 1}}}});
    const auto predictor = predictor_of(
        model_,
        {R"(data.text_key=["question", "answer"])", "model.max_length=40"});
    const auto counts_of = [&](const std::vector<std::string>& labels,
                               size_t rows,
                               text::ClassCounts& counts) {
      const auto pairs = some_pairs(rows);
      for (size_t i = 0; i < rows; ++i) {
        const auto found = predictor->predict({pairs[i]}).front();
        counts.add(
            {labels[i % labels.size()] == "1" ? 1 : 0},
            {found[1] > found[0] ? 1 : 0});
      }
    };
    text::ClassCounts all(2);
    counts_of({"1", "0"}, 6, all);
    const double second_f1 = all.f1(1);
    counts_of({"0", "1", "1"}, kRows, all);
    std::ofstream(folder_ / "expected.json") << json{
        {"heldout_f1", all.f1(1)},
        {"heldout_matthews", all.matthews()},
        {"heldout_accuracy", all.accuracy()},
        {"heldout_f1_second", second_f1}};
    // Otherwise the metrics could not tell a mistake.
    EXPECT_GT(all.f1(1), 0.1);
    EXPECT_NE(all.matthews(), 0);
  });
  const json expected = read_json(folder_ / "expected.json");
  for (const int ranks : {1, 4}) {
    SCOPED_TRACE(ranks);
    on_ranks(ranks, [&] {
      config(); // writes train.json
      const TaskScore score = evaluate_run(
          folder_ / "train.json",
          {"data.heldout=[\"" + first.string() + "\", \"" + second.string() +
               "\"]",
           "training.batch_size=3",
           "data.metric=[\"f1\", \"matthews\", \"accuracy\"]"});
      EXPECT_EQ(score.values.begin().key(), "heldout_f1");
      EXPECT_TRUE(score.text.starts_with("F1 ")) << score.text;
      EXPECT_EQ(score.values.at("heldout_examples"), kRows + 6);
      for (const auto& [name, value] : expected.items()) {
        EXPECT_NEAR(score.values.at(name), value, 1e-12) << name;
      }
    });
  }
}

TEST_F(TextClassification, HeldOutFilesOfOneNameHaveScoresOfTheirOwn) {
  write_pairs({"yes", "no"}, 12);
  fs::create_directory(folder_ / "near");
  fs::create_directory(folder_ / "far");
  const auto near = write_pairs({"yes", "no"}, 6, "near/dev.csv");
  const auto far = write_pairs({"no", "yes", "no"}, 5, "far/dev.csv");
  on_ranks(1, [&] {
    write_model(model_, kFamilies[1]);
    const json files{near.string(), far.string()};
    const auto result = run_training(config({"data.heldout=" + files.dump()}));
    ASSERT_TRUE(result.score.has_value());
    const auto& values = result.score->values;
    EXPECT_NEAR(
        values.at("heldout_accuracy").get<double>(),
        (6 * values.at("heldout_accuracy_near/dev").get<double>() +
         5 * values.at("heldout_accuracy_far/dev").get<double>()) /
            11,
        1e-12);
  });
}

TEST_F(TextClassification, PublishedDataNeedsAFolderAndItsName) {
  const fs::path mnli = folder_ / "MNLI";
  fs::create_directory(mnli);
  const auto write = [&](const char* name, const char* labels, int rows) {
    std::ofstream out(mnli / name);
    out << "index\tsentence1\tsentence2\t" << labels << "gold_label\n";
    for (int i = 0; i < rows; ++i) {
      out << i << "\tA \"game of cards.\t" << kTexts[i % 5] << "\t"
          << (*labels != 0 ? "neutral\t" : "")
          << (i % 2 == 0 ? "neutral" : "entailment") << "\n";
    }
  };
  write("train.tsv", "label1\t", 16);
  write("dev_matched.tsv", "", 6);
  write("dev_mismatched.tsv", "", 5);
  on_ranks(1, [&] {
    write_model(model_, kFamilies[1]);
    const auto result = run_training(config(
        {"data.preset=glue/mnli",
         "data.train=" + mnli.string(),
         "data.heldout="}));
    ASSERT_TRUE(result.score.has_value());
    const auto& values = result.score->values;
    EXPECT_EQ(values.at("heldout_examples"), 11);
    const double matched = values.at("heldout_accuracy_dev_matched");
    const double mismatched = values.at("heldout_accuracy_dev_mismatched");
    EXPECT_NEAR(
        values.at("heldout_accuracy"),
        (6 * matched + 5 * mismatched) / 11,
        1e-12);
    EXPECT_EQ(evaluate_run(run_).values, values);
    // A class that is not in the data is one of the model's.
    EXPECT_EQ(
        predictor_of(run_)->labels().names, text_preset("glue/mnli").labels);
  });
}

TEST_F(TextClassification, TrainsOnSeveralLabelsAndOnNumbers) {
  write_pairs({"\"a,b\"", "", "b", "\"c, a\""}, 20);
  on_ranks(2, [&] {
    const auto here = config();
    if (std::getenv("RANK") == std::string("0")) {
      write_model(model_, kFamilies[0]);
      std::ofstream(folder_ / "ready") << "";
    }
    while (!fs::exists(folder_ / "ready")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const auto result =
        run_training(config({"model.problem_type=multi_label_classification"}));
    EXPECT_EQ(result.score->values.begin().key(), "heldout_f1_micro");
    EXPECT_EQ(evaluate_run(run_).values, result.score->values);
  });
  on_ranks(1, [&] {
    const ClassLabels labels = predictor_of(run_)->labels();
    EXPECT_EQ(labels.kind, zoo::HeadLabels::kClasses);
    EXPECT_EQ(labels.names, (std::vector<std::string>{"a", "b", "c"}));
  });
  write_pairs({"0.5", "-2", "3.25"}, 20);
  on_ranks(1, [&] {
    const auto result = run_training(config({"model.problem_type=regression"}));
    const auto predictor = predictor_of(run_);
    std::vector<double> found, wanted;
    for (const auto& values : predictor->predict(some_pairs(20))) {
      found.push_back(values.front());
      wanted.push_back(std::array{0.5, -2.0, 3.25}[wanted.size() % 3]);
    }
    // float32 in batches of other sizes
    EXPECT_NEAR(
        result.score->values.at("heldout_pearson"),
        text::pearson(found, wanted),
        1e-4);
    EXPECT_NEAR(
        result.score->values.at("heldout_spearman"),
        text::spearman(found, wanted),
        1e-4);
  });
}

} // namespace tessera::tasks::text_classification_test
