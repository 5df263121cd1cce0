// SPDX-License-Identifier: Apache-2.0
// `tessera predict` on runs that answer questions, that classify by prompts and
// that classify images: what is printed is what was scored.
#include "support/temporary_folder.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/tasks/question_answering_data.h"
#include "tessera/text/metrics/answers.h"
#include "tools/run_forked.h"
#include "tools/run_program.h"
#include "zoo/image_files.h"
#include "zoo/written_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::predict_kinds_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using tests::run_forked;
using Names = std::vector<std::string>;

class PredictKinds : public ::testing::Test {
 protected:
  /// In a fork, because ranks are forked before LibTorch has run.
  static void apart(const std::function<void()>& body) {
    const auto job = tests::run_as_ranks(1, [&] {
      body();
      return ::testing::Test::HasFailure() ? 1 : 0;
    });
    ASSERT_EQ(job.exit_code, 0) << job.output;
  }

  void train(json config, const Names& overrides = {}) const {
    config["output"] = {{"folder", run_.string()}, {"overwrite", true}};
    std::ofstream(folder_ / "train.json") << config;
    Names words{"train", (folder_ / "train.json").string()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    const auto trained = run_forked(1, words);
    ASSERT_EQ(trained.exit_code, 0) << trained.output;
  }

  static std::string output(const Names& words) {
    Names all{"predict"};
    all.insert(all.end(), words.begin(), words.end());
    const auto result = run_forked(1, all);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.output;
  }

  /// Without the log's.
  static Names lines(const Names& words) {
    std::istringstream text(output(words));
    Names found;
    for (std::string line; std::getline(text, line);) {
      if (!line.starts_with("tessera: ")) {
        found.push_back(line);
      }
    }
    return found;
  }

  static std::vector<json> objects(Names words) {
    words.emplace_back("--json");
    std::vector<json> found;
    for (const std::string& line : lines(words)) {
      found.push_back(json::parse(line));
    }
    return found;
  }

  static void expect_refused(
      const Names& words,
      const std::vector<std::string>& parts) {
    Names all{"predict"};
    all.insert(all.end(), words.begin(), words.end());
    const auto result = run_forked(1, all);
    EXPECT_EQ(result.exit_code, 1);
    for (const std::string& part : parts) {
      EXPECT_NE(result.output.find(part), std::string::npos)
          << "expected: " << part << "\nfound: " << result.output;
    }
  }

  double result(const char* name) const {
    return tests::read_json(run_ / "result.json").at(name).get<double>();
  }
  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }

  const TemporaryFolder folder_;
  const fs::path model_ = folder_ / "base";
  const fs::path run_ = folder_ / "run";
};

/// Contexts of known words with one number among them, which is the answer.
class PredictAnswers : public PredictKinds {
 protected:
  PredictAnswers() {
    write_questions("train_data.json", 300, 1);
    write_questions("heldout.json", 41, 2);
    const json changes{
        {"hidden_size", 32},
        {"num_attention_heads", 2},
        {"intermediate_size", 64}};
    apart([&] {
      zoo::write_model_with_tokenizer(
          model_, "bert_questions", "bert", "[PAD]", changes);
    });
  }

  json config() const {
    return {
        {"task", "question_answering"},
        {"model", {{"folder", model_.string()}, {"max_length", 32}}},
        {"data",
         {{"train", path("train_data.json")},
          {"heldout", path("heldout.json")},
          {"unanswerable", true},
          {"window_overlap", 6}}},
        {"optimizer", {{"lr", 0.003}}},
        {"schedule", {{"warmup_steps", 0}}},
        {"training",
         {{"clip_grad_norm", 0},
          {"batch_size", 16},
          {"epochs", 10},
          {"max_steps", 120}}}};
  }

  void write_questions(const std::string& name, int count, unsigned seed) {
    static const char* const kWords[] = {"the", "on", "a", "of"};
    std::mt19937 random(seed);
    json paragraphs = json::array();
    for (int i = 0; i < count; ++i) {
      const unsigned words = 5 + random() % 30;
      const unsigned place = random() % words;
      std::string context = "é";
      json answers = json::array();
      for (unsigned k = 0; k < words; ++k) {
        context += ' ';
        if (k == place && i % 3 != 0) {
          const std::string number = random() % 2 == 0 ? "1" : "2";
          // é has two bytes
          answers.push_back(
              {{"text", number}, {"answer_start", context.size() - 1}});
          context += number;
        } else {
          context += kWords[random() % std::size(kWords)];
        }
      }
      const json question{
          {"id", "q" + std::to_string(i)},
          {"question", "of"},
          {"is_impossible", answers.empty()},
          {"answers", answers}};
      paragraphs.push_back({{"context", context}, {"qas", {question}}});
    }
    std::ofstream(folder_ / name)
        << json{{"data", {{{"paragraphs", paragraphs}}}}}.dump(1);
  }

  std::vector<tasks::AnsweredQuestion> heldout() const {
    tasks::QuestionOptions options;
    options.unanswerable = true;
    return tasks::read_questions({folder_ / "heldout.json"}, options);
  }

  /// The exact match and F1 of a file of predictions.
  std::pair<double, double> scores(const std::string& file) const {
    const json predicted = tests::read_json(folder_ / file);
    double exact = 0;
    double f1 = 0;
    const auto questions = heldout();
    EXPECT_EQ(predicted.size(), questions.size());
    for (const auto& question : questions) {
      const auto answer = predicted.at(question.id).get<std::string>();
      const Names wanted =
          question.answers.empty() ? Names{""} : question.answers;
      exact += text::answer_exact_match(answer, wanted);
      f1 += text::answer_f1(answer, wanted);
    }
    const auto count = static_cast<double>(questions.size());
    return {exact / count, f1 / count};
  }
};

} // namespace

TEST_F(PredictAnswers, OfSquadsFilesAreThoseThatAreScored) {
  train(config());
  const auto found = objects(
      {run_.string(),
       "--input",
       path("heldout.json"),
       "--batch-size",
       "5",
       "--predictions",
       path("p.json"),
       "--n-best",
       path("n.json"),
       "--null-odds",
       path("o.json")});
  const auto [exact, f1] = scores("p.json");
  EXPECT_NEAR(exact, result("heldout_exact_match"), 1e-12);
  EXPECT_NEAR(f1, result("heldout_f1"), 1e-12);
  EXPECT_GT(exact, 0.4); // more than never answering gives
  const auto questions = heldout();
  ASSERT_EQ(found.size(), questions.size());
  const json predicted = tests::read_json(folder_ / "p.json");
  const json n_best = tests::read_json(folder_ / "n.json");
  const json odds = tests::read_json(folder_ / "o.json");
  size_t answered = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const json& one = found[i];
    const std::string id = questions[i].id;
    SCOPED_TRACE(one.dump());
    EXPECT_EQ(one.at("id"), id);
    EXPECT_EQ(one.at("answer"), predicted.at(id));
    EXPECT_EQ(one.at("answer") == "", odds.at(id).get<double>() > 0);
    double sum = 0;
    double last = 1;
    for (const json& each : n_best.at(id)) {
      const auto share = each.at("probability").get<double>();
      EXPECT_LE(share, last);
      last = share;
      sum += share;
    }
    EXPECT_NEAR(sum, 1, 1e-9);
    EXPECT_EQ(n_best.at(id)[0].at("text"), one.at("answer"));
    EXPECT_EQ(n_best.at(id).size(), one.at("n_best").size() + 1);
    if (one.at("answer") != "") {
      ++answered;
      // Characters, of which é is one.
      const auto begin = one.at("start").get<size_t>();
      const auto end = one.at("end").get<size_t>();
      EXPECT_EQ(
          questions[i].context.substr(begin + 1, end - begin),
          one.at("answer"));
    } else {
      EXPECT_TRUE(one.at("start").is_null());
    }
  }
  EXPECT_GT(answered, 5U);
  EXPECT_LT(answered, found.size());
  // All are answered where the threshold says so.
  output(
      {run_.string(),
       "--input",
       path("heldout.json"),
       "--set",
       "data.no_answer_threshold=1000",
       "--predictions",
       path("all.json")});
  const json all = tests::read_json(folder_ / "all.json");
  for (const auto& [id, answer] : all.items()) {
    EXPECT_NE(answer, "") << id;
  }
  // The folder of the model answers likewise, once it is told the options.
  output(
      {(run_ / "model").string(),
       "--input",
       path("heldout.json"),
       "--set",
       "data.unanswerable=true",
       "--set",
       "data.window_overlap=6",
       "--max-length",
       "32",
       "--predictions",
       path("folder.json")});
  EXPECT_EQ(tests::read_json(folder_ / "folder.json"), predicted);
}

TEST_F(PredictAnswers, AreTheSameForRowsAndArguments) {
  train(
      config(),
      {"training.max_steps=40",
       "data.unanswerable=false",
       "data.skip_bad_rows=true"});
  const auto questions = heldout();
  constexpr size_t kCount = 4;
  std::ofstream rows(folder_ / "rows.jsonl");
  std::ofstream csv(folder_ / "rows.csv");
  std::ofstream tsv(folder_ / "rows.tsv");
  std::ofstream text(folder_ / "rows.txt");
  csv << "asked,id,text\n";
  tsv << "question\tcontext\n";
  Names pairs{run_.string()};
  Names options{run_.string()};
  for (size_t i = 0; i < kCount; ++i) {
    const auto& one = questions[i];
    rows << json{{"question", one.question}, {"context", one.context}} << "\n";
    csv << one.question << ",c" << i << "," << one.context << "\n";
    tsv << one.question << "\t" << one.context << "\n";
    text << one.question << "\t" << one.context << "\n";
    pairs.insert(pairs.end(), {one.question, one.context});
    options.insert(
        options.end(), {"--question", one.question, "--context", one.context});
  }
  rows.close();
  csv.close();
  tsv.close();
  text.close();
  const Names wanted = lines(pairs);
  ASSERT_EQ(wanted.size(), kCount);
  EXPECT_TRUE(wanted[0].ends_with(" %\tof")) << wanted[0];
  EXPECT_EQ(lines(options), wanted);
  EXPECT_EQ(lines({run_.string(), "--input", path("rows.jsonl")}), wanted);
  EXPECT_EQ(lines({run_.string(), "--input", path("rows.tsv")}), wanted);
  EXPECT_EQ(lines({run_.string(), "--input", path("rows.txt")}), wanted);
  EXPECT_EQ(
      lines(
          {run_.string(),
           "--input",
           path("rows.csv"),
           "--text-key",
           "asked",
           "--text-key",
           "text",
           "--predictions",
           path("p.json")}),
      wanted);
  EXPECT_TRUE(tests::read_json(folder_ / "p.json").contains("c3"));
  const auto typed = tests::run_program(
      {"/bin/sh",
       "-c",
       tests::program("tessera") + " predict " + run_.string() + " < " +
           path("rows.txt")},
      tests::source_dir());
  EXPECT_NE(typed.output.find(wanted[3]), std::string::npos) << typed.output;
  // One context for two questions.
  const auto shared = objects(
      {run_.string(),
       "--question",
       "of",
       "--question",
       "on",
       "--context",
       questions[1].context});
  ASSERT_EQ(shared.size(), 2U);
  EXPECT_EQ(shared[1].at("question"), "on");
  EXPECT_EQ(shared[1].at("id"), "2");

  // Bad rows: skipped and counted, as the run's configuration has it, or named.
  std::ofstream(folder_ / "bad.jsonl")
      << R"({"question": "of", "context": "a 1 the"})"
      << "\n"
      << R"({"question": "of"})"
      << "\n{broken\n";
  const std::string skipped =
      output({run_.string(), "--input", path("bad.jsonl")});
  EXPECT_NE(skipped.find("bad.jsonl:2: there is no 'context'"), skipped.npos)
      << skipped;
  EXPECT_NE(skipped.find("2 bad rows"), skipped.npos) << skipped;
  expect_refused(
      {run_.string(),
       "--input",
       path("bad.jsonl"),
       "--set",
       "data.skip_bad_rows=false"},
      {"bad.jsonl:2: there is no 'context'", "data.context_key"});
  std::ofstream(folder_ / "twice.jsonl")
      << R"({"id": "x", "question": "of", "context": "a 1 the"})"
      << "\n"
      << R"({"id": "x", "question": "on", "context": "a 1 the"})"
      << "\n";
  expect_refused(
      {run_.string(),
       "--input",
       path("twice.jsonl"),
       "--predictions",
       path("p.json")},
      {"twice.jsonl:2: question 'x'", "twice.jsonl:1", "data.id_key"});
  expect_refused({run_.string(), "of"}, {"pairs of 'question' and 'context'"});
  expect_refused({run_.string(), "--question", "of"}, {"--context 0 times"});
}

TEST_F(PredictAnswers, OfRunsWhoseAdapterIsNotMerged) {
  json lora = config();
  lora["model"]["lora"] = {
      {"target_modules", {"query", "value"}}, {"r", 4}, {"alpha", 8}};
  train(lora, {"training.max_steps=80", "optimizer.lr=0.02"});
  ASSERT_FALSE(fs::exists(run_ / "model"));
  output(
      {run_.string(),
       "--input",
       path("heldout.json"),
       "--predictions",
       path("p.json")});
  EXPECT_NEAR(scores("p.json").first, result("heldout_exact_match"), 1e-12);
}

TEST_F(PredictKinds, PromptsOfDecodersAndEncoderDecoders) {
  std::vector<json> rows;
  for (const char* name : {"train", "heldout"}) {
    std::ofstream out(folder_ / (std::string(name) + ".jsonl"));
    rows.clear();
    for (int i = 0; i < 25; ++i) {
      rows.push_back(
          {{"passage", i % 3 == 0 ? "a game of cards" : "a mail server"},
           {"question", i % 2 == 0 ? "is it so" : "was it ever"},
           {"label", i % 2 == 0 ? "so" : "not"}});
      out << rows.back() << "\n";
    }
  }
  for (const auto& [name, tokenizer] :
       {std::pair{"gpt2", "gpt2"}, std::pair{"t5", "t5"}}) {
    SCOPED_TRACE(name);
    runtime::remove_tree(model_);
    apart([&, name = name, tokenizer = tokenizer] {
      zoo::write_model_with_tokenizer(model_, name, tokenizer);
    });
    // The labels are in the data.
    train(
        {{"task", "text_classification"},
         {"model", {{"folder", model_.string()}, {"max_length", 60}}},
         {"data",
          {{"train", path("train.jsonl")},
           {"heldout", path("heldout.jsonl")},
           {"template", "{passage} question: {question}? answer: [label]"}}},
         {"optimizer", {{"lr", 0.01}}},
         {"schedule", {{"warmup_steps", 0}}},
         {"training",
          {{"clip_grad_norm", 0}, {"batch_size", 8}, {"epochs", 8}}}});
    const auto found = objects(
        {run_.string(), "--input", path("heldout.jsonl"), "--batch-size", "7"});
    ASSERT_EQ(found.size(), rows.size());
    double right = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      right += found[i].at("label") == rows[i].at("label") ? 1 : 0;
      EXPECT_EQ(found[i].at("passage"), rows[i].at("passage"));
      EXPECT_NEAR(
          found[i].at("probabilities").at("so").get<double>() +
              found[i].at("probabilities").at("not").get<double>(),
          1,
          1e-9);
    }
    EXPECT_EQ(
        right / static_cast<double>(rows.size()), result("heldout_accuracy"));
    // Arguments are in the order of the template.
    const auto given =
        lines({run_.string(), "a game of cards", "is it so", "--top", "2"});
    ASSERT_EQ(given.size(), 1U);
    EXPECT_TRUE(given[0].ends_with("\ta game of cards | is it so"));
    EXPECT_NE(given[0].find("so "), std::string::npos);
    EXPECT_NE(given[0].find("not "), std::string::npos);
  }
  std::ofstream(folder_ / "bad.jsonl") << R"({"passage": "a"})"
                                       << "\n";
  expect_refused(
      {run_.string(), "--input", path("bad.jsonl")},
      {"bad.jsonl:1: there is no 'question', which data.template names"});
  expect_refused(
      {run_.string(), "--text-key", "passage"}, {"--text-key", "{passage}"});
  expect_refused({run_.string(), "a"}, {"pairs of 'passage' and 'question'"});
  expect_refused(
      {run_.string(), "--predictions", path("p.json"), "a", "b"},
      {"--predictions", "text_classification"});
}

TEST_F(PredictKinds, ImagesByFileFolderAndPattern) {
  zoo::write_tinted_images(folder_ / "train", 12, 0);
  zoo::write_tinted_images(folder_ / "heldout", 8, 1000);
  std::ofstream(folder_ / "model.json") << R"({
      "model_type": "vit", "architectures": ["ViTForImageClassification"],
      "image_size": 16, "patch_size": 8, "hidden_size": 24,
      "num_hidden_layers": 1, "num_attention_heads": 2,
      "intermediate_size": 32, "hidden_dropout_prob": 0.0,
      "attention_probs_dropout_prob": 0.0})";
  train(
      {{"task", "image_folder"},
       {"model", {{"config", path("model.json")}}},
       {"data",
        {{"train", path("train")},
         {"heldout", path("heldout")},
         {"fit", "stretch"},
         {"pixels", {{"mean", {0.3, 0.4, 0.5}}}}}},
       {"optimizer", {{"lr", 0.003}}},
       {"schedule", {{"warmup_steps", 0}}},
       {"training",
        {{"clip_grad_norm", 0}, {"batch_size", 8}, {"epochs", 6}}}});
  const auto found =
      objects({run_.string(), path("heldout"), "--batch-size", "3"});
  ASSERT_EQ(found.size(), 16U);
  double loss = 0;
  double right = 0;
  for (const json& one : found) {
    const std::string name =
        fs::path(one.at("path").get<std::string>()).parent_path().filename();
    loss -= std::log(one.at("probabilities").at(name).get<double>());
    right += one.at("label") == name ? 1 : 0;
  }
  EXPECT_NEAR(loss / 16, result("heldout_loss"), 1e-5);
  EXPECT_EQ(right / 16, result("heldout_accuracy"));
  const Names one =
      lines({run_.string(), path("heldout/red/3.png"), "--top", "2"});
  ASSERT_EQ(one.size(), 1U);
  EXPECT_TRUE(one[0].ends_with("\t" + path("heldout/red/3.png"))) << one[0];
  EXPECT_NE(one[0].find("red "), std::string::npos);
  EXPECT_NE(one[0].find("blue "), std::string::npos);
  EXPECT_EQ(
      lines({run_.string(), path("heldout/*/3.png"), "--top", "2"}).at(1),
      one[0]);
  // The run's folder of the model does as well.
  EXPECT_EQ(
      lines(
          {(run_ / "model").string(),
           path("heldout/red/3.png"),
           "--top",
           "2",
           "--set",
           "data.fit=stretch",
           "--set",
           "data.pixels.mean=[0.3,0.4,0.5]"}),
      one);
  std::ofstream(folder_ / "heldout/red/3.png") << "broken";
  expect_refused(
      {run_.string(), path("heldout")},
      {"heldout/red/3.png'", "1 of 16", "data.skip_bad_images=true"});
  const std::string skipped = output(
      {run_.string(), path("heldout"), "--set", "data.skip_bad_images=true"});
  EXPECT_NE(skipped.find("1 of 16 images are bad"), skipped.npos) << skipped;
  EXPECT_NE(skipped.find("heldout/red/4.png"), skipped.npos);
  expect_refused({run_.string()}, {"classifies images", "files, folders"});
  expect_refused(
      {run_.string(), path("none.png")}, {"none.png': there is no such file"});
  expect_refused(
      {run_.string(), "--input", path("x.txt")}, {"--input", "for texts"});
}

// The rows of a head go with the names that its config.json gives them.
TEST_F(PredictKinds, ImagesOfAHeadThatIsTrainedFurther) {
  zoo::write_tinted_images(folder_ / "train", 6, 0);
  fs::create_directories(folder_ / "exchanged");
  fs::copy(folder_ / "train/red", folder_ / "exchanged/blue");
  fs::copy(folder_ / "train/blue", folder_ / "exchanged/red");
  const auto trained =
      [&](const fs::path& model, const std::string& data, double lr) {
        train(
            {{"task", "image_folder"},
             {"model", {{"folder", model.string()}}},
             {"data", {{"train", path(data)}, {"heldout", path(data)}}},
             {"optimizer", {{"lr", lr}}},
             {"schedule", {{"warmup_steps", 0}}},
             {"training",
              {{"clip_grad_norm", 0},
               {"batch_size", 4},
               {"max_steps", lr > 0 ? 9 : 1}}}});
        return result("heldout_loss");
      };
  trained(fixture("models") / "vit_classifier", "train", 0.01);
  const fs::path kept = folder_ / "kept";
  fs::copy(run_ / "model", kept);
  fs::copy(run_ / "model", model_);
  json config = tests::read_json(kept / "config.json");
  ASSERT_EQ(config["id2label"], (json{{"0", "blue"}, {"1", "red"}}));
  config["id2label"] = {{"0", "red"}, {"1", "blue"}};
  config["label2id"] = {{"red", 0}, {"blue", 1}};
  std::ofstream(model_ / "config.json") << config;
  const double right = trained(kept, "exchanged", 0);
  EXPECT_GT(std::abs(right - trained(kept, "train", 0)), 1e-3);
  EXPECT_NEAR(trained(model_, "train", 0), right, 1e-5);
  EXPECT_EQ(
      tests::read_json(run_ / "model/config.json").at("id2label"),
      config["id2label"]);
}

TEST_F(PredictKinds, ImagesOfAnAdapter) {
  zoo::write_tinted_images(folder_ / "train", 6, 0);
  train(
      {{"task", "image_folder"},
       {"model",
        {{"folder", (fixture("models") / "vit_classifier").string()},
         {"lora", {{"target_modules", {"query", "value"}}, {"r", 2}}}}},
       {"data", {{"train", path("train")}, {"heldout", path("train")}}},
       {"optimizer", {{"lr", 0.02}}},
       {"schedule", {{"warmup_steps", 0}}},
       {"training",
        {{"clip_grad_norm", 0}, {"batch_size", 4}, {"epochs", 4}}}});
  ASSERT_FALSE(fs::exists(run_ / "model"));
  double loss = 0;
  for (const json& one : objects({run_.string(), path("train")})) {
    const std::string name =
        fs::path(one.at("path").get<std::string>()).parent_path().filename();
    loss -= std::log(one.at("probabilities").at(name).get<double>());
  }
  EXPECT_NEAR(loss / 12, result("heldout_loss"), 1e-5);
}

TEST_F(PredictKinds, RunsOfOtherTasksAreRefused) {
  fs::create_directories(run_ / "model");
  fs::copy(
      fixture("models") / "gpt2" / "config.json", run_ / "model/config.json");
  std::ofstream(run_ / "config.json") << R"({"task": "language_model",
      "model": {"folder": "models/minilm"}, "data": {"train": "t"},
      "training": {}, "output": {"folder": "r"}})";
  expect_refused(
      {run_.string(), "a"},
      {"task language_model",
       "question_answering",
       "image_folder",
       "tessera generate"});
}

} // namespace tessera::predict_kinds_test
