// SPDX-License-Identifier: Apache-2.0
// The task "question_answering": windows and spans as transformers has them,
// the selection of answers, scores and training.
#include "tessera/tasks/question_batches.h"

#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/core/log.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/run_training.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>

namespace tessera::tasks::question_answering_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

text::Tokenizer tokenizer_of(const std::string& name) {
  return text::Tokenizer::from_file(fixture("tokenizers") / (name + ".json"));
}

std::string bytes_of(const AnsweredQuestion& question) {
  return question.context.substr(
      question.first_answer.begin, question.first_answer.size());
}

/// One paragraph as SQuAD is published.
json published(const std::string& context, const json& asked) {
  return {
      {"version", "1.1"},
      {"data",
       {{{"title", "t"},
         {"paragraphs", {{{"context", context}, {"qas", asked}}}}}}}};
}

json asked(
    const std::string& id,
    const std::string& question,
    const std::vector<std::pair<std::string, int>>& answers) {
  json all = json::array();
  for (const auto& [text, start] : answers) {
    all.push_back({{"text", text}, {"answer_start", start}});
  }
  return {{"id", id}, {"question", question}, {"answers", all}};
}

/// 9 code points before "São Tomé", but 16 bytes.
constexpr const char* kContext = "北京 Zoë 🎴: São Tomé, a café 🐈";

class QuestionAnswering : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  std::string error_of(
      const fs::path& file,
      const QuestionOptions& options = {}) const {
    return tessera::error_of([&] { read_questions({file}, options); });
  }

  TrainingConfig config(const std::vector<std::string>& overrides = {}) const {
    const fs::path file = folder_ / "train.json";
    const json values = {
        {"task", "question_answering"},
        {"model", {{"folder", model_.string()}, {"max_length", 32}}},
        {"data",
         {{"train", (folder_ / "train_data.json").string()},
          {"heldout", (folder_ / "heldout.json").string()},
          {"window_overlap", 6}}},
        {"optimizer", {{"lr", 0.001}}},
        {"schedule", {{"warmup_steps", 0}}},
        {"training",
         {{"clip_grad_norm", 0}, {"batch_size", 4}, {"max_steps", 2}}},
        {"output", {{"folder", run_.string()}, {"overwrite", true}}}};
    runtime::write_file_atomically(file, values.dump());
    return read_training_config(file, overrides);
  }

  static void on_ranks(int ranks, const std::function<void()>& body) {
    output_ = tests::on_ranks(ranks, body).output;
  }

  /// A model with newly initialized weights beside its tokenizer.
  void write_model(
      const std::string& name,
      const std::string& tokenizer_name,
      const std::string& padding,
      const json& changes = json::object()) const {
    const auto tokenizer = tokenizer_of(tokenizer_name);
    json values = read_json(fixture("models") / name / "config.json");
    values["vocab_size"] = tokenizer.size();
    values["pad_token_id"] = *tokenizer.id_of(padding);
    for (const char* key : {"n_positions", "max_position_embeddings"}) {
      if (values.contains(key)) {
        values[key] = 144;
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
      if (values.contains(key)) {
        values[key] = 0.0;
      }
    }
    values.update(changes);
    torch::manual_seed(3);
    const auto model = zoo::from_config(values);
    zoo::save_pretrained(*model, model_);
    fs::copy(
        fixture("tokenizers") / (tokenizer_name + ".json"),
        model_ / "tokenizer.json",
        fs::copy_options::overwrite_existing);
  }

  /// Contexts of known words with one number among them, which is the answer.
  void write_toy(const std::string& name, int questions, int seed, bool v2)
      const {
    static const char* const kWords[] = {"the", "on", "a", "of"};
    std::mt19937 random(static_cast<unsigned>(seed));
    json paragraphs = json::array();
    for (int i = 0; i < questions; ++i) {
      const int words = 5 + static_cast<int>(random() % 30);
      const int place =
          static_cast<int>(random() % static_cast<unsigned>(words));
      const bool has_answer = !v2 || i % 3 != 0;
      std::string context = "é";
      int start = 0;
      const std::string number = random() % 2 == 0 ? "1" : "2";
      for (int k = 0; k < words; ++k) {
        context += ' ';
        if (k == place && has_answer) {
          start = static_cast<int>(context.size()) - 1; // é has two bytes
          context += number;
        } else {
          context += kWords[random() % std::size(kWords)];
        }
      }
      json question = asked(
          "q" + std::to_string(i),
          "of",
          has_answer ? std::vector<std::pair<std::string, int>>{{number, start}}
                     : std::vector<std::pair<std::string, int>>{});
      question["is_impossible"] = !has_answer;
      paragraphs.push_back({{"context", context}, {"qas", {question}}});
    }
    write(name, json{{"data", {{{"paragraphs", paragraphs}}}}}.dump(1));
  }

  static inline std::string output_;
  const TemporaryFolder folder_;
  const fs::path model_ = folder_ / "base";
  const fs::path run_ = folder_ / "run";
};

/// Windows of a question by their lengths; all tokens are the same.
EncodedQuestion encoded_question(
    int64_t asked_tokens,
    const std::vector<int64_t>& windows) {
  EncodedQuestion question;
  int64_t at = asked_tokens;
  for (const int64_t length : windows) {
    question.windows.push_back({at, at + length});
    at += length;
  }
  question.context = {asked_tokens, at};
  question.tokens.resize(static_cast<size_t>(at + 1));
  return question;
}

} // namespace

TEST_F(QuestionAnswering, WindowsAndSpansAreThoseOfTransformers) {
  int found = 0;
  for (const json& one : read_json(fixture("question_windows.json"))) {
    SCOPED_TRACE(one.dump().substr(0, 300));
    const auto tokenizer = tokenizer_of(one.at("tokenizer"));
    const auto file = write(
        "data.json",
        published(
            one.at("context"),
            json::array({asked(
                "id",
                one.at("question"),
                {{one.at("answer"), one.at("answer_start")}})}))
            .dump());
    const auto question = read_questions({file}).front();
    EXPECT_EQ(bytes_of(question), one.at("answer"));
    const auto encoded = encode_question(
        question, tokenizer, one.at("max_length"), one.at("overlap"));
    const json& windows = one.at("windows");
    ASSERT_EQ(encoded.windows.size(), windows.size());
    for (size_t i = 0; i < windows.size(); ++i) {
      SCOPED_TRACE(i);
      const ContextWindow& window = encoded.windows[i];
      const text::Encoding encoding = encoded.encoding(window);
      EXPECT_EQ(encoding.ids(), windows[i].at("ids"));
      // T5's tokenizer gives windows but the first one types, which T5 has not.
      if (one.at("tokenizer") != "t5") {
        EXPECT_EQ(
            std::count_if(
                encoding.tokens.begin(),
                encoding.tokens.end(),
                [](const text::PlacedToken& token) {
                  return token.type_id == 1;
                }),
            windows[i].at("second_type"));
      }
      const auto tokens =
          tokens_of_answer(encoded, window, question.first_answer);
      const json place =
          tokens ? json{tokens->first, tokens->second} : json{0, 0};
      EXPECT_EQ(place, windows[i].at("answer"));
      if (tokens) {
        ++found;
        EXPECT_EQ(
            answer_bytes(
                question.context,
                encoded,
                window,
                tokens->first,
                tokens->second),
            question.first_answer);
      }
    }
  }
  EXPECT_GT(found, 60);
}

TEST_F(QuestionAnswering, WhatTheQuestionLeavesMustExceedTheOverlap) {
  AnsweredQuestion question;
  question.place = "f.json: question 'q'";
  question.question = "who sat on the mat";
  question.context = "the cat sat on the mat the cat sat on the mat";
  const auto tokenizer = tokenizer_of("bert");
  try {
    encode_question(question, tokenizer, 12, 6);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("f.json: question 'q'"),
        std::string::npos)
        << error.what();
  }
  // A context that fits needs no overlap.
  question.context = "cat";
  EXPECT_EQ(encode_question(question, tokenizer, 40, 39).windows.size(), 1U);
}

TEST_F(QuestionAnswering, TheContextIsFirstWherePaddingIsOnTheLeft) {
  fs::copy(fixture("tokenizers") / "bert.json", folder_ / "tokenizer.json");
  write("tokenizer_config.json", R"({"padding_side": "left"})");
  const auto tokenizer =
      text::Tokenizer::from_folder(fs::path(folder_ / "x").parent_path());
  AnsweredQuestion question;
  question.question = "of";
  question.context = "the a on the a on the a on 1 the";
  question.first_answer = {27, 28};
  const auto encoded = encode_question(question, tokenizer, 10, 2);
  // [CLS] and [SEP] thrice, and the question's only token
  ASSERT_EQ(encoded.windows.size(), 3U);
  const ContextWindow& last = encoded.windows[2];
  const auto tokens = tokens_of_answer(encoded, last, question.first_answer);
  ASSERT_TRUE(tokens.has_value());
  EXPECT_EQ(
      encoded.encoding(last).ids(),
      tokenizer.encode_pair("on 1 the", "of").ids());
  EXPECT_EQ(*tokens, (std::pair<int64_t, int64_t>(2, 2)));
}

TEST_F(QuestionAnswering, ReadsPublishedFilesAndRows) {
  const json qas = {
      asked("a", "Where?", {{"São Tomé", 10}, {" Tomé,", 13}}),
      asked("b", "What?", {{"🐈", 27}})};
  QuestionOptions options;
  const auto check = [&](const fs::path& file) {
    SCOPED_TRACE(file);
    const auto questions = read_questions({file}, options);
    ASSERT_EQ(questions.size(), 2U);
    EXPECT_EQ(questions[0].id, "a");
    EXPECT_EQ(questions[0].question, "Where?");
    EXPECT_EQ(bytes_of(questions[0]), "São Tomé");
    EXPECT_EQ(bytes_of(questions[1]), "🐈");
    EXPECT_EQ(
        questions[0].answers, (std::vector<std::string>{"São Tomé", " Tomé,"}));
  };
  check(write("lines.json", published(kContext, qas).dump(2)));
  check(write("line.json", published(kContext, qas).dump()));
  std::string rows;
  std::string datasets;
  for (const json& one : qas) {
    json row{{"id", one["id"]}, {"question", one["question"]}};
    row["context"] = kContext;
    json texts = json::array(), starts = json::array();
    for (const json& answer : one["answers"]) {
      texts.push_back(answer["text"]);
      starts.push_back(answer["answer_start"]);
    }
    json nested = row;
    nested["answers"] = {{"text", texts}, {"answer_start", starts}};
    datasets += nested.dump() + "\n";
    row["answer"] = texts;
    row["answer_start"] = starts;
    rows += row.dump() + "\n";
  }
  check(write("rows.jsonl", rows));
  check(write("datasets.jsonl", datasets));
  options.answer = "wanted";
  options.unanswerable = true;
  const auto table = read_questions(
      {write(
          "rows.csv",
          "question,context,wanted,answer_start\nWhere?,\"" +
              std::string(kContext) + "\",São Tomé,10\nWho?,nobody,,\n")},
      options);
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(bytes_of(table[0]), "São Tomé");
  EXPECT_TRUE(table[1].answers.empty());
}

TEST_F(QuestionAnswering, BadQuestionsAreNamedOrSkipped) {
  // The place in bytes, instead of code points.
  json qas = {
      asked("good", "Where?", {{"São Tomé", 10}}),
      asked("bytes", "Where?", {{"São Tomé", 18}}),
      asked("after", "Where?", {{"São Tomé", 1000}}),
      asked("none", "Where?", {})};
  const auto file = write("data.json", published(kContext, qas).dump());
  EXPECT_NE(
      error_of(file).find("data.json: question 'bytes': the answer \"São"),
      std::string::npos)
      << error_of(file);
  qas.erase(1);
  const auto after = write("after.json", published(kContext, qas).dump());
  EXPECT_NE(error_of(after).find("'after'"), std::string::npos);
  qas.erase(1);
  const auto none = write("none.json", published(kContext, qas).dump());
  EXPECT_NE(error_of(none).find("data.unanswerable=true"), std::string::npos);
  QuestionOptions options;
  options.rows.bad_rows = text::BadRows::kSkip;
  EXPECT_EQ(read_questions({file}, options).size(), 1U);
  options.unanswerable = true;
  EXPECT_EQ(read_questions({file}, options).size(), 2U);
  const auto rows = write(
      "rows.jsonl",
      R"({"id": 7, "question": "q", "context": "c", "answer": "d", "answer_start": 0})");
  EXPECT_NE(
      error_of(rows).find("rows.jsonl:1: question '7'"), std::string::npos)
      << error_of(rows);
  EXPECT_NE(
      error_of(write("broken.json", "{\"data\": [{\"paragraphs\": 3}]}"))
          .find("broken.json: data[0]"),
      std::string::npos);
}

TEST_F(QuestionAnswering, SelectsAsAFewLinesOfReference) {
  torch::manual_seed(5);
  QuestionOptions options;
  for (const int64_t n : {3, 20, 64}) {
    SCOPED_TRACE(n);
    options.best_places = n;
    options.max_answer_tokens = 4;
    const auto question = encoded_question(5, {17, 12, 3});
    constexpr int64_t kLength = 24;
    at::Tensor mask = torch::zeros({3, kLength}, at::kLong);
    const at::Tensor start = torch::randn({3, kLength});
    const at::Tensor end = torch::randn({3, kLength});
    std::vector<std::tuple<double, int64_t, int64_t, int64_t>> wanted;
    double none = std::numeric_limits<double>::infinity();
    for (int64_t w = 0; w < 3; ++w) {
      const ContextWindow window = question.windows[static_cast<size_t>(w)];
      const int64_t length = 5 + window.end - window.begin + 1;
      mask[w].slice(0, 0, length).fill_(1);
      const auto best = [&](const at::Tensor& logits) {
        std::vector<int64_t> places;
        for (int64_t i = 0; i < length; ++i) {
          places.push_back(i);
        }
        std::sort(places.begin(), places.end(), [&](int64_t a, int64_t b) {
          return logits[a].item<double>() > logits[b].item<double>();
        });
        places.resize(static_cast<size_t>(std::min(n, length)));
        return places;
      };
      none =
          std::min(none, start[w][0].item<double>() + end[w][0].item<double>());
      for (const int64_t from : best(start[w])) {
        for (const int64_t to : best(end[w])) {
          if (from >= 5 && to < length - 1 && to >= from &&
              to - from + 1 <= 4) {
            wanted.emplace_back(
                -(start[w][from].item<double>() + end[w][to].item<double>()),
                w,
                from,
                to);
          }
        }
      }
    }
    std::sort(wanted.begin(), wanted.end());
    const at::Tensor places = best_places_of(start, end, mask, n);
    ASSERT_EQ(places.sizes(), (std::vector<int64_t>{3, 1 + 4 * n}));
    const auto found =
        answers_of(question, places.const_data_ptr<double>(), options);
    EXPECT_EQ(found.no_answer_score, none);
    ASSERT_EQ(
        found.best.size(), std::min(wanted.size(), static_cast<size_t>(n)));
    ASSERT_FALSE(wanted.empty());
    for (size_t i = 0; i < found.best.size(); ++i) {
      const auto& [score, window, from, to] = wanted[i];
      EXPECT_EQ(found.best[i].score, -score) << i;
      EXPECT_EQ(found.best[i].window, static_cast<size_t>(window)) << i;
      EXPECT_EQ(found.best[i].first, from) << i;
      EXPECT_EQ(found.best[i].last, to) << i;
    }
  }
}

// Of outputs that are made by hand: the best window of a question counts, and
// no answer where it scores higher by more than the threshold.
TEST_F(QuestionAnswering, ReportsAnswersOfAllWindowsAndNone) {
  const auto tokenizer = tokenizer_of("bert");
  QuestionOptions options;
  options.unanswerable = true;
  options.window_overlap = 2;
  const std::string words = "the a of on the a of on ";
  const std::string context = words + "1 " + words + "2";
  const auto file = write(
      "v2.json",
      published(
          context,
          {asked("a", "the", {{"2", 50}, {"1", 24}}),
           asked("b", "the", {{"1 the", 24}}),
           asked("c", "the", {})})
          .dump());
  const auto outputs_for = [&](const QuestionBatches& batches,
                               const std::vector<double>& no_answer) {
    // Each window says its first token, but one with a number that number.
    std::vector<at::Tensor> rows;
    std::vector<size_t> all(batches.size());
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = i;
    }
    const zoo::ModelInput input = batches.make(all, 0, false);
    zoo::ModelOutput output;
    const auto one = input.input_ids.eq(*tokenizer.id_of("1"));
    const auto two = input.input_ids.eq(*tokenizer.id_of("2"));
    // The answers: "2" in a's second window, "1 the" in b's first one.
    const auto place = [](const at::Tensor& is_it, int64_t row) {
      return is_it[row].to(at::kLong).argmax().item<int64_t>();
    };
    const auto positions = [&](const char* name) {
      const at::Tensor& found = input.others.at(name);
      return std::vector<int64_t>(
          found.const_data_ptr<int64_t>(),
          found.const_data_ptr<int64_t>() + found.numel());
    };
    const int64_t second = place(two, 1);
    const int64_t first = place(one, 2);
    EXPECT_EQ(
        positions("start_positions"),
        (std::vector<int64_t>{0, second, first, 0, 0, 0}));
    EXPECT_EQ(
        positions("end_positions"),
        (std::vector<int64_t>{0, second, first + 1, 0, 0, 0}));
    at::Tensor logits = one.to(at::kDouble) * 5 + two.to(at::kDouble) * 3;
    size_t at = 0;
    for (size_t q = 0; q < 3; ++q) {
      for (size_t w = 0; w < batches.encoded()[q].windows.size(); ++w) {
        logits[static_cast<int64_t>(at++)][0] = no_answer[q] / 2;
      }
    }
    output.others["start_logits"] = logits;
    output.others["end_logits"] = logits;
    zoo::Score score;
    score.examples = static_cast<int64_t>(batches.size());
    score.outputs = batches.outputs_of(input, output);
    return score;
  };
  const auto made = [&] {
    return QuestionBatches(
        read_questions({file}, options), tokenizer, 20, options, {});
  };
  const QuestionBatches batches = made();
  ASSERT_GT(batches.encoded()[0].windows.size(), 1U);
  // 10 is the score of "1": none is better for b and c.
  const zoo::Score score = outputs_for(batches, {9, 13, 12});
  EXPECT_EQ(
      batches.answers(score.outputs), (std::vector<std::string>{"1", "", ""}));
  const TaskScore report = batches.report(score);
  EXPECT_EQ(report.values.at("heldout_exact_match"), 2.0 / 3);
  EXPECT_EQ(report.values.at("heldout_f1"), 2.0 / 3);
  EXPECT_EQ(report.values.at("heldout_has_answer_f1"), 0.5);
  EXPECT_EQ(report.values.at("heldout_no_answer_f1"), 1);
  EXPECT_EQ(report.values.at("heldout_examples"), 3);
  // Answering a alone is the best that a threshold can do: c is before b.
  EXPECT_EQ(report.values.at("heldout_best_f1"), 2.0 / 3);
  EXPECT_EQ(report.values.at("heldout_best_threshold"), 1); // from -1 to 2
  options.no_answer_threshold = 2.5;
  EXPECT_EQ(
      made().answers(score.outputs), (std::vector<std::string>{"1", "", "1"}));
  options.unanswerable = false; // all have answers then
  options.rows.bad_rows = text::BadRows::kSkip;
  EXPECT_EQ(
      made().answers(score.outputs), (std::vector<std::string>{"1", "1"}));
}

// Of any logits: the best threshold scores what is said of it, as it is
// written, and none scores more.
TEST_F(QuestionAnswering, TheBestThresholdKeepsItsPromise) {
  const auto tokenizer = tokenizer_of("bert");
  QuestionOptions options;
  options.unanswerable = true;
  options.window_overlap = 2;
  json questions = json::array();
  for (int i = 0; i < 12; ++i) {
    questions.push_back(
        i % 3 == 0 ? asked(std::to_string(i), "a", {})
                   : asked(std::to_string(i), "the", {{"on 1", 9}}));
  }
  const auto file = write(
      "v2.json", published("the a of on 1 the a of on", questions).dump());
  const auto report_of = [&](const zoo::Score& score, double threshold) {
    options.no_answer_threshold = threshold;
    return QuestionBatches(
               read_questions({file}, options), tokenizer, 20, options, {})
        .report(score);
  };
  const QuestionBatches batches(
      read_questions({file}, options), tokenizer, 20, options, {});
  std::vector<size_t> all(batches.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const zoo::ModelInput input = batches.make(all, 0, false);
  int below_all = 0;
  torch::manual_seed(5);
  for (int round = 0; round < 24; ++round) {
    // No answer is better, worse, or neither; margins as small as 1e-6, or
    // equal ones.
    const double shift = round % 3 - 1;
    const double scale = round % 2 == 0 ? 1e-6 : 1;
    zoo::ModelOutput output;
    for (const char* name : {"start_logits", "end_logits"}) {
      at::Tensor logits = torch::randn(input.input_ids.sizes(), at::kDouble);
      if (round % 4 == 3) {
        logits.round_();
      }
      logits.select(1, 0).add_(3 * shift);
      output.others[name] = logits * scale;
    }
    zoo::Score score;
    score.examples = static_cast<int64_t>(batches.size());
    score.outputs = batches.outputs_of(input, output);
    const TaskScore report = report_of(score, 0);
    const double best = report.values.at("heldout_best_f1");
    const double threshold = report.values.at("heldout_best_threshold");
    EXPECT_NEAR(report_of(score, threshold).values.at("heldout_f1"), best, 1e-9)
        << report.text;
    const std::string key = "no_answer_threshold=";
    const size_t at = report.text.find(key);
    ASSERT_NE(at, std::string::npos) << report.text;
    EXPECT_EQ(std::stod(report.text.substr(at + key.size())), threshold)
        << report.text;
    double least = std::numeric_limits<double>::infinity();
    for (const AnswerPrediction& one : batches.predictions(score.outputs)) {
      const double margin = one.no_answer_margin();
      least = std::min(least, margin);
      for (const double tried : {margin - 1e-9, margin}) {
        EXPECT_LE(report_of(score, tried).values.at("heldout_f1"), best + 1e-9)
            << report.text;
      }
    }
    below_all += threshold < least && least < 0 ? 1 : 0;
  }
  EXPECT_GT(below_all, 0);
}

TEST_F(QuestionAnswering, TrainsEveryKindOfFamily) {
  write_toy("train_data.json", 8, 1, false);
  write_toy("heldout.json", 6, 2, false);
  struct Family {
    const char* config;
    const char* tokenizer;
    const char* padding;
  };
  for (const Family& family : std::initializer_list<Family>{
           {"bert_questions", "bert", "[PAD]"},
           {"roberta_questions", "roberta", "<pad>"},
           {"roformer_questions", "bert", "[PAD]"},
           {"longformer_questions", "roberta", "<pad>"},
           {"gpt2_questions", "gpt2", "<|end|>"},
           {"llama_questions", "llama2", "</s>"},
           {"qwen2_questions", "qwen2", "<|end|>"},
           {"t5_questions", "t5", "<pad>"}}) {
    SCOPED_TRACE(family.config);
    on_ranks(1, [&] {
      write_model(family.config, family.tokenizer, family.padding);
      const TrainingResult result =
          run_training(config({"model.max_length=48"}));
      EXPECT_EQ(result.summary.steps, 2);
      ASSERT_TRUE(result.score.has_value());
      EXPECT_EQ(result.score->values.at("heldout_examples"), 6);
      EXPECT_EQ(evaluate_run(run_).values, result.score->values);
    });
  }
}

// Windows differ in length, and are padded to the longest of a batch.
TEST_F(QuestionAnswering, LossesAreTheSameForAnyBatchSize) {
  write_toy("train_data.json", 8, 1, true);
  write_toy("heldout.json", 7, 2, true);
  on_ranks(1, [&] {
    write_model(
        "bert_questions", "bert", "[PAD]", {{"initializer_range", 0.6}});
    const auto heldout_loss = [&](int batch_size) {
      return run_training(
                 config(
                     {"data.unanswerable=true",
                      "optimizer.lr=0",
                      "training.batch_size=" + std::to_string(batch_size)}))
          .score->values.at("heldout_loss")
          .get<double>();
    };
    const double alone = heldout_loss(1);
    EXPECT_NEAR(heldout_loss(3), alone, 1e-4);
    EXPECT_NEAR(heldout_loss(8), alone, 1e-4);
  });
}

TEST_F(QuestionAnswering, ATinyBertLearnsAndScoresTheSameOverRanks) {
  write_toy("train_data.json", 400, 1, true);
  write_toy("heldout.json", 61, 2, true);
  on_ranks(1, [&] {
    write_model(
        "bert_questions",
        "bert",
        "[PAD]",
        {{"hidden_size", 32},
         {"num_attention_heads", 2},
         {"num_hidden_layers", 2},
         {"intermediate_size", 64}});
    expect_error(
        [&] {
          run_training(config(
              {"data.unanswerable=true",
               "training.evaluate_every=1000",
               "training.best_metric=has_answer_f2"}));
        },
        {"training.best_metric is 'has_answer_f2'", "has_answer_f1"});
    const TrainingResult result = run_training(config(
        {"data.unanswerable=true",
         "training.batch_size=16",
         "training.max_steps=250",
         "training.epochs=10",
         "training.evaluate_every=1000",
         "training.best_metric=has_answer_f1",
         "optimizer.lr=0.003"}));
    ASSERT_TRUE(result.score.has_value());
    std::cout << result.score->text << "\n";
    EXPECT_GT(result.score->values.at("heldout_exact_match"), 0.9);
    EXPECT_GT(result.score->values.at("heldout_no_answer_f1"), 0.8);
    EXPECT_GT(
        result.score->values.at("heldout_windows"),
        result.score->values.at("heldout_examples"));
  });
  // Where all are answered some are wrong: a mistake would be seen.
  const std::vector<std::string> overrides{"data.no_answer_threshold=1000"};
  json scores;
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&] {
      const json values = evaluate_run(run_, overrides).values;
      if (is_log_rank_zero()) {
        std::ofstream(folder_ / ("score" + std::to_string(ranks))) << values;
      }
    });
    scores.push_back(read_json(folder_ / ("score" + std::to_string(ranks))));
  }
  for (const auto& [name, value] : scores[0].items()) {
    EXPECT_NEAR(value, scores[1].at(name), 1e-5) << name;
  }
  EXPECT_EQ(
      scores[0].at("heldout_exact_match"), scores[1].at("heldout_exact_match"));
  EXPECT_LT(scores[0].at("heldout_exact_match"), 1);
}

TEST_F(QuestionAnswering, StartsAreNumbersUnlessInTables) {
  const auto lines = write(
      "a.jsonl",
      R"({"question": "q", "context": "a b", "answer": "b", "answer_start": "2"})");
  EXPECT_NE(
      error_of(lines).find("a.jsonl:1: the answer starts at \"2\""),
      std::string::npos)
      << error_of(lines);
  EXPECT_EQ(
      error_of(
          write("a.csv", "question,context,answer,answer_start\nq,a b,b,2\n")),
      "");
}

TEST_F(QuestionAnswering, DefaultsFitAModelWithFewPositions) {
  constexpr int64_t positions = 72;
  json values = read_json(fixture("models") / "bert_questions" / "config.json");
  values["max_position_embeddings"] = positions;
  fs::create_directories(model_);
  runtime::write_file_atomically(model_ / "config.json", values.dump());
  const TrainingConfig read =
      config({"model.max_length=null", "data.window_overlap=null"});
  EXPECT_EQ(read.max_length, positions);
  EXPECT_EQ(read.as<QuestionOptions>().window_overlap, positions / 2);
  EXPECT_EQ(
      config({"model.max_length=64", "data.window_overlap=null"})
          .as<QuestionOptions>()
          .window_overlap,
      32);
}

TEST_F(QuestionAnswering, KeysThatDoNotFitAreRefused) {
  const auto refused = [&](const std::vector<std::string>& overrides) {
    std::string message;
    try {
      config(overrides);
    } catch (const Error& error) {
      message = error.what();
    }
    return message;
  };
  EXPECT_NE(
      refused({"data.window_overlap=32"}).find("window_overlap"),
      std::string::npos);
  EXPECT_NE(
      refused({"data.window_overlap=32"})
          .find("is 32; set it below model.max_length, 32"),
      std::string::npos);
  // Of which half is the most that windows have in common by default.
  EXPECT_EQ(
      config({"data.window_overlap=null"}).as<QuestionOptions>().window_overlap,
      16);
  EXPECT_EQ(
      config({"data.window_overlap=null", "model.max_length=400"})
          .as<QuestionOptions>()
          .window_overlap,
      128);
  EXPECT_NE(refused({"data.label_key=x"}).find("label_key"), std::string::npos);
}

} // namespace tessera::tasks::question_answering_test
