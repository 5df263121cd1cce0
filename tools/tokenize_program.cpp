// SPDX-License-Identifier: Apache-2.0
// `tessera tokenize --model DIR --input FILE... --output PREFIX`: makes token
// files of text.

#include "program_main.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/zoo/data/tokenize_files.h"

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace tessera::tools {

namespace {

/// Shows how far the work is: at a terminal in one line, else now and then.
class ProgressLine {
 public:
  void show(const zoo::TokenizeProgress& progress) {
    const auto now = Clock::now();
    const std::chrono::duration<double> since = now - shown_;
    if (since.count() < (is_terminal_ ? 0.2 : 10)) {
      return;
    }
    shown_ = now;
    const std::chrono::duration<double> elapsed = now - start_;
    const double megabytes = static_cast<double>(progress.bytes) * 1e-6;
    std::fprintf(
        stderr,
        "%s%.1f of %.1f MB, %.1f MB/s, %lld documents, %lld tokens%s",
        is_terminal_ ? "\r" : "",
        megabytes,
        static_cast<double>(progress.total_bytes) * 1e-6,
        megabytes / elapsed.count(),
        static_cast<long long>(progress.documents),
        static_cast<long long>(progress.tokens),
        is_terminal_ ? "\x1b[K" : "\n");
    has_line_ = is_terminal_;
  }

  void end() {
    if (has_line_) {
      std::fputs("\n", stderr);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool has_line_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

/// The share of --split that is held out.
/// @throws tessera::Error unless two shares make 1.
double held_out_of(const std::vector<double>& split) {
  if (split.empty()) {
    return 0;
  }
  TESSERA_CHECK(
      split.size() == 2 && split[0] > 0 && split[1] > 0 &&
          std::abs(split[0] + split[1] - 1) < 1e-9,
      "--split takes the shares of training and held-out documents, which make 1, such as 0.99,0.01");
  return split[1];
}

void report(const zoo::TokenizeResult& result) {
  if (result.resumed_documents > 0) {
    std::printf(
        "continued after %s of an interrupted run\n",
        runtime::count_text(result.resumed_documents, "document").c_str());
  }
  const int64_t bad_rows = result.progress.bad_rows;
  std::printf(
      "%s, %s%s:",
      runtime::count_text(result.progress.documents, "document").c_str(),
      runtime::count_text(result.progress.tokens, "token").c_str(),
      bad_rows == 0
          ? ""
          : (", " + runtime::count_text(bad_rows, "bad row") + " skipped")
                .c_str());
  for (const auto& output : result.outputs) {
    std::printf(" %s", output.c_str());
  }
  std::printf("\n");
}

} // namespace

int run_tokenize(int argc, char** argv) {
  CLI::App app(
      "Tokenizes text into files for the task language_model: PREFIX.bin "
      "and PREFIX.idx, in Megatron's format, and PREFIX.tokenizer/, a copy of the "
      "tokenizer, which training gives to its model. An interrupted run continues when "
      "it is started again",
      "tessera tokenize");
  zoo::TokenizeOptions options;
  std::string model;
  std::string output;
  std::vector<double> split;
  bool no_end = false;
  bool overwrite = false;
  app.add_option(
         "--model",
         model,
         "Folder with a tokenizer, or a tokenizer.json or .model file")
      ->required();
  app.add_option(
         "--input",
         options.inputs,
         "Files, or patterns in quotation marks, in which ** stands for any "
         "folders: text, JSON lines (.jsonl, .json), CSV (.csv) and TSV (.tsv)")
      ->required();
  app.add_option("--output", output, "PREFIX of the files that are written")
      ->required();
  app.add_option(
         "--format",
         options.format.format,
         "Of all files, whatever their suffix")
      ->transform(CLI::Transformer(std::map<std::string, zoo::TextFormat>{
          {"text", zoo::TextFormat::kText},
          {"jsonl", zoo::TextFormat::kJsonLines},
          {"csv", zoo::TextFormat::kCsv},
          {"tsv", zoo::TextFormat::kTsv}}))
      ->option_text("text|jsonl|csv|tsv");
  app.add_option(
         "--document",
         options.format.unit,
         "What a document of a text file is: all of it, lines up to an empty one, or a line")
      ->transform(CLI::Transformer(std::map<std::string, zoo::TextUnit>{
          {"file", zoo::TextUnit::kFile},
          {"paragraph", zoo::TextUnit::kParagraph},
          {"line", zoo::TextUnit::kLine}}))
      ->option_text("file|paragraph|line [file]");
  app.add_option(
         "--text-key",
         options.format.text_key,
         "Key of JSON objects, or column of CSV files, that has the text")
      ->capture_default_str();
  app.add_option(
         "--split",
         split,
         "Shares of the documents for PREFIX-train and PREFIX-heldout, such as "
         "0.99,0.01")
      ->delimiter(',');
  app.add_option(
      "--begin-token",
      options.begin_token,
      "Token that begins each document, such as <s> [none]");
  app.add_option(
      "--end-token",
      options.end_token,
      "Token that ends each document [the tokenizer's eos_token]");
  app.add_flag(
      "--no-append-end", no_end, "Documents end without a token for it");
  app.add_flag(
      "--parse-special-tokens",
      options.parse_special_tokens,
      "Texts such as <|endoftext|> in documents become that token");
  app.add_flag(
      "--skip-bad",
      options.skip_bad,
      "Skip and count rows that cannot be read, empty ones, and texts that are "
      "not UTF-8");
  app.add_option(
      "--workers",
      options.workers,
      "Threads [as many as there are CPUs]; they do not change the result");
  app.add_flag(
      "--overwrite", overwrite, "Replace earlier files, and begin anew");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  check_one_process("tokenize");
  options.output = output;
  options.held_out = held_out_of(split);
  if (no_end) {
    options.append_end = false;
  } else if (!options.end_token.empty()) {
    options.append_end = true;
  }
  if (overwrite) {
    options.earlier = zoo::EarlierTokens::kReplace;
  }
  ProgressLine line;
  options.progress = [&](const zoo::TokenizeProgress& progress) {
    line.show(progress);
  };
  const auto result = zoo::tokenize_files(model, options);
  line.end();
  report(result);
  return 0;
}

} // namespace tessera::tools
