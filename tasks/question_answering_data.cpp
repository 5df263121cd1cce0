// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/question_answering_data.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/tasks/row_report.h"
#include "tessera/text/tokenizer/utf8.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <utility>

namespace tessera::tasks {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view kSpaces = " \t\r\n";
constexpr int64_t kShownBadQuestions = 3;

const json& value_at(
    const json& object,
    const std::string& key,
    const std::string& place) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  TESSERA_CHECK(
      object.is_object() && found != object.end(),
      "{}: there is no '{}', but {}; name the columns in data.question_key, data.context_key, data.answer_key and data.answer_start_key, or, of a table without a header, all of them in data.columns",
      place,
      key,
      object.is_object() ? text::keys_text(object)
                         : runtime::show_json(object));
  return *found;
}

std::string string_at(
    const json& object,
    const std::string& key,
    const std::string& place) {
  return checked_string(value_at(object, key, place), key, place);
}

const json& array_at(
    const json& object,
    const std::string& key,
    const std::string& place) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  TESSERA_CHECK(
      object.is_object() && found != object.end() && found->is_array(),
      "{}: there is no array '{}', as in the files of SQuAD",
      place,
      key);
  return *found;
}

/// An integer, or in tables, whose values are strings, a string with one.
int64_t start_in(
    const json& value,
    const std::string& place,
    bool is_of_table = false) {
  int64_t start = -1;
  if (value.is_number_integer()) {
    start = value.get<int64_t>();
  } else if (value.is_string() && is_of_table) {
    const auto& text = value.get_ref<const std::string&>();
    const char* const end = text.data() + text.size();
    if (std::from_chars(text.data(), end, start).ptr != end) {
      start = -1;
    }
  }
  TESSERA_CHECK(
      start >= 0,
      "{}: the answer starts at {}; expected the number of its first character in the context, from 0",
      place,
      runtime::show_json(value));
  return start;
}

/// The byte at which a code point begins; the text's end for their number.
std::optional<size_t> byte_of(std::string_view text, int64_t code_point) {
  size_t byte = 0;
  for (; code_point > 0 && byte < text.size(); --code_point) {
    byte += text::utf8_length(text, byte);
  }
  return code_point == 0 ? std::optional(byte) : std::nullopt;
}

void check_context(const AnsweredQuestion& question) {
  TESSERA_CHECK(
      question.context.find_first_not_of(kSpaces) != std::string::npos,
      "{}: the context is empty",
      question.place);
}

class QuestionReader {
 public:
  explicit QuestionReader(const QuestionOptions& options) : options_(options) {}

  std::vector<AnsweredQuestion> questions;

  void add_file(const fs::path& file) {
    const size_t before = questions.size();
    if (is_published_questions(file)) {
      add_published(file);
    } else {
      text::for_each_row({file}, options_.rows, [&](const text::TextRow& row) {
        add_row(row);
      });
    }
    TESSERA_CHECK(
        questions.size() > before,
        "{}: there are no questions in it that can be used; expected a file of SQuAD, or rows with question, context, answer and answer_start",
        file.string());
  }

 private:
  void add_published(const fs::path& file) {
    const std::string name = file.string();
    const json all = runtime::parse_json(runtime::read_text_file(file), name);
    RowReport report(
        "bad question", options_.rows.bad_rows, kShownBadQuestions);
    size_t article = 0;
    for (const json& one : array_at(all, "data", name)) {
      const std::string in_article = formatted("{}: data[{}]", name, article++);
      size_t number = 0;
      for (const json& paragraph : array_at(one, "paragraphs", in_article)) {
        const std::string place =
            formatted("{}.paragraphs[{}]", in_article, number++);
        const std::string context = string_at(paragraph, "context", place);
        for (const json& asked : array_at(paragraph, "qas", place)) {
          report.use([&] { add_asked(asked, context, name, place); });
        }
      }
    }
    report.log_skipped("'" + name + "'");
  }

  void add_asked(
      const json& asked,
      const std::string& context,
      const std::string& file,
      const std::string& paragraph) {
    AnsweredQuestion question;
    question.id = string_at(asked, "id", paragraph);
    question.place = formatted("{}: question '{}'", file, question.id);
    question.question = string_at(asked, "question", question.place);
    question.context = context;
    std::vector<std::pair<std::string, int64_t>> answers;
    const bool is_impossible = asked.value("is_impossible", json()) == true;
    if (options_.reads_answers && !is_impossible) {
      for (const json& one : array_at(asked, "answers", question.place)) {
        answers.emplace_back(
            string_at(one, "text", question.place),
            start_in(
                value_at(one, "answer_start", question.place), question.place));
      }
    }
    add(std::move(question), answers);
  }

  void add_row(const text::TextRow& row) {
    AnsweredQuestion question = question_in(row, options_);
    if (!options_.reads_answers) {
      add(std::move(question), {});
      return;
    }
    const std::string& place = question.place;
    // As the `datasets` package writes SQuAD: {"text": [], "answer_start": []}.
    const auto nested = row.values.find("answers");
    const bool is_nested = nested != row.values.end() && nested->is_object() &&
                           !row.values.contains(options_.answer);
    const json& texts = is_nested
                            ? value_at(*nested, "text", place)
                            : value_at(row.values, options_.answer, place);
    const json& starts =
        is_nested ? value_at(*nested, "answer_start", place)
                  : value_at(row.values, options_.answer_start, place);
    std::vector<std::pair<std::string, int64_t>> answers;
    const auto add_answer = [&](const json& text, const json& start) {
      TESSERA_CHECK(
          text.is_string(),
          "{}: the answer is {}; expected a string",
          place,
          runtime::show_json(text));
      answers.emplace_back(
          text.get<std::string>(), start_in(start, place, row.is_of_table));
    };
    if (texts.is_array()) {
      TESSERA_CHECK(
          starts.is_array() && starts.size() == texts.size(),
          "{}: it has {}; expected as many starts",
          place,
          runtime::count_text(static_cast<int64_t>(texts.size()), "answer"));
      for (size_t i = 0; i < texts.size(); ++i) {
        add_answer(texts[i], starts[i]);
      }
    } else if (!texts.is_null() && texts != "") {
      add_answer(texts, starts);
    }
    add(std::move(question), answers);
  }

  /// @param answers with the code points at which they start.
  void add(
      AnsweredQuestion question,
      const std::vector<std::pair<std::string, int64_t>>& answers) {
    check_context(question);
    const std::string_view context = question.context;
    for (const auto& [text, start] : answers) {
      const size_t before = text.find_first_not_of(kSpaces);
      TESSERA_CHECK(
          before != std::string::npos,
          "{}: an answer is empty; a question without answer has none",
          question.place);
      const auto begin = byte_of(context, start);
      TESSERA_CHECK(
          begin && context.substr(*begin, text.size()) == text,
          "{}: the answer \"{}\" is not what the context has at character {}{}",
          question.place,
          text,
          start,
          begin
              ? ": \"" +
                    std::string(context.substr(
                        *begin,
                        byte_of(
                            context.substr(*begin),
                            static_cast<int64_t>(text::count_code_points(text)))
                            .value_or(context.npos))) +
                    "\""
              : ", which is after its end");
      if (question.answers.empty()) {
        const size_t after = text.find_last_not_of(kSpaces) + 1;
        question.first_answer = {
            static_cast<uint32_t>(*begin + before),
            static_cast<uint32_t>(*begin + after)};
      }
      question.answers.push_back(text);
    }
    TESSERA_CHECK(
        !question.answers.empty() || options_.unanswerable ||
            !options_.reads_answers,
        "{}: it has no answer; for data with such questions, as SQuAD 2.0, set data.unanswerable=true",
        question.place);
    questions.push_back(std::move(question));
  }

  const QuestionOptions& options_;
};

/// The text without white space before it, of which some of SQuAD's have much.
std::string_view without_leading_space(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  return begin == text.npos ? std::string_view() : text.substr(begin);
}

} // namespace

std::vector<AnsweredQuestion> read_questions(
    const std::vector<fs::path>& files,
    const QuestionOptions& options) {
  QuestionReader reader(options);
  for (const fs::path& file : files) {
    reader.add_file(file);
  }
  return std::move(reader.questions);
}

bool is_published_questions(const fs::path& file) {
  std::string start(size_t{64} << 10, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(in.gcount()));
  constexpr std::string_view kKey = "\"data\"";
  const size_t brace = start.find('{');
  const size_t key = start.find(kKey);
  if (brace == start.npos || key == start.npos || brace > key) {
    return false;
  }
  const size_t colon = start.find_first_not_of(kSpaces, key + kKey.size());
  if (colon == start.npos || start[colon] != ':') {
    return false;
  }
  const size_t value = start.find_first_not_of(kSpaces, colon + 1);
  return value != start.npos && start[value] == '[';
}

AnsweredQuestion question_in(
    const text::TextRow& row,
    const QuestionOptions& options) {
  AnsweredQuestion question;
  question.place = row.place();
  if (const auto id = row.values.find(options.id); id != row.values.end()) {
    question.id = id->is_string() ? id->get<std::string>() : id->dump();
    question.place += formatted(": question '{}'", question.id);
  }
  question.question = string_at(row.values, options.question, question.place);
  question.context = string_at(row.values, options.context, question.place);
  check_context(question);
  return question;
}

text::Encoding EncodedQuestion::encoding(const ContextWindow& window) const {
  text::Encoding part;
  const auto add = [&](int64_t begin, int64_t end) {
    part.tokens.insert(
        part.tokens.end(), tokens.begin() + begin, tokens.begin() + end);
  };
  add(0, context.begin);
  add(window.begin, window.end);
  add(context.end, static_cast<int64_t>(tokens.size()));
  part.is_truncated = windows.size() > 1;
  return part;
}

ContextWindow EncodedQuestion::placed(const ContextWindow& window) const {
  return {context.begin, context.begin + window.end - window.begin};
}

EncodedQuestion encode_question(
    const AnsweredQuestion& question,
    const text::Tokenizer& tokenizer,
    int64_t max_length,
    int64_t overlap) {
  text::EncodeOptions options;
  options.with_offsets = true;
  const std::string_view asked = without_leading_space(question.question);
  // Where padding is on the left, models were trained with the question last.
  const bool context_first =
      tokenizer.settings().padding_side == text::Side::kLeft;
  EncodedQuestion result;
  result.tokens =
      context_first
          ? tokenizer.encode_pair(question.context, asked, options).tokens
          : tokenizer.encode_pair(asked, question.context, options).tokens;
  const int32_t text = context_first ? 0 : 1;
  const auto size = static_cast<int64_t>(result.tokens.size());
  auto& [begin, end] = result.context;
  const auto is_context = [&](int64_t token) {
    return result.tokens[static_cast<size_t>(token)].text == text;
  };
  while (begin < size && !is_context(begin)) {
    ++begin;
  }
  for (end = begin; end < size && is_context(end);) {
    ++end;
  }
  TESSERA_CHECK(begin < end, "{}: the context has no tokens", question.place);
  const int64_t window_tokens = max_length - (size - (end - begin));
  if (end - begin <= window_tokens) {
    result.windows = {result.context};
    return result;
  }
  TESSERA_CHECK(
      window_tokens > overlap,
      "{}: the question has so many tokens that model.max_length, {}, leaves {} for its context, which must be more than data.window_overlap, {}; change one of them",
      question.place,
      max_length,
      std::max<int64_t>(window_tokens, 0),
      overlap);
  const text::TokenSequence context(
      result.tokens.begin() + begin, result.tokens.begin() + end);
  int64_t at = begin;
  for (const text::TokenSequence& window :
       text::make_windows(context, window_tokens, overlap)) {
    result.windows.push_back({at, at + static_cast<int64_t>(window.size())});
    at += window_tokens - overlap;
  }
  return result;
}

std::optional<std::pair<int64_t, int64_t>> tokens_of_answer(
    const EncodedQuestion& question,
    const ContextWindow& window,
    text::ByteRange bytes) {
  const auto range = [&](int64_t token) {
    return question.tokens[static_cast<size_t>(token)].bytes;
  };
  if (bytes.size() == 0 || range(window.begin).begin > bytes.begin ||
      range(window.end - 1).end < bytes.end) {
    return std::nullopt;
  }
  int64_t first = window.begin;
  while (first + 1 < window.end && range(first + 1).begin <= bytes.begin) {
    ++first;
  }
  int64_t last = window.end - 1;
  while (last > first && range(last - 1).end >= bytes.end) {
    --last;
  }
  const int64_t shift = question.context.begin - window.begin;
  return std::pair(first + shift, last + shift);
}

text::ByteRange answer_bytes(
    const std::string& context,
    const EncodedQuestion& question,
    const ContextWindow& window,
    int64_t first,
    int64_t last) {
  const int64_t shift = window.begin - question.context.begin;
  const size_t begin =
      question.tokens[static_cast<size_t>(first + shift)].bytes.begin;
  const size_t end =
      question.tokens[static_cast<size_t>(last + shift)].bytes.end;
  const std::string_view text =
      std::string_view(context).substr(begin, end - begin);
  const size_t from = text.find_first_not_of(kSpaces);
  return from == text.npos
             ? text::ByteRange{}
             : text::ByteRange{
                   static_cast<uint32_t>(begin + from),
                   static_cast<uint32_t>(
                       begin + text.find_last_not_of(kSpaces) + 1)};
}

} // namespace tessera::tasks
