// SPDX-License-Identifier: Apache-2.0
#pragma once
// read_questions() reads questions about contexts with their answers;
// `EncodedQuestion` is one as tokens, in windows that a model has room for.

#include "tessera/text/rows/text_rows.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks {

/// The options of the task question_answering, parts of the section `data`:
/// where questions are in a row, how they are cut into windows, and how answers
/// are selected.
struct QuestionOptions {
  std::string question = "question"; ///< keys or columns of rows
  std::string context = "context";
  std::string answer = "answer";
  std::string answer_start = "answer_start";
  std::string id = "id";
  text::TextRowOptions rows;
  /// False: questions are to be answered, and what rows have of answers is not
  /// looked at.
  bool reads_answers = true;
  /// Whether questions may have no answer, as in SQuAD 2.0.
  bool unanswerable = false;
  int64_t window_overlap = 128; ///< tokens of the context
  int64_t max_answer_tokens = 30;
  /// The starts and the ends of each window that answers are made of.
  int64_t best_places = 20;
  /// A question has no answer if this is less than the score of none minus that
  /// of the best answer.
  double no_answer_threshold = 0;
};

struct AnsweredQuestion {
  std::string id;
  std::string place; ///< "FILE: question 'ID'", for messages
  std::string question;
  std::string context;
  std::vector<std::string> answers; ///< none: it has no answer
  text::ByteRange first_answer; ///< in the context; empty: there is none
};

/// Reads files as SQuAD is published (`data`, `paragraphs`, `qas`), and rows of
/// JSON lines, CSV and TSV with a question, its context, an answer or several,
/// and where they start, in code points.
/// @throws Error naming file and question or line, unless bad rows are skipped;
///     also on a file without questions.
std::vector<AnsweredQuestion> read_questions(
    const std::vector<std::filesystem::path>& files,
    const QuestionOptions& options = {});

/// Whether a file begins as SQuAD is published: an object with an array `data`.
bool is_published_questions(const std::filesystem::path& file);

/// The question of a row, without answers.
/// @throws Error naming the row and a key that it lacks.
AnsweredQuestion question_in(
    const text::TextRow& row,
    const QuestionOptions& options);

/// Tokens [begin, end) of EncodedQuestion::tokens.
struct ContextWindow {
  int64_t begin = 0;
  int64_t end = 0;
};

/// A question and its whole context as tokens.
struct EncodedQuestion {
  text::TokenSequence tokens;
  ContextWindow context; ///< all of its tokens
  /// Consecutive, each beginning with the last tokens of the one before it.
  std::vector<ContextWindow> windows;

  /// What a model is given of a window: the question, the window and the tokens
  /// around them.
  text::Encoding encoding(const ContextWindow& window) const;
  /// Where encoding() has the context: [begin, end) of its tokens.
  ContextWindow placed(const ContextWindow& window) const;
};

/// @param max_length of question and window with what is around them.
/// @throws Error naming the question if its context has no tokens, or if it
///     leaves the windows no room beside their overlap.
EncodedQuestion encode_question(
    const AnsweredQuestion& question,
    const text::Tokenizer& tokenizer,
    int64_t max_length,
    int64_t overlap);

/// The first and last token in encoding() that hold these bytes of the context;
/// nothing if they are not wholly in the window.
std::optional<std::pair<int64_t, int64_t>> tokens_of_answer(
    const EncodedQuestion& question,
    const ContextWindow& window,
    text::ByteRange bytes);

/// The bytes of the context that the tokens `first` to `last` of encoding()
/// stand for, without white space around them.
text::ByteRange answer_bytes(
    const std::string& context,
    const EncodedQuestion& question,
    const ContextWindow& window,
    int64_t first,
    int64_t last);

} // namespace tessera::tasks
