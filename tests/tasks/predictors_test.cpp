// SPDX-License-Identifier: Apache-2.0
// Predictions of Hugging Face folders, beside a few lines of LibTorch for one
// row at a time.
#include "tessera/tasks/answer_files.h"
#include "tessera/tasks/image_predictor.h"
#include "tessera/tasks/question_predictor.h"
#include "tessera/tasks/text_predictor.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/tasks/prompt_batches.h"
#include "tessera/zoo/images/image_file.h"
#include "tessera/zoo/images/resize.h"
#include "zoo/image_files.h"
#include "zoo/written_model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace tessera::tasks::predictors_test {

namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

at::Tensor ids_of(const std::vector<int64_t>& ids) {
  return torch::tensor(ids, torch::kLong).unsqueeze(0);
}

/// The log-likelihood of words after a prompt.
double likelihood(zoo::Model& model, const PromptedLabel& label) {
  zoo::ModelInput input;
  input.input_ids = ids_of(label.input);
  size_t before = label.input.size() - label.words.size() - 1;
  if (const auto first = model.first_token()) {
    std::vector<int64_t> shifted{*first};
    shifted.insert(shifted.end(), label.words.begin(), label.words.end() - 1);
    input.decoder_input_ids = ids_of(shifted);
    before = 0;
  }
  const at::Tensor logits = model.forward(input).logits[0];
  double sum = 0;
  for (size_t i = 0; i < label.words.size(); ++i) {
    const at::Tensor row =
        logits[static_cast<int64_t>(before + i)].to(at::kDouble);
    sum += (row[label.words[i]] - row.logsumexp(0)).item<double>();
  }
  return sum;
}

/// Makes a number of the last weight in a folder NaN.
void spoil(const fs::path& folder) {
  const auto model = zoo::from_pretrained(folder);
  model->parameters().back().flatten()[0] = NAN;
  zoo::save_pretrained(*model, folder / "spoiled");
  fs::copy_file(
      folder / "spoiled" / "model.safetensors",
      folder / "model.safetensors",
      fs::copy_options::overwrite_existing);
}

class Predictors : public ::testing::Test {
 protected:
  const at::NoGradGuard no_grad_;
  const TemporaryFolder folder_;
  const fs::path model_ = folder_ / "model";
};

class QuestionPredictors : public Predictors {
 protected:
  QuestionPredictors() {
    zoo::write_model_with_tokenizer(
        model_, "bert_questions", "bert", "[PAD]", nlohmann::json::object(), 5);
  }

  QuestionPredictor predictor(Names overrides = {}) const {
    overrides.insert(
        overrides.begin(),
        {"model.max_length=32",
         "data.window_overlap=6",
         "data.n_best=1000",
         "data.max_answer_length=5"});
    return {trained_model(model_, overrides), c10::kCPU};
  }

  static AnsweredQuestion question(const std::string& id, size_t words) {
    static const char* const kWords[] = {"the", "1", "on", "é", "a", "2", "of"};
    AnsweredQuestion question;
    question.id = id;
    question.place = "f: question '" + id + "'";
    question.question = "on the";
    for (size_t i = 0; i < words; ++i) {
      question.context += std::string(i == 0 ? "" : " ") +
                          kWords[(i * i + words) % std::size(kWords)];
    }
    return question;
  }
};

} // namespace

TEST_F(Predictors, PromptsAreJudgedByTheWordsOfTheirLabels) {
  const Names words{"yes", "no way"};
  for (const auto& [name, tokenizer_name] :
       {std::pair{"gpt2", "gpt2"},
        std::pair{"llama", "llama2"},
        std::pair{"t5", "t5"}}) {
    SCOPED_TRACE(name);
    zoo::write_model_with_tokenizer(
        model_, name, tokenizer_name, "", nlohmann::json::object(), 5);
    const auto predictor = TextPredictor::open(
        trained_model(
            model_,
            {"data.template={text} so? {other} [label]",
             R"(data.verbalizers=["true=yes", "false=no way"])",
             "model.max_length=60"}),
        c10::kCPU);
    EXPECT_EQ(predictor->keys(), (Names{"text", "other"}));
    EXPECT_EQ(predictor->labels().names, (Names{"true", "false"}));
    const auto model = zoo::from_pretrained(model_);
    const auto tokenizer = text::Tokenizer::from_folder(model_);
    std::vector<TextPair> texts;
    std::vector<double> wanted;
    for (const char* text : {"a game", "a much longer game of cards, is it"}) {
      const text::TextRow row{{{"text", text}, {"other", 7}}, "f.jsonl", 1};
      texts.push_back(predictor->text_of(row));
      EXPECT_EQ(texts.back().text, std::string(text) + " so? 7");
      const auto prompted = prompted_text(
          {texts.back().text, " "},
          words,
          tokenizer,
          model->first_token() ? PromptKind::kEncoderDecoder
                               : PromptKind::kDecoder,
          60);
      const double yes = likelihood(*model, prompted.labels[0]);
      const double no = likelihood(*model, prompted.labels[1]);
      wanted.push_back(yes - no);
    }
    const auto found = predictor->predict(texts);
    ASSERT_EQ(found.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(std::log(found[i][0] / found[i][1]), wanted[i], 1e-3);
      EXPECT_NEAR(found[i][0] + found[i][1], 1, 1e-9);
    }
    // of the template without a space before the words
    const auto close = TextPredictor::open(
        trained_model(
            model_,
            {"data.template={text} so? {other}[label]",
             R"(data.verbalizers=["true=yes", "false=no way"])",
             "model.max_length=60"}),
        c10::kCPU);
    EXPECT_EQ(model->first_token().has_value(), close->predict(texts) == found);
    // which would not be seen if all texts were alike
    EXPECT_GT(std::abs(wanted[0] - wanted[1]), 1e-2);
  }
  expect_error(
      [&] {
        TextPredictor::open(
            trained_model(model_, {"data.template={text} [label]"}), c10::kCPU);
      },
      {"data.template", "data.verbalizers"});
  zoo::write_model_with_tokenizer(model_, "bert_questions", "bert", "[PAD]");
  expect_error(
      [&] { trained_model(model_, {"data.template={text} [label]"}); },
      {"template"});
}

TEST_F(Predictors, WhatIsNoNumberIsNoPrediction) {
  zoo::write_model_with_tokenizer(model_, "bert_classifier", "bert", "[PAD]");
  spoil(model_);
  const auto texts = TextPredictor::open(trained_model(model_), c10::kCPU);
  expect_error(
      [&] {
        texts->predict({TextPair{"a", ""}});
      },
      {"not a finite number"});
}

TEST_F(Predictors, TextsThatAreEmptyAreNamedAsInTraining) {
  zoo::write_model_with_tokenizer(model_, "bert_classifier", "bert", "[PAD]");
  const auto texts = TextPredictor::open(trained_model(model_), c10::kCPU);
  expect_error(
      [&] {
        texts->text_of({{{"text", " "}}, "argument", 2});
      },
      {"argument:2", "'text' is empty", "--set data.skip_bad_rows=true"});
}

TEST_F(QuestionPredictors, WhatIsNoNumberIsNoAnswer) {
  spoil(model_);
  const auto answers = predictor();
  expect_error(
      [&] { answers.predict({question("0", 9)}, 4); },
      {"scores of answers are NaN"});
}

TEST_F(Predictors, ImagesAreMadeAndClassifiedAsTheirModelSays) {
  fs::create_directories(model_);
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy(fixture("models") / "vit_classifier" / name, model_ / name);
  }
  std::ofstream(model_ / "preprocessor_config.json")
      << R"({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6],
             "resample": 2, "size": {"height": 12, "width": 20}})";
  zoo::write_tinted_images(folder_ / "new", 3, 7);
  const ImagePredictor predictor(trained_model(model_), c10::kCPU);
  EXPECT_EQ(predictor.labels().names.at(3), "LABEL_3");
  const auto images = predictor.images_of({(folder_ / "new").string()});
  ASSERT_EQ(images.size(), 6U);
  const auto found = predictor.predict(images);
  const auto model = zoo::from_pretrained(model_);
  double spread = 0;
  for (size_t i = 0; i < images.size(); ++i) {
    const zoo::Image full = zoo::read_image(images[i].path);
    zoo::Image small = zoo::resized(
        full, {0, 0, full.size}, {12, 20}, zoo::Interpolation::kBilinear);
    const at::Tensor pixels =
        torch::from_blob(small.pixels.data(), {12, 20, 3}, torch::kByte)
            .permute({2, 0, 1})
            .to(torch::kFloat);
    zoo::ModelInput input;
    input.pixel_values =
        ((pixels / 255 - torch::tensor({0.1, 0.2, 0.3}).view({3, 1, 1})) /
         torch::tensor({0.4, 0.5, 0.6}).view({3, 1, 1}))
            .to(torch::kFloat)
            .unsqueeze(0);
    const at::Tensor wanted = model->forward(input).logits[0].softmax(0);
    for (int64_t c = 0; c < 4; ++c) {
      const auto value = found[i][static_cast<size_t>(c)];
      EXPECT_NEAR(value, wanted[c].item<double>(), 1e-5) << i;
      spread =
          std::max(spread, std::abs(value - found[0][static_cast<size_t>(c)]));
    }
  }
  EXPECT_GT(spread, 1e-3); // images differ
}

TEST_F(Predictors, ImagesAreFilesFoldersAndPatterns) {
  zoo::write_tinted_images(folder_ / "new", 2, 7);
  const std::string red = (folder_ / "new/red").string();
  const auto count = [&](const Names& names) {
    return ImageFolder::of(names).images.size();
  };
  EXPECT_EQ(count({(folder_ / "new").string()}), 4U);
  EXPECT_EQ(count({red + "/1.png"}), 1U);
  EXPECT_EQ(count({red + "/*.png", (folder_ / "new/blue").string()}), 4U);
  expect_error(
      [&] { count({red + "/7.png"}); }, {"red/7.png': there is no such file"});
  expect_error([&] { count({red + "/*.jpg"}); }, {"no file matches"});

  const auto from = fixture("models") / "vit_classifier";
  std::ofstream(folder_ / "new/red/bad.png") << "broken";
  expect_error(
      [&] { ImagePredictor(trained_model(from), c10::kCPU).images_of({red}); },
      {"red/bad.png'", "1 of 3 images are bad", "data.skip_bad_images=true"});
  // The header and the end are sound, and what is between is not.
  std::ifstream full(folder_ / "new/red/0.png", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(full), {}};
  bytes[bytes.size() / 2] = static_cast<char>(~bytes[bytes.size() / 2]);
  std::ofstream(folder_ / "new/red/bad.png", std::ios::binary) << bytes;
  const ImagePredictor strict(trained_model(from), c10::kCPU);
  const auto all = strict.images_of({red});
  EXPECT_EQ(all.size(), 3U);
  expect_error([&] { strict.predict(all); }, {"red/bad.png'"});
  const ImagePredictor skips(
      trained_model(from, {"data.skip_bad_images=true"}), c10::kCPU);
  EXPECT_EQ(skips.predict(skips.images_of({red})).size(), 2U);
}

TEST_F(QuestionPredictors, AnswersAreTheBestOfAllWindows) {
  std::vector<AnsweredQuestion> questions;
  for (const size_t words : {4, 9, 33, 70}) {
    questions.push_back(question(std::to_string(words), words));
  }
  const auto answered = predictor().predict(questions, 2);
  const auto with_none =
      predictor({"data.unanswerable=true"}).predict(questions, 100);
  ASSERT_EQ(answered.size(), questions.size());
  const auto model = zoo::from_pretrained(model_);
  const auto tokenizer = text::Tokenizer::from_folder(model_);
  size_t repeated = 0;
  for (size_t q = 0; q < questions.size(); ++q) {
    SCOPED_TRACE(questions[q].id);
    const auto encoded = encode_question(questions[q], tokenizer, 32, 6);
    EXPECT_EQ(encoded.windows.size() > 1, q >= 2);
    std::vector<std::pair<double, std::string>> spans;
    double none = 1e9;
    for (const ContextWindow& window : encoded.windows) {
      const text::Encoding encoding = encoded.encoding(window);
      const ContextWindow context = encoded.placed(window);
      zoo::ModelInput input;
      input.input_ids = ids_of(encoding.ids());
      std::vector<int64_t> types;
      for (const text::PlacedToken& token : encoding.tokens) {
        types.push_back(token.type_id);
      }
      input.token_type_ids = ids_of(types);
      const auto output = model->forward(input).others;
      const at::Tensor start = output.at("start_logits")[0].to(at::kDouble);
      const at::Tensor end = output.at("end_logits")[0].to(at::kDouble);
      none = std::min(none, (start[0] + end[0]).item<double>());
      for (int64_t i = context.begin; i < context.end; ++i) {
        for (int64_t j = i; j < std::min(i + 5, context.end); ++j) {
          const auto first = encoding.tokens[static_cast<size_t>(i)].bytes;
          const auto last = encoding.tokens[static_cast<size_t>(j)].bytes;
          spans.emplace_back(
              (start[i] + end[j]).item<double>(),
              std::to_string(first.begin) + ":" +
                  questions[q].context.substr(
                      first.begin, last.end - first.begin));
        }
      }
    }
    std::stable_sort(spans.begin(), spans.end(), [](auto& a, auto& b) {
      return a.first > b.first;
    });
    spans.resize(std::min<size_t>(spans.size(), 1000));
    std::vector<std::pair<double, std::string>> wanted;
    for (const auto& span : spans) {
      if (std::none_of(wanted.begin(), wanted.end(), [&](const auto& one) {
            return one.second == span.second;
          })) {
        wanted.push_back(span);
      }
    }
    repeated += spans.size() - wanted.size();
    for (const auto* all : {&answered, &with_none}) {
      const AnswerPrediction& found = (*all)[q].prediction;
      const bool may_have_none = all == &with_none;
      EXPECT_NEAR(found.no_answer_score, none, 1e-4);
      ASSERT_EQ(found.best.size(), wanted.size());
      double sum = may_have_none ? std::exp(none) : 0;
      for (const auto& [score, text] : wanted) {
        sum += std::exp(score);
      }
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_NEAR(found.best[i].score, wanted[i].first, 1e-4);
        EXPECT_NEAR(
            found.best[i].probability, std::exp(wanted[i].first) / sum, 1e-5);
      }
      EXPECT_EQ(
          std::to_string(found.best[0].bytes.begin) + ":" + found.best[0].text,
          wanted[0].second);
      EXPECT_NEAR(
          found.no_answer_probability,
          may_have_none ? std::exp(none) / sum : 0,
          1e-5);
      EXPECT_EQ(found.is_answered, !may_have_none || none <= wanted[0].first);
    }
  }
  EXPECT_GT(repeated, 0U); // of what windows have in common
}

TEST_F(QuestionPredictors, FilesAreThoseOfSquad) {
  const AnswerFileNames names{
      folder_ / "p.json", folder_ / "n.json", folder_ / "o.json"};
  AnswerFiles files(names);
  const auto made = [&](const std::string& id, double none, double threshold) {
    PredictedQuestion one;
    one.question = question(id, 3);
    one.prediction.best = {{"ä", {0, 2}, 3, 0.5}, {"b", {4, 5}, 1, 0.2}};
    one.prediction.no_answer_score = none;
    one.prediction.no_answer_probability = 0.3;
    one.prediction.is_answered = none - 3 <= threshold;
    return one;
  };
  files.add(made("x", 2, 0));
  files.add(made("y", 5, 0));
  PredictedQuestion nothing;
  nothing.question.id = "z";
  nothing.prediction.no_answer_probability = 1;
  files.add(nothing);
  expect_error(
      [&] { files.add(made("x", 2, 0)); },
      {"f: question 'x'", "same id, 'x'", "data.id_key"});
  files.write();
  EXPECT_EQ(
      read_json(names.predictions),
      (nlohmann::json{{"x", "ä"}, {"y", ""}, {"z", ""}}));
  const auto n_best = read_json(names.n_best);
  const auto texts = [&](const char* id) {
    Names all;
    for (const auto& one : n_best.at(id)) {
      all.push_back(one.at("text"));
    }
    return all;
  };
  EXPECT_EQ(texts("x"), (Names{"ä", "", "b"}));
  EXPECT_EQ(texts("y"), (Names{"", "ä", "b"}));
  EXPECT_EQ(texts("z"), (Names{""}));
  EXPECT_EQ(n_best["x"][0].at("probability"), 0.5);
  EXPECT_EQ(n_best["x"][1].at("score"), 2);
  const auto odds = read_json(names.null_odds);
  EXPECT_EQ(odds.at("x"), -1);
  EXPECT_EQ(odds.at("y"), 2);
  EXPECT_GT(odds.at("z"), 1e300);
}

TEST_F(QuestionPredictors, QuestionsNeedNoAnswers) {
  QuestionOptions options;
  options.reads_answers = false;
  std::ofstream(folder_ / "test.json")
      << R"({"data": [{"paragraphs": [{"context": "on the mat", "qas": [
           {"id": "a", "question": "where"},
           {"id": "b", "question": "who",
            "answers": [{"text": "wrong", "answer_start": 99}]}]}]}]})";
  EXPECT_TRUE(is_published_questions(folder_ / "test.json"));
  const auto questions = read_questions({folder_ / "test.json"}, options);
  ASSERT_EQ(questions.size(), 2U);
  EXPECT_EQ(questions[1].question, "who");
  EXPECT_TRUE(questions[1].answers.empty());
  std::ofstream(folder_ / "rows.jsonl")
      << R"({"id": 3, "question": "where", "context": "on the mat"})";
  EXPECT_EQ(read_questions({folder_ / "rows.jsonl"}, options)[0].id, "3");
  expect_error(
      [&] {
        question_in(
            {{{"question", "where"}, {"text", "c"}}, "f.jsonl", 4}, options);
      },
      {"f.jsonl:4: there is no 'context'", "data.context_key"});
  expect_error(
      [&] {
        question_in(
            {{{"question", "where"}, {"context", " "}}, "f.jsonl", 4}, options);
      },
      {"f.jsonl:4: the context is empty"});
  // A question that is longer than the window is named, or left out.
  auto long_one = question("long", 40);
  for (int i = 0; i < 30; ++i) {
    long_one.question += " on";
  }
  expect_error(
      [&] { predictor().predict({long_one}, 8); },
      {"question 'long'", "model.max_length, 32"});
  EXPECT_EQ(
      predictor({"data.skip_bad_rows=true"})
          .predict({long_one, question("a", 4)}, 8)
          .size(),
      1U);
}

} // namespace tessera::tasks::predictors_test
