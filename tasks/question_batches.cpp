// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/question_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/tasks/row_report.h"
#include "tessera/text/metrics/answers.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tessera::tasks {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

/// The sums of a metric, of questions with answers and of those without.
struct AnswerSums {
  double exact = 0;
  double f1 = 0;
  int64_t count = 0;

  void add(const std::string& answer, const std::vector<std::string>& wanted) {
    exact += text::answer_exact_match(answer, wanted);
    f1 += text::answer_f1(answer, wanted);
    ++count;
  }
  double mean(double sum) const {
    return count == 0 ? 0 : sum / static_cast<double>(count);
  }
};

/// The answers that count, as the script of SQuAD has it: "" if there is none.
std::vector<std::string> references_of(const AnsweredQuestion& question) {
  std::vector<std::string> wanted;
  for (const std::string& answer : question.answers) {
    if (!text::normalize_answer(answer).empty()) {
      wanted.push_back(answer);
    }
  }
  return wanted.empty() ? std::vector<std::string>{""} : wanted;
}

struct BestThreshold {
  double f1 = 0; ///< mean
  double threshold = 0;
};

/// What a threshold of "no answer" decides of a question.
struct ThresholdChoice {
  double no_answer_margin; ///< AnswerPrediction::no_answer_margin()
  double answered_f1; ///< if the margin is at most the threshold
  double unanswered_f1; ///< otherwise
};

/// A number from `first` on and less than `end`, far from both and with few
/// digits. Either may be infinite.
double short_number_between(double first, double end) {
  if (!std::isfinite(first) && !std::isfinite(end)) {
    return 0;
  }
  const double middle = !std::isfinite(first) ? end - 1
                        : !std::isfinite(end) ? first + 1
                                              : first + (end - first) / 2;
  constexpr int kMostDigits = 15;
  double power = 1;
  for (int digits = 0; digits <= kMostDigits; ++digits, power *= 10) {
    const double number = std::round(middle * power) / power;
    if (number >= first && number < end) {
      return number + 0.0; // not -0
    }
  }
  return middle < end ? middle : first;
}

/// The threshold of "no answer" with the highest mean F1: of those, the one
/// that answers the fewest questions. Unlike that of SQuAD 2.0's script it may
/// be less than all margins, which may be negative here.
BestThreshold best_threshold(std::vector<ThresholdChoice> questions) {
  std::sort(
      questions.begin(), questions.end(), [](const auto& a, const auto& b) {
        return a.no_answer_margin < b.no_answer_margin;
      });
  const auto margin = [&](size_t question) {
    return question < questions.size() ? questions[question].no_answer_margin
                                       : -kNever;
  };
  double sum = 0;
  for (const ThresholdChoice& question : questions) {
    sum += question.unanswered_f1;
  }
  BestThreshold best{sum, short_number_between(kNever, margin(0))};
  for (size_t i = 0; std::isfinite(margin(i)); ++i) {
    sum += questions[i].answered_f1 - questions[i].unanswered_f1;
    // Questions with the same margin are answered all or none.
    if (sum > best.f1 && margin(i) < margin(i + 1)) {
      best = {sum, short_number_between(margin(i), margin(i + 1))};
    }
  }
  best.f1 /= static_cast<double>(std::max<size_t>(questions.size(), 1));
  return best;
}

} // namespace

at::Tensor best_places_of(
    const at::Tensor& start,
    const at::Tensor& end,
    const at::Tensor& mask,
    int64_t best_places) {
  std::vector<at::Tensor> parts{
      (start.select(1, 0).to(at::kDouble) + end.select(1, 0).to(at::kDouble))
          .unsqueeze(1)};
  const int64_t count = std::min(best_places, start.size(1));
  for (const at::Tensor& one : {start, end}) {
    const at::Tensor logits =
        one.to(at::kDouble).masked_fill(mask.eq(0), kNever);
    // Stable: the first of equal ones, whatever the batch is.
    const auto [values, indices] =
        at::sort(logits, /*stable=*/true, /*dim=*/1, /*descending=*/true);
    const auto first = [&](const at::Tensor& all, double filler) {
      return at::constant_pad_nd(
          all.slice(1, 0, count).to(at::kDouble),
          {0, best_places - count},
          filler);
    };
    parts.push_back(first(indices, 0));
    parts.push_back(first(values, kNever));
  }
  return at::cat(parts, 1);
}

QuestionAnswers answers_of(
    const EncodedQuestion& question,
    const double* best,
    const QuestionOptions& options) {
  QuestionAnswers result;
  result.no_answer_score = -kNever;
  const auto count = static_cast<size_t>(options.best_places);
  for (size_t number = 0; number < question.windows.size(); ++number) {
    const ContextWindow context = question.placed(question.windows[number]);
    const double* const row = best + number * (1 + 4 * count);
    const double* const starts = row + 1;
    const double* const ends = starts + 2 * count;
    result.no_answer_score = std::min(result.no_answer_score, row[0]);
    const auto is_place = [&](const double* from, size_t i) {
      return std::isfinite(from[count + i]) &&
             static_cast<int64_t>(from[i]) >= context.begin &&
             static_cast<int64_t>(from[i]) < context.end;
    };
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; is_place(starts, i) && j < count; ++j) {
        const auto first = static_cast<int64_t>(starts[i]);
        const auto last = static_cast<int64_t>(ends[j]);
        if (is_place(ends, j) && first <= last &&
            last - first < options.max_answer_tokens) {
          result.best.push_back(
              {number, first, last, starts[count + i] + ends[count + j]});
        }
      }
    }
  }
  std::stable_sort(
      result.best.begin(),
      result.best.end(),
      [](const FoundAnswer& a, const FoundAnswer& b) {
        return a.score > b.score;
      });
  result.best.resize(std::min(result.best.size(), count));
  return result;
}

QuestionBatches::QuestionBatches(
    std::vector<AnsweredQuestion> questions,
    const text::Tokenizer& tokenizer,
    int64_t max_length,
    const QuestionOptions& options,
    const TextInputs& inputs)
    : RowBatches(
          {},
          {.outputs_per_example = 1 + 4 * options.best_places,
           .has_equal_labels = true}),
      options_(options),
      inputs_(inputs) {
  RowReport report("question", options_.rows.bad_rows);
  int64_t lost = 0;
  for (AnsweredQuestion& question : questions) {
    EncodedQuestion encoded;
    if (!report.use([&] {
          encoded = encode_question(
              question, tokenizer, max_length, options_.window_overlap);
        })) {
      continue;
    }
    bool is_found = question.answers.empty();
    for (size_t number = 0; number < encoded.windows.size(); ++number) {
      const auto tokens = tokens_of_answer(
          encoded, encoded.windows[number], question.first_answer);
      is_found = is_found || tokens.has_value();
      const auto [first, last] = tokens.value_or(std::pair<int64_t, int64_t>());
      add_example({questions_.size(), number, first, last});
    }
    lost += is_found ? 0 : 1;
    questions_.push_back(std::move(question));
    encoded_.push_back(std::move(encoded));
  }
  report.log_skipped("data that are too long");
  if (is_log_rank_zero() && lost > 0) {
    log_warning(
        "the answers of {} of {} questions are in no window as a whole; a greater data.window_overlap helps",
        lost,
        questions_.size());
  }
}

std::string QuestionBatches::text() const {
  const auto of = [](size_t count, const char* unit) {
    return runtime::count_text(static_cast<int64_t>(count), unit);
  };
  return of(questions_.size(), "question") + " in " + of(size(), "window");
}

zoo::ModelInput QuestionBatches::rows(
    const std::vector<size_t>& numbers) const {
  std::vector<text::Encoding> encodings;
  std::vector<int64_t> first;
  std::vector<int64_t> last;
  for (const size_t number : numbers) {
    const QuestionWindow& window = examples()[number];
    const EncodedQuestion& question = encoded_[window.question];
    encodings.push_back(question.encoding(question.windows[window.number]));
    first.push_back(window.first);
    last.push_back(window.last);
  }
  zoo::ModelInput batch = padded_input(encodings, inputs_);
  const auto on_device = [&](const std::vector<int64_t>& tokens) {
    return runtime::to_device(at::tensor(tokens, at::kLong), inputs_.device);
  };
  batch.others["start_positions"] = on_device(first);
  batch.others["end_positions"] = on_device(last);
  return batch;
}

at::Tensor QuestionBatches::outputs_of(
    const zoo::ModelInput& input,
    const zoo::ModelOutput& output) const {
  return best_places_of(
      output.others.at("start_logits"),
      output.others.at("end_logits"),
      input.attention_mask,
      options_.best_places);
}

double AnswerPrediction::no_answer_margin() const {
  return best.empty() ? -kNever : no_answer_score - best.front().score;
}

AnswerPrediction QuestionBatches::prediction(
    const AnsweredQuestion& question,
    const EncodedQuestion& encoded,
    const QuestionAnswers& found) const {
  AnswerPrediction result;
  result.no_answer_score = found.no_answer_score;
  for (const FoundAnswer& one : found.best) {
    const text::ByteRange bytes = answer_bytes(
        question.context,
        encoded,
        encoded.windows[one.window],
        one.first,
        one.last);
    // Windows have parts of the context in common.
    const bool is_new = std::none_of(
        result.best.begin(),
        result.best.end(),
        [&](const PredictedAnswer& other) { return other.bytes == bytes; });
    if (bytes.size() > 0 && is_new) {
      result.best.push_back(
          {question.context.substr(bytes.begin, bytes.size()),
           bytes,
           one.score,
           0});
    }
  }
  const bool may_have_none = options_.unanswerable || result.best.empty();
  result.is_answered =
      !result.best.empty() &&
      (!options_.unanswerable ||
       result.no_answer_margin() <= options_.no_answer_threshold);
  double highest = may_have_none ? result.no_answer_score : kNever;
  if (!result.best.empty()) {
    highest = std::max(highest, result.best.front().score);
  }
  const auto weight = [&](double score) { return std::exp(score - highest); };
  double sum = may_have_none ? weight(result.no_answer_score) : 0;
  for (const PredictedAnswer& one : result.best) {
    sum += weight(one.score);
  }
  for (PredictedAnswer& one : result.best) {
    one.probability = weight(one.score) / sum;
  }
  result.no_answer_probability =
      may_have_none ? weight(result.no_answer_score) / sum : 0;
  return result;
}

std::vector<AnswerPrediction> QuestionBatches::predictions(
    const at::Tensor& outputs) const {
  std::vector<AnswerPrediction> all;
  const auto* row = outputs.const_data_ptr<double>();
  for (size_t i = 0; i < questions_.size(); ++i) {
    all.push_back(prediction(
        questions_[i], encoded_[i], answers_of(encoded_[i], row, options_)));
    row += static_cast<int64_t>(encoded_[i].windows.size()) *
           outputs_per_example();
  }
  return all;
}

std::vector<std::string> QuestionBatches::answers(
    const at::Tensor& outputs) const {
  std::vector<std::string> texts;
  for (const AnswerPrediction& one : predictions(outputs)) {
    texts.push_back(one.answer());
  }
  return texts;
}

TaskScore QuestionBatches::report(const zoo::Score& score) const {
  AnswerSums all, with_answer, without_answer;
  std::vector<ThresholdChoice> thresholds;
  const auto all_predicted = predictions(score.outputs);
  for (size_t i = 0; i < all_predicted.size(); ++i) {
    const AnswerPrediction& predicted = all_predicted[i];
    const auto wanted = references_of(questions_[i]);
    const std::string text = predicted.answer();
    all.add(text, wanted);
    (questions_[i].answers.empty() ? without_answer : with_answer)
        .add(text, wanted);
    thresholds.push_back(
        {predicted.no_answer_margin(),
         text::answer_f1(
             predicted.best.empty() ? "" : predicted.best.front().text, wanted),
         text::answer_f1("", wanted)});
  }
  TaskScore result;
  auto& values = result.values;
  values["heldout_exact_match"] = all.mean(all.exact);
  values["heldout_f1"] = all.mean(all.f1);
  result.text = formatted(
      "exact match {:.1f} %, F1 {:.1f} % of {}",
      100 * all.mean(all.exact),
      100 * all.mean(all.f1),
      runtime::count_text(all.count, "question"));
  if (options_.unanswerable) {
    const BestThreshold best = best_threshold(std::move(thresholds));
    values["heldout_has_answer_exact_match"] =
        with_answer.mean(with_answer.exact);
    values["heldout_has_answer_f1"] = with_answer.mean(with_answer.f1);
    values["heldout_no_answer_f1"] = without_answer.mean(without_answer.f1);
    values["heldout_best_f1"] = best.f1;
    values["heldout_best_threshold"] = best.threshold;
    result.text += formatted(
        " (F1 {:.1f} % of {} with an answer, {:.1f} % of {} without; {:.1f} % with data.no_answer_threshold={})",
        100 * with_answer.mean(with_answer.f1),
        with_answer.count,
        100 * without_answer.mean(without_answer.f1),
        without_answer.count,
        100 * best.f1,
        best.threshold);
  }
  values["heldout_loss"] = score.loss;
  values["heldout_examples"] = all.count;
  values["heldout_windows"] = score.examples;
  result.text += formatted(", loss {:.4f}", score.loss);
  return result;
}

} // namespace tessera::tasks
