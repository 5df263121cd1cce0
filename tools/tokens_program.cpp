// SPDX-License-Identifier: Apache-2.0
// `tessera tokens MODEL [TEXT...]`: shows the token ids of texts, and with
// --chat which tokens of rows are learned by supervised fine-tuning.

#include "program_main.h"
#include "text_source.h"

#include "tessera/runtime/core/size_text.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/tasks/supervised_texts.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tools {

namespace {

void print_tokens(
    const std::string& text,
    const std::vector<int64_t>& encoded,
    const text::Tokenizer& tokenizer,
    bool as_json) {
  std::vector<std::string> pieces;
  std::string ids;
  std::string joined;
  for (const int64_t id : encoded) {
    pieces.push_back(tokenizer.token(id));
    ids += " " + std::to_string(id);
    joined += " " + pieces.back();
  }
  if (!as_json) {
    std::printf("ids:%s\npieces:%s\n", ids.c_str(), joined.c_str());
    return;
  }
  const nlohmann::ordered_json json{
      {"text", text}, {"input_ids", encoded}, {"pieces", pieces}};
  const std::string line =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::printf("%s\n", line.c_str());
}

/// The tokens of a text in order: those that are learned, and those between.
std::vector<std::pair<bool, tasks::TokenRange>> segments_of(
    const tasks::SupervisedText& text) {
  std::vector<std::pair<bool, tasks::TokenRange>> segments;
  int64_t begin = 0;
  for (const tasks::TokenRange& answer : text.answers) {
    if (answer.begin > begin) {
      segments.push_back({false, {begin, answer.begin}});
    }
    segments.push_back({true, answer});
    begin = answer.end;
  }
  if (const auto end = static_cast<int64_t>(text.tokens.size()); begin < end) {
    segments.push_back({false, {begin, end}});
  }
  return segments;
}

/// Shows a row as the task `supervised` trains a decoder on it.
void print_row(
    const std::string& place,
    const tasks::SupervisedText& text,
    const text::Tokenizer& tokenizer,
    bool as_json) {
  const auto segments = segments_of(text);
  if (as_json) {
    auto learned = nlohmann::ordered_json::array();
    std::vector<std::string> pieces;
    for (const auto& [is_learned, range] : segments) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        learned.push_back(is_learned);
        pieces.push_back(tokenizer.token(text.tokens[static_cast<size_t>(i)]));
      }
    }
    const nlohmann::ordered_json json{
        {"row", place},
        {"input_ids", text.tokens},
        {"pieces", pieces},
        {"learned", learned}};
    const std::string line =
        json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    std::printf("%s\n", line.c_str());
    return;
  }
  std::printf(
      "%s: %s, %lld learned\n",
      place.c_str(),
      runtime::count_text(static_cast<int64_t>(text.tokens.size()), "token")
          .c_str(),
      static_cast<long long>(text.learned()));
  for (const auto& [is_learned, range] : segments) {
    const std::string words = tokenizer.decode(
        {text.tokens.begin() + range.begin, text.tokens.begin() + range.end});
    std::printf(
        "  %s %s\n",
        is_learned ? "learned" : "given  ",
        nlohmann::json(words)
            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
            .c_str());
  }
}

/// Shows the first rows of a file.
void print_rows(
    const tasks::SupervisedEncoder& encoder,
    const std::string& file,
    int64_t count,
    bool as_json) {
  text::TextRows rows(file);
  for (int64_t i = 0; i < count; ++i) {
    const auto row = rows.next();
    if (!row) {
      return;
    }
    print_row(row->place(), encoder.encode(*row), encoder.tokenizer(), as_json);
  }
}

} // namespace

int run_tokens(int argc, char** argv) {
  CLI::App app(
      "Shows the token ids of texts, and the pieces of text that they stand "
      "for",
      "tessera tokens");
  std::string model;
  std::string input;
  std::vector<std::string> texts;
  bool as_json = false;
  bool no_special_tokens = false;
  std::string chat;
  int64_t rows = 3;
  int64_t max_length = std::numeric_limits<int64_t>::max();
  tasks::SupervisedOptions supervised;
  app.add_option_function<std::string>(
         "model",
         [&model](const std::string& given) {
           model = tasks::adapted_folder_of(given).model.string();
         },
         "Hugging Face folder with a tokenizer, its tokenizer.json or .model file, "
         "folder of a LoRA adapter, or run folder of `tessera train`")
      ->required();
  app.add_option(
      "texts", texts, "The texts; none: lines of --input or standard input");
  app.add_option(
      "--input",
      input,
      "File of one text per line, or of JSON objects with 'text'");
  app.add_flag(
      "--no-special-tokens",
      no_special_tokens,
      "Leave out tokens such as [CLS] and [SEP]");
  app.add_flag("--json", as_json, "Print one JSON object per text");
  auto* const with_chat = app.add_option(
      "--chat",
      chat,
      "Instead: file of rows of the task `supervised`, as a decoder is trained "
      "on them: which tokens are given, and which are learned");
  std::string preset = "none";
  std::vector<std::string> presets;
  for (const auto& [name, value] : tasks::supervised_presets()) {
    presets.push_back(name);
  }
  app.add_option("--preset", preset, "With --chat: data.preset")
      ->check(CLI::IsMember(presets))
      ->needs(with_chat);
  app.add_option("--rows", rows, "With --chat: how many of the first rows")
      ->check(CLI::PositiveNumber)
      ->needs(with_chat)
      ->capture_default_str();
  app.add_option("--max-length", max_length, "With --chat: model.max_length")
      ->check(CLI::PositiveNumber)
      ->needs(with_chat);
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  const auto tokenizer = text::Tokenizer::from_path(model);
  if (!chat.empty()) {
    for (const auto& [name, value] : tasks::supervised_presets()) {
      supervised.preset = name == preset ? value : supervised.preset;
    }
    const tasks::SupervisedEncoder encoder(
        tokenizer,
        supervised,
        tasks::PromptKind::kDecoder,
        model,
        std::numeric_limits<int64_t>::max(),
        max_length);
    print_rows(encoder, chat, rows, as_json);
    return 0;
  }
  const text::EncodeOptions options{.add_special_tokens = !no_special_tokens};
  TextSource source(texts, input, {"text"});
  for (auto batch = source.next_texts(1); !batch.empty();
       batch = source.next_texts(1)) {
    const std::string& text = batch.front();
    print_tokens(
        text, tokenizer.encode(text, options).ids(), tokenizer, as_json);
    std::fflush(stdout);
  }
  return 0;
}

} // namespace tessera::tools
