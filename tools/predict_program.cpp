// SPDX-License-Identifier: Apache-2.0
// `tessera predict RUN [INPUT...]`: classifies texts and images and answers
// questions with a trained model.

#include "predicted_lines.h"
#include "program_main.h"
#include "text_source.h"

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/tasks/answer_files.h"
#include "tessera/tasks/image_predictor.h"
#include "tessera/tasks/question_answering_data.h"
#include "tessera/tasks/reward_predictor.h"
#include "tessera/tasks/reward_task.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/tasks/text_classification_task.h"
#include "tessera/tasks/text_predictor.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tools {

namespace {

struct PredictArguments {
  std::string model;
  std::vector<std::string> inputs; ///< texts, or names of images
  std::vector<std::string> questions;
  std::vector<std::string> contexts; ///< one for all questions, or one each
  std::string input;
  std::vector<std::string> text_keys; ///< empty: those of the run
  int64_t max_length = 0; ///< 0: that of the run
  int64_t batch_size = 32;
  std::vector<std::string> overrides;
  tasks::AnswerFileNames files;
  LineOptions lines;
};

void print_line(const std::string& line) {
  std::printf("%s\n", line.c_str());
}

void predict_texts(
    const PredictArguments& arguments,
    tasks::TrainedModel trained,
    c10::Device device) {
  auto& columns = trained.config.as<tasks::TextClassificationOptions>().columns;
  TESSERA_CHECK(
      arguments.text_keys.empty() || columns.prompt.empty(),
      "--text-key: the keys are those of data.template, \"{}\"; change it with --set data.template=...",
      columns.prompt);
  TESSERA_CHECK(
      arguments.text_keys.size() <= 2,
      "--text-key is given {} times; give it once, or twice for pairs of texts",
      arguments.text_keys.size());
  if (!arguments.text_keys.empty()) {
    columns.texts = arguments.text_keys;
  }
  if (columns.texts.size() == 1 && arguments.inputs.size() == 2 &&
      arguments.text_keys.empty() && !tasks::is_run_folder(arguments.model)) {
    // A folder does not say whether it was trained on pairs.
    log_info(
        "each of the two texts is classified alone; for a pair name both keys, such as --text-key premise --text-key hypothesis");
  }
  const text::TextRowOptions rows = columns.rows;
  const auto predictor = tasks::TextPredictor::open(std::move(trained), device);
  const ClassLines lines(predictor->labels(), arguments.lines);
  TextSource source(arguments.inputs, arguments.input, predictor->keys(), rows);
  for (;;) {
    std::vector<tasks::TextPair> texts;
    std::vector<nlohmann::ordered_json> shown;
    source.next(
        static_cast<size_t>(arguments.batch_size),
        [&](const text::TextRow& row) {
          texts.push_back(predictor->text_of(row));
          nlohmann::ordered_json& values = shown.emplace_back();
          for (const std::string& key : predictor->keys()) {
            values[key] = row.values.at(key);
          }
        });
    if (texts.empty()) {
      break;
    }
    const auto values = predictor->predict(texts);
    for (size_t i = 0; i < values.size(); ++i) {
      print_line(lines.line(shown[i], values[i]));
    }
    std::fflush(stdout); // before the next text is typed
  }
}

/// Questions and contexts as they follow each other in arguments.
std::vector<std::string> asked_pairs(const PredictArguments& arguments) {
  if (arguments.questions.empty()) {
    TESSERA_CHECK(
        arguments.contexts.empty(),
        "--context is given without a question; ask with --question");
    return arguments.inputs;
  }
  TESSERA_CHECK(
      arguments.inputs.empty(),
      "questions are given as arguments and with --question; give them one way");
  const auto& contexts = arguments.contexts;
  TESSERA_CHECK(
      contexts.size() == 1 || contexts.size() == arguments.questions.size(),
      "--question is given {} times and --context {} times; give one context for all questions, or one for each",
      arguments.questions.size(),
      contexts.size());
  std::vector<std::string> pairs;
  for (size_t i = 0; i < arguments.questions.size(); ++i) {
    pairs.push_back(arguments.questions[i]);
    pairs.push_back(contexts[contexts.size() == 1 ? 0 : i]);
  }
  return pairs;
}

/// Gives questions to `use`, some at a time.
void for_each_question(
    const PredictArguments& arguments,
    const tasks::QuestionOptions& options,
    const std::function<void(std::vector<tasks::AnsweredQuestion>)>& use) {
  const auto count = static_cast<size_t>(arguments.batch_size);
  if (!arguments.input.empty() && arguments.input != "-" &&
      tasks::is_published_questions(arguments.input)) {
    TESSERA_CHECK(
        asked_pairs(arguments).empty(),
        "questions are given as arguments and with --input; give them one way");
    auto all = tasks::read_questions({arguments.input}, options);
    for (size_t begin = 0; begin < all.size(); begin += count) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
      use(
          {std::make_move_iterator(first),
           std::make_move_iterator(
               first + static_cast<std::ptrdiff_t>(
                           std::min(count, all.size() - begin)))});
    }
    return;
  }
  TextSource source(
      asked_pairs(arguments),
      arguments.input,
      {options.question, options.context},
      options.rows);
  int64_t number = 0;
  for (;;) {
    std::vector<tasks::AnsweredQuestion> questions;
    source.next(count, [&](const text::TextRow& row) {
      tasks::AnsweredQuestion question = tasks::question_in(row, options);
      ++number;
      if (question.id.empty()) {
        question.id = std::to_string(number);
      }
      questions.push_back(std::move(question));
    });
    if (questions.empty()) {
      break;
    }
    use(std::move(questions));
  }
}

void predict_answers(
    const PredictArguments& arguments,
    tasks::TrainedModel trained,
    c10::Device device) {
  TESSERA_CHECK(
      arguments.text_keys.empty() || arguments.text_keys.size() == 2,
      "--text-key is given once; questions have two: first that of the question, then that of the context");
  if (!arguments.text_keys.empty()) {
    auto& options = trained.config.as<tasks::QuestionOptions>();
    options.question = arguments.text_keys.front();
    options.context = arguments.text_keys.back();
  }
  const tasks::QuestionPredictor predictor(std::move(trained), device);
  const AnswerLines lines(arguments.lines);
  tasks::AnswerFiles files(arguments.files);
  for_each_question(
      arguments,
      predictor.options(),
      [&](std::vector<tasks::AnsweredQuestion> questions) {
        for (const tasks::PredictedQuestion& one :
             predictor.predict(std::move(questions), arguments.batch_size)) {
          files.add(one);
          print_line(lines.line(one));
        }
        std::fflush(stdout);
      });
  files.write();
}

void predict_images(
    const PredictArguments& arguments,
    tasks::TrainedModel trained,
    c10::Device device) {
  TESSERA_CHECK(
      arguments.input.empty() && arguments.text_keys.empty() &&
          arguments.max_length == 0,
      "--input, --text-key and --max-length are for texts; give images as arguments: files, folders or patterns");
  TESSERA_CHECK(
      !arguments.inputs.empty(),
      "'{}' classifies images; name files, folders or patterns of them",
      arguments.model);
  const tasks::ImagePredictor predictor(std::move(trained), device);
  const ClassLines lines(predictor.labels(), arguments.lines);
  const auto images = predictor.images_of(arguments.inputs);
  const auto count = static_cast<size_t>(arguments.batch_size);
  for (size_t begin = 0; begin < images.size(); begin += count) {
    const std::vector<tasks::ImageFolder::File> batch(
        images.begin() + static_cast<std::ptrdiff_t>(begin),
        images.begin() + static_cast<std::ptrdiff_t>(
                             std::min(begin + count, images.size())));
    const auto values = predictor.predict(batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      const nlohmann::ordered_json path{{"path", batch[i].path.string()}};
      print_line(lines.line(path, values[i]));
    }
    std::fflush(stdout);
  }
}

void predict_rewards(
    const PredictArguments& arguments,
    tasks::TrainedModel trained,
    c10::Device device) {
  TESSERA_CHECK(
      arguments.text_keys.empty() || arguments.text_keys.size() == 2,
      "--text-key is given {}; rewards are of two: first that of the prompt, then that of its answer",
      arguments.text_keys.size() == 1
          ? "once"
          : formatted("{} times", arguments.text_keys.size()));
  auto& options = trained.config.as<tasks::RewardTaskOptions>();
  if (!arguments.text_keys.empty()) {
    options.keys.prompt = arguments.text_keys.front();
    options.completion = arguments.text_keys.back();
  }
  const text::TextRowOptions rows = options.rows;
  const tasks::RewardPredictor predictor(std::move(trained), device);
  const tasks::ClassLabels labels{zoo::HeadLabels::kNumbers, {}};
  const ClassLines lines(labels, arguments.lines);
  TextSource source(arguments.inputs, arguments.input, predictor.keys(), rows);
  for (;;) {
    std::vector<tasks::SupervisedText> texts;
    std::vector<nlohmann::ordered_json> shown;
    source.next(
        static_cast<size_t>(arguments.batch_size),
        [&](const text::TextRow& row) {
          texts.push_back(predictor.text_of(row));
          nlohmann::ordered_json& values = shown.emplace_back();
          for (const std::string& key : predictor.keys()) {
            if (row.values.contains(key)) {
              values[key] = row.values[key];
            }
          }
          if (row.values.contains("messages")) {
            values["messages"] = row.values["messages"];
          }
        });
    if (texts.empty()) {
      break;
    }
    const std::vector<double> rewards = predictor.predict(texts);
    for (size_t i = 0; i < rewards.size(); ++i) {
      print_line(lines.line(shown[i], {rewards[i]}));
    }
    std::fflush(stdout);
  }
}

/// One row per kind of task that has predictions.
struct PredictedKind {
  const tasks::TaskKind& kind;
  void (*predict)(
      const PredictArguments& arguments,
      tasks::TrainedModel trained,
      c10::Device device);
};
const std::array kPredictedKinds{
    PredictedKind{tasks::kTextClassification, predict_texts},
    PredictedKind{tasks::kReward, predict_rewards},
    PredictedKind{tasks::kQuestionAnswering, predict_answers},
    PredictedKind{tasks::kImageFolder, predict_images}};

void predict(const PredictArguments& arguments) {
  check_one_process("predict");
  tasks::TrainedModel trained =
      tasks::trained_model(arguments.model, arguments.overrides);
  if (arguments.max_length != 0) {
    trained.config.max_length = arguments.max_length;
  }
  const tasks::TaskKind* const kind = trained.config.task;
  TESSERA_CHECK(
      kind == &tasks::kQuestionAnswering ||
          (arguments.questions.empty() && arguments.contexts.empty() &&
           arguments.files.empty()),
      "--question, --context, --predictions, --n-best and --null-odds are for models that answer questions, and '{}' is one of {}",
      arguments.model,
      kind->name);
  const auto* const found = std::find_if(
      kPredictedKinds.begin(),
      kPredictedKinds.end(),
      [&](const PredictedKind& one) { return &one.kind == kind; });
  found->predict(arguments, std::move(trained), init().device());
}

} // namespace

int run_predict(int argc, char** argv) {
  CLI::App app(
      "Predicts with a trained model: classifies texts and images (prints the "
      "label, its probability and the text or path; the number that a "
      "regression predicts), answers questions about contexts (prints the "
      "answer, its probability and the question), gives answers rewards",
      "tessera predict");
  PredictArguments arguments;
  app.add_option(
         "run",
         arguments.model,
         "Run folder of `tessera train` with task text_classification, "
         "question_answering, reward or image_folder, or Hugging Face folder of such a "
         "model")
      ->required();
  app.add_option(
      "inputs",
      arguments.inputs,
      "The texts, one argument for each key of a row: pairs, a prompt and its "
      "answer, or a question and its context, one after the other; none: lines of --input or standard "
      "input. Of images: files, folders and patterns such as 'new/*.jpg'");
  app.add_option("--question", arguments.questions, "A question; repeatable")
      ->allow_extra_args(false);
  app.add_option(
         "--context",
         arguments.contexts,
         "The context of the questions, or of each --question in turn")
      ->allow_extra_args(false);
  app.add_option(
      "--input",
      arguments.input,
      "File of one text per line (of pairs and questions: two, separated by a "
      "tab), of JSON objects, a table (.csv, .tsv), or of SQuAD's form");
  app.add_option(
         "--text-key",
         arguments.text_keys,
         "Key of the text in JSON objects and tables; twice for pairs, or for "
         "question and context; default: as in the configuration of the run")
      ->allow_extra_args(false);
  app.add_option(
         "--max-length",
         arguments.max_length,
         "Tokens to truncate texts to, or of a question with a window of its "
         "context; default: model.max_length of the run, or the positions of "
         "the model")
      ->check(CLI::Range(int64_t{8}, int64_t{1} << 20));
  app.add_option(
         "--batch-size",
         arguments.batch_size,
         "Texts, windows or images per forward pass; default 32")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option(
         "--set",
         arguments.overrides,
         "KEY=VALUE, a key of the run's configuration; repeatable: "
         "data.skip_bad_rows=true and data.skip_bad_images=true leave out and "
         "count what cannot be used, data.no_answer_threshold=N decides when "
         "there is no answer")
      ->allow_extra_args(false);
  app.add_option(
         "--top",
         arguments.lines.top,
         "Number of most likely labels or answers to print")
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
  app.add_flag(
      "--json",
      arguments.lines.as_json,
      "Print one JSON object each, with the probabilities of all labels, or "
      "the best answers and where they are");
  app.add_option(
      "--predictions",
      arguments.files.predictions,
      "Also write the answers to this file, as SQuAD's scripts read them");
  app.add_option(
      "--n-best",
      arguments.files.n_best,
      "Also write the best answers of each question to this file");
  app.add_option(
      "--null-odds",
      arguments.files.null_odds,
      "Also write how much higher the score of no answer is, for "
      "evaluate-v2.0.py --na-prob-file");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  predict(arguments);
  return 0;
}

} // namespace tessera::tools
