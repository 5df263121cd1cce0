// SPDX-License-Identifier: Apache-2.0
// `tessera predict` and `tessera tokens` as a user runs them, on runs of
// labels, of numbers and of pairs.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tools/run_forked.h"
#include "tools/trained_run.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::predict_test {

namespace {

using tests::read_json;
using tests::run_forked;

/// A run with these overrides on 24 examples that `line` writes.
class Predict : public ::testing::Test {
 protected:
  void train(
      const std::function<nlohmann::json(int)>& line,
      const std::vector<std::string>& overrides = {},
      const std::string& config = "configs/finetune_minilm.json") {
    std::ofstream out(data_);
    for (int i = 0; i < 24; ++i) {
      examples_.push_back(line(i));
      out << examples_.back() << "\n";
    }
    out.close();
    std::vector<std::string> arguments{
        "train",
        config,
        "training.batch_size=8",
        "training.max_steps=6",
        "data.train=" + data_.string(),
        "data.heldout=" + data_.string(),
        "output.folder=" + run_.string()};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    const auto trained = run_forked(1, arguments);
    ASSERT_EQ(trained.exit_code, 0) << trained.output;
  }

  /// The lines of output.
  static std::vector<std::string> lines(
      const std::vector<std::string>& arguments) {
    const auto result = run_forked(1, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::istringstream text(result.output);
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) {
      if (!line.starts_with("tessera: ")) { // of the log
        lines.push_back(line);
      }
    }
    return lines;
  }

  /// The predictions of the training data, as JSON.
  std::vector<nlohmann::json> predictions() const {
    std::vector<nlohmann::json> found;
    for (const std::string& line : lines(
             {"predict",
              run_.string(),
              "--input",
              data_.string(),
              "--batch-size",
              "5",
              "--json"})) {
      found.push_back(nlohmann::json::parse(line));
    }
    EXPECT_EQ(found.size(), examples_.size());
    return found;
  }

  /// The loss and accuracy of the predictions are those of the run.
  void expect_scores(const std::string& label_key = "label") const {
    const auto found = predictions();
    double loss = 0;
    double correct = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const nlohmann::json& label = examples_[i].at(label_key);
      const std::string name =
          label.is_string() ? label.get<std::string>() : label.dump();
      loss -= std::log(found[i].at("probabilities").at(name).get<double>());
      correct += found[i].at("label") == name ? 1 : 0;
    }
    const auto count = static_cast<double>(found.size());
    const auto result = read_json(run_ / "result.json");
    // Padding differs between batches of 5 and of 8.
    EXPECT_NEAR(loss / count, result.at("heldout_loss").get<double>(), 1e-4);
    EXPECT_EQ(correct / count, result.at("heldout_accuracy").get<double>());
  }

  const TemporaryFolder folder_;
  const std::filesystem::path data_ = folder_ / "data.jsonl";
  const std::filesystem::path run_ = folder_ / "run";
  std::vector<nlohmann::json> examples_;
};

nlohmann::json with_label(int i, const nlohmann::json& label) {
  const char* const texts[] = {"a game of cards", "a mail server"};
  return {{"text", texts[i % 2]}, {"label", label}};
}

} // namespace

TEST_F(Predict, IntegerLabelsWithTheProbabilitiesThatAreScored) {
  train([](int i) { return with_label(i, i % 2 == 0 ? 10 : 9); });
  EXPECT_EQ(
      read_json(run_ / "model/config.json").at("id2label"),
      (nlohmann::json{{"0", "9"}, {"1", "10"}}));
  expect_scores();
  // Texts as arguments, of standard input, and of a file of lines.
  const auto given =
      lines({"predict", run_.string(), "a game of cards", "--top", "2"});
  ASSERT_EQ(given.size(), 1U);
  EXPECT_TRUE(given[0].ends_with(" %\ta game of cards")) << given[0];
  EXPECT_NE(given[0].find(" %, "), std::string::npos) << given[0];
  const auto file = folder_ / "lines.txt";
  std::ofstream(file) << "a game of cards\n\na mail server\r\n";
  const auto read =
      lines({"predict", run_.string(), "--top", "2", "--input", file.string()});
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[0], given[0]);
  EXPECT_TRUE(read[1].ends_with("\ta mail server")) << read[1];
  const auto predicted = [&] {
    return run_forked(1, {"predict", run_.string(), "--input", file.string()});
  };
  const auto told = predicted();
  EXPECT_NE(
      told.output.find("1 empty line of " + file.string() + " was skipped"),
      std::string::npos)
      << told.output;
  // Those at the end are before no result.
  std::ofstream(file) << "a game of cards\n\n\n";
  EXPECT_EQ(predicted().output.find("empty line"), std::string::npos);
  std::ofstream(file) << "a game of cards\ncaf\xe9\n";
  const auto bad = predicted();
  EXPECT_NE(bad.exit_code, 0);
  EXPECT_NE(
      bad.output.find(file.string() + ":2: byte 4 of the line is 0xe9"),
      std::string::npos)
      << bad.output;
  std::ofstream(file) << "a game of cards\n\na mail server\r\n";
  const auto typed = run(
      {"/bin/sh",
       "-c",
       tests::program("tessera") + " predict --top 2 " + run_.string() + " < " +
           file.string()});
  EXPECT_NE(typed.output.find(read[0] + "\n" + read[1]), std::string::npos)
      << typed.output;
  // A byte order mark is no text, and the name says what lines are.
  constexpr const char* kMark = "\xEF\xBB\xBF";
  std::ofstream(file) << kMark << "a game of cards\n";
  EXPECT_EQ(
      lines({"predict", run_.string(), "--top", "2", "--input", file.string()}),
      (std::vector<std::string>{given[0]}));
  std::ofstream(file) << "{curly} cards\n";
  EXPECT_TRUE(lines({"predict", run_.string(), "--input", file.string()})
                  .at(0)
                  .ends_with("\t{curly} cards"));
  const auto rows = folder_ / "rows.jsonl";
  for (const std::string begin : {kMark, " "}) {
    std::ofstream(rows) << begin << R"({"text": "a game of cards"})"
                        << "\n";
    EXPECT_EQ(
        lines(
            {"predict", run_.string(), "--top", "2", "--input", rows.string()}),
        (std::vector<std::string>{given[0]}));
  }
  std::ofstream(rows) << R"([{"text": "a game of cards"}])"
                      << "\n";
  const auto array =
      run_forked(1, {"predict", run_.string(), "--input", rows.string()});
  EXPECT_NE(array.output.find("is a JSON array"), std::string::npos)
      << array.output;
  // The folder of the model does as well.
  const std::string model = (run_ / "model").string();
  EXPECT_EQ(lines({"predict", model, "a game of cards", "--top", "2"}), given);
  // It does not say whether two texts are a pair; a run does.
  for (const auto& [source, is_told] :
       {std::pair(model, true), std::pair(run_.string(), false)}) {
    const auto two = run_forked(1, {"predict", source, "a game", "a server"});
    EXPECT_EQ(two.exit_code, 0) << two.output;
    EXPECT_EQ(
        two.output.find("each of the two texts is classified alone") !=
            std::string::npos,
        is_told)
        << two.output;
  }
  const auto scored = lines({"eval", run_.string()});
  ASSERT_FALSE(scored.empty());
  EXPECT_NE(scored.back().find("of 24 texts"), std::string::npos);
  // A run is a model for what comes next.
  EXPECT_EQ(
      lines({"tokens", run_.string(), "A game"}),
      (std::vector<std::string>{
          "ids: 101 1037 2208 102", "pieces: [CLS] a game [SEP]"}));
  EXPECT_EQ(
      lines(
          {"tokens", run_.string(), "--no-special-tokens", "--json", "A game"}),
      (std::vector<std::string>{
          R"({"text":"A game","input_ids":[1037,2208],"pieces":["a","game"]})"}));
  EXPECT_EQ(
      lines({"tokens", (run_ / "model/tokenizer.json").string(), "A game"}),
      lines({"tokens", run_.string(), "A game"}));
}

// CLI11 takes "[a, b]" for a list.
TEST_F(Predict, ArgumentsInBracketsAreTexts) {
  EXPECT_EQ(
      lines({"tokens", "models/minilm", "[MASK] game [SEP]", "[a, game]"}),
      (std::vector<std::string>{
          "ids: 101 103 2208 102 102",
          "pieces: [CLS] [MASK] game [SEP] [SEP]",
          "ids: 101 1031 1037 1010 2208 1033 102",
          "pieces: [CLS] [ a , game ] [SEP]"}));
  std::vector<std::string> words{
      "tessera",
      "[a, b]",
      "--one",
      "[c]",
      "--many=[d]",
      "--many",
      "[e, f]",
      "--choice=x",
      "[]"};
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  CLI::App app("", "tessera");
  std::string one;
  std::string choice;
  std::vector<std::string> texts;
  std::vector<std::string> many;
  app.add_option("texts", texts);
  app.add_option("--one", one);
  app.add_option("--many", many)->allow_extra_args(false);
  app.add_option("--choice", choice)->check(CLI::IsMember({"x"}));
  EXPECT_FALSE(
      tools::parse_arguments(app, static_cast<int>(argv.size()), argv.data()));
  EXPECT_EQ(texts, (std::vector<std::string>{"[a, b]", "[]"}));
  EXPECT_EQ(one, "[c]");
  EXPECT_EQ(many, (std::vector<std::string>{"[d]", "[e, f]"}));
  EXPECT_EQ(choice, "x");
}

// The rows of a head go with the names that its config.json gives them.
TEST_F(Predict, AHeadThatIsTrainedFurtherKeepsItsNames) {
  train([](int i) { return with_label(i, i % 2 == 0 ? "games" : "net"); });
  const auto base = folder_ / "base";
  std::filesystem::copy(run_ / "model", base);
  nlohmann::json config = read_json(base / "config.json");
  config["id2label"] = {{"0", "net"}, {"1", "games"}};
  config["label2id"] = {{"net", 0}, {"games", 1}};
  std::ofstream(base / "config.json") << config;
  const auto scored = [&](const std::filesystem::path& model, bool exchanged) {
    std::ofstream out(data_);
    for (int i = 0; i < 24; ++i) {
      out << with_label(i, (i % 2 == 0) != exchanged ? "games" : "net") << "\n";
    }
    out.close();
    const auto again = folder_ / "again";
    const auto trained = run_forked(
        1,
        {"train",
         "configs/finetune_minilm.json",
         "model.folder=" + model.string(),
         "training.batch_size=8",
         "training.max_steps=1",
         "optimizer.lr=0",
         "data.train=" + data_.string(),
         "data.heldout=" + data_.string(),
         "output.folder=" + again.string(),
         "output.overwrite=true"});
    EXPECT_EQ(trained.exit_code, 0) << trained.output;
    return read_json(again / "result.json").at("heldout_loss").get<double>();
  };
  const double right = scored(run_ / "model", true);
  EXPECT_GT(std::abs(right - scored(run_ / "model", false)), 0.1);
  EXPECT_NEAR(scored(base, false), right, 1e-5);
  EXPECT_EQ(
      read_json(folder_ / "again/model/config.json").at("id2label"),
      config["id2label"]);
  std::ifstream before(base / "model.safetensors", std::ios::binary);
  std::ifstream after(
      folder_ / "again/model/model.safetensors", std::ios::binary);
  EXPECT_TRUE(std::equal(
      std::istreambuf_iterator<char>(before),
      std::istreambuf_iterator<char>(),
      std::istreambuf_iterator<char>(after)));
}

// What a checkpoint's head was when its model was read is not what it is.
TEST_F(Predict, ReplacedValuesOfANewHeadAreTold) {
  const std::vector<std::string> keys{"training.save_every=3"};
  train([](int i) { return with_label(i, i % 2 == 0 ? "a" : "b"); }, keys);
  const std::string told =
      "the weights that were newly initialized take the values of " +
      (run_ / "checkpoints" / "step-000003").string();
  const std::string to = (folder_ / "exported").string();
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"eval", run_.string(), "--from", "step-3"},
        {"export", run_.string(), "--from", "step-3", "--to", to},
        {"train",
         (run_ / "config.json").string(),
         "training.resume=true",
         "training.epochs=2",
         "training.max_steps=4"}}) {
    const auto result = run_forked(1, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find("newly initialized"), std::string::npos);
    EXPECT_NE(result.output.find(told), std::string::npos) << result.output;
  }
}

TEST_F(Predict, BooleanLabelsOfPairs) {
  train(
      [](int i) {
        return nlohmann::json{
            {"question", "is it a game"},
            {"passage", i % 2 == 0 ? "a game of cards" : "a mail server"},
            {"answer", i % 2 == 0}};
      },
      {R"(data.text_key=["question", "passage"])", "data.label_key=answer"});
  EXPECT_EQ(
      read_json(run_ / "model/config.json").at("id2label"),
      (nlohmann::json{{"0", "false"}, {"1", "true"}}));
  expect_scores("answer");
  const auto found = predictions();
  EXPECT_EQ(found[0].at("passage"), "a game of cards");
  // The second text counts.
  EXPECT_NE(found[0].at("probabilities"), found[1].at("probabilities"));
  // Tables have columns of the same names.
  const auto table = folder_ / "pairs.csv";
  std::ofstream(table) << "passage,question\r\n"
                          "\"a game of cards\",is it a game\r\n";
  const auto of_table =
      lines({"predict", run_.string(), "--json", "--input", table.string()});
  ASSERT_EQ(of_table.size(), 1U);
  EXPECT_NEAR(
      nlohmann::json::parse(of_table[0]).at("probabilities").at("true"),
      found[0].at("probabilities").at("true").get<double>(),
      1e-6);
  const auto refused = run_forked(1, {"predict", run_.string(), "one text"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(
      refused.output.find("pairs of 'question' and 'passage'"),
      std::string::npos)
      << refused.output;
}

TEST_F(Predict, NumbersOfARegression) {
  const auto number = [](int i) { return i % 2 == 0 ? 1.5 : -2; };
  train(
      [&](int i) { return with_label(i, number(i)); },
      {"model.problem_type=regression"});
  const auto config = read_json(run_ / "model/config.json");
  EXPECT_EQ(config.at("problem_type"), "regression");
  EXPECT_EQ(config.at("id2label").size(), 1U);
  const auto found = predictions();
  double n = 0;
  double x = 0;
  double y = 0;
  double xx = 0;
  double yy = 0;
  double xy = 0;
  double squared_error = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const auto a = found[i].at("value").get<double>();
    const double b = number(static_cast<int>(i));
    n += 1;
    x += a;
    y += b;
    xx += a * a;
    yy += b * b;
    xy += a * b;
    squared_error += (a - b) * (a - b);
  }
  const double pearson =
      (xy - x * y / n) / std::sqrt((xx - x * x / n) * (yy - y * y / n));
  const auto result = read_json(run_ / "result.json");
  EXPECT_NEAR(squared_error / n, result.at("heldout_loss").get<double>(), 1e-4);
  EXPECT_NEAR(pearson, result.at("heldout_pearson").get<double>(), 1e-4);
  // Before training it is the mean of the squares, 3.1.
  EXPECT_LT(squared_error / n, 3);
  const auto scored = lines({"eval", run_.string()});
  ASSERT_FALSE(scored.empty());
  EXPECT_NE(scored.back().find("Pearson correlation"), std::string::npos);
}

TEST_F(Predict, RunsWhoseAdapterIsNotMerged) {
  train(
      [](int i) { return with_label(i, i % 2 == 0 ? "games" : "net"); },
      {},
      "configs/finetune_minilm_lora.json");
  ASSERT_FALSE(std::filesystem::exists(run_ / "model"));
  expect_scores();
}

TEST_F(Predict, SaysWhatItCannotUse) {
  const auto refused = [](const std::vector<std::string>& arguments,
                          const std::string& expected) {
    std::vector<std::string> words{"predict"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const auto result = run_forked(1, words);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.output.find(expected), std::string::npos) << result.output;
  };
  refused({"models/minilm", "a"}, "has no trained classifier");
  refused({"/nowhere", "a"}, "/nowhere");
  // A run that has not come to its end.
  std::filesystem::create_directories(run_);
  std::ofstream(run_ / "config.json") << R"({"task": "text_classification",
      "model": {"folder": "models/minilm"}, "data": {"train": "t"},
      "training": {}, "output": {"folder": "r"}})";
  refused({run_.string(), "a"}, "has not exported a model yet");
}

} // namespace tessera::predict_test
