// SPDX-License-Identifier: Apache-2.0
// `tessera tokens MODEL [TEXT...]`: shows the token ids of texts.

#include "model_folder.h"
#include "program_main.h"
#include "text_source.h"

#include "tessera/zoo/tokenizer/tokenizer.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace tessera::tools {

namespace {

void print_tokens(
    const std::string& text,
    const std::vector<int64_t>& encoded,
    const zoo::Tokenizer& tokenizer,
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
  add_model_folder(
      app,
      "model",
      model,
      "Hugging Face folder with a tokenizer, its tokenizer.json or .model file, "
      "or run folder of `tessera train`");
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
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  const auto tokenizer = zoo::Tokenizer::from_path(model);
  const zoo::EncodeOptions options{.add_special_tokens = !no_special_tokens};
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
