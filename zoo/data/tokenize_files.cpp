// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/tokenize_files.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/file_lock.h"
#include "tessera/text/rows/file_patterns.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/data/data_identity.h"
#include "tessera/zoo/data/document_writer.h"
#include "tessera/zoo/data/token_documents.h"
#include "tessera/zoo/formats/hf_folder_writer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

/// Megatron's: larger vocabularies have int32.
constexpr int64_t kUint16Vocab = 65500;

int64_t token_of(
    const text::Tokenizer& tokenizer,
    const fs::path& model,
    const std::string& token,
    const char* option,
    const char* key) {
  const auto found = tokenizer.id_of(token);
  TESSERA_CHECK(
      found,
      "the tokenizer of '{}' has no token '{}'; name another one with {}, in a configuration data.text.{}",
      model.string(),
      token,
      option,
      key);
  return *found;
}

std::optional<int64_t> begin_token_of(
    const text::Tokenizer& tokenizer,
    const fs::path& model,
    const TokenizeOptions& options) {
  if (options.begin_token.empty()) {
    return std::nullopt;
  }
  return token_of(
      tokenizer, model, options.begin_token, "--begin-token", "begin_token");
}

std::optional<int64_t> end_token_of(
    const text::Tokenizer& tokenizer,
    const fs::path& model,
    const TokenizeOptions& options) {
  if (options.append_end == false) {
    return std::nullopt;
  }
  if (!options.end_token.empty()) {
    return token_of(
        tokenizer, model, options.end_token, "--end-token", "end_token");
  }
  const auto found = tokenizer.special_id("eos_token");
  TESSERA_CHECK(
      found || !options.append_end,
      "the files of '{}' name no eos_token to end documents with; name a token with --end-token, or leave it out with --no-append-end",
      model.string());
  return found;
}

/// Removes a file when it goes.
class FileRemover {
 public:
  explicit FileRemover(fs::path file) : file_(std::move(file)) {}
  ~FileRemover() {
    std::error_code ignored;
    fs::remove(file_, ignored);
  }
  FileRemover(const FileRemover&) = delete;
  FileRemover& operator=(const FileRemover&) = delete;

 private:
  fs::path file_;
};

/// What decides the bytes that are written.
json identity_of(
    const fs::path& model,
    const std::vector<fs::path>& files,
    const TokenizeOptions& options) {
  json inputs = json::array();
  for (const fs::path& file : files) {
    inputs.push_back(
        {file.string(),
         fs::file_size(file),
         fs::last_write_time(file).time_since_epoch().count()});
  }
  json tokenizer = json::object();
  if (fs::is_directory(model)) {
    for (const fs::path& file : tokenizer_files(model)) {
      tokenizer[file.filename().string()] =
          data_identity({file}).at("checksum");
    }
  } else {
    tokenizer["file"] = data_identity({model}).at("checksum");
  }
  return {
      {"inputs", inputs},
      {"tokenizer", tokenizer},
      {"format",
       options.format.format ? json(static_cast<int>(*options.format.format))
                             : json()},
      {"unit", static_cast<int>(options.format.unit)},
      {"text_key", options.format.text_key},
      {"held_out", options.held_out},
      {"begin_token", options.begin_token},
      {"append_end", options.append_end ? json(*options.append_end) : json()},
      {"end_token", options.end_token},
      {"parse_special_tokens", options.parse_special_tokens},
      {"skip_bad", options.skip_bad}};
}

/// How far the work is, as in PREFIX.progress.json.
struct SavedProgress {
  TextPosition position;
  TokenizeProgress counts;
  std::vector<WrittenDocuments> marks; ///< of each writer
};

json to_json(const SavedProgress& saved) {
  json marks = json::array();
  for (const auto& mark : saved.marks) {
    marks.push_back({mark.documents, mark.tokens});
  }
  return {
      {"file", saved.position.file},
      {"offset", saved.position.offset},
      {"line", saved.position.line},
      {"documents", saved.counts.documents},
      {"tokens", saved.counts.tokens},
      {"bad_rows", saved.counts.bad_rows},
      {"marks", marks}};
}

SavedProgress from_json(const json& object) {
  SavedProgress saved;
  saved.position = {
      object.at("file").get<size_t>(),
      object.at("offset").get<int64_t>(),
      object.at("line").get<int64_t>()};
  saved.counts.documents = object.at("documents");
  saved.counts.tokens = object.at("tokens");
  saved.counts.bad_rows = object.at("bad_rows");
  for (const json& mark : object.at("marks")) {
    saved.marks.push_back({mark.at(0), mark.at(1)});
  }
  return saved;
}

std::vector<fs::path> existing_files(const std::vector<std::string>& names) {
  const std::vector<fs::path> files = text::matching_files(names);
  for (const fs::path& file : files) {
    TESSERA_CHECK(fs::exists(file), "'{}' does not exist", file.string());
    TESSERA_CHECK(
        !fs::is_directory(file),
        "'{}' is a folder; give its files, e.g. as '{}/**/*.txt'",
        file.string(),
        file.string());
  }
  return files;
}

/// One call of tokenize_files().
class TokenizeRun {
 public:
  TokenizeRun(const fs::path& model, const TokenizeOptions& options)
      : options_(options),
        model_(model),
        files_(existing_files(options.inputs)),
        tokenizer_(text::Tokenizer::from_path(model)),
        begin_token_(begin_token_of(tokenizer_, model, options)),
        end_token_(end_token_of(tokenizer_, model, options)) {
    for (const fs::path& file : files_) {
      begins_.push_back(saved_.counts.total_bytes);
      saved_.counts.total_bytes += static_cast<int64_t>(fs::file_size(file));
    }
    begins_.push_back(saved_.counts.total_bytes);
    identity_ = identity_of(model, files_, options);
    if (find_earlier()) {
      return;
    }
    resume();
    const auto type = tokenizer_.size() < kUint16Vocab ? TokenType::kUint16
                                                       : TokenType::kInt32;
    const auto prefixes = outputs();
    saved_.marks.resize(prefixes.size());
    for (size_t i = 0; i < prefixes.size(); ++i) {
      writers_.emplace_back(prefixes[i], type, saved_.marks[i]);
    }
  }

  TokenizeResult run() {
    TokenizeResult result;
    if (is_reused_) {
      for (const fs::path& prefix : outputs()) {
        result.outputs.push_back(prefix.string() + ".bin");
      }
      result.is_reused = true;
      result.progress = saved_.counts;
      return result;
    }
    result.resumed_documents = saved_.counts.documents;
    TextDocuments source(files_, options_.format, saved_.position);
    auto last_save = Clock::now();
    while (read_batch(source)) {
      write_batch();
      const std::chrono::duration<double> elapsed = Clock::now() - last_save;
      if (elapsed.count() >= options_.save_seconds) {
        save();
        last_save = Clock::now();
      }
      if (options_.progress) {
        options_.progress(saved_.counts);
      }
    }
    TESSERA_CHECK(
        saved_.counts.documents > 0,
        "there is no document in the input; skipped: {}",
        runtime::count_text(saved_.counts.bad_rows, "bad row"));
    save(); // of everything, for an interruption from here on
    warn_of_empty_parts();
    for (DocumentWriter& writer : writers_) {
      // Before the file that it made, so that it is there when that is.
      copy_tokenizer(model_, tokenizer_beside(writer.bin()));
      writer.finish();
      result.outputs.push_back(writer.bin());
    }
    if (options_.earlier == EarlierTokens::kReuse) {
      write_state(sources_file());
    }
    fs::remove(progress_file());
    for (DocumentWriter& writer : writers_) {
      writer.remove_parts();
    }
    result.progress = saved_.counts;
    return result;
  }

  void warn_of_empty_parts() const {
    for (size_t i = 0; i < writers_.size(); ++i) {
      if (saved_.marks[i].documents == 0) {
        log_warning(
            "'{}' is empty: of {}, none is in its share; the share of held-out documents is {}",
            writers_[i].bin().string(),
            runtime::count_text(saved_.counts.documents, "document"),
            options_.held_out);
      }
    }
  }

  /// After an error: removes what no later call can go on with.
  void clean_up() {
    if (!fs::exists(progress_file())) {
      for (DocumentWriter& writer : writers_) {
        writer.remove_parts();
      }
    }
  }

 private:
  std::vector<fs::path> outputs() const {
    const std::string prefix = options_.output.string();
    return options_.held_out > 0
               ? std::vector<fs::path>{prefix + "-train", prefix + "-heldout"}
               : std::vector<fs::path>{prefix};
  }

  fs::path progress_file() const {
    return options_.output.string() + ".progress.json";
  }

  /// What the complete files were made of.
  fs::path sources_file() const {
    return options_.output.string() + ".sources.json";
  }

  /// What `file` says, if that is of this call; null otherwise.
  json state_in(const fs::path& file) const {
    if (!fs::exists(file)) {
      return {};
    }
    json read = json::parse(
        runtime::read_text_file(file), nullptr, /*allow_exceptions=*/false);
    return read.is_object() && read.value("identity", json()) == identity_
               ? read
               : json();
  }

  /// Whether the files of an earlier call can be taken as they are.
  bool find_earlier() {
    if (options_.earlier != EarlierTokens::kReuse ||
        fs::exists(progress_file())) {
      return false;
    }
    const json state = state_in(sources_file());
    for (const fs::path& prefix : outputs()) {
      if (state.is_null() || !fs::exists(prefix.string() + ".bin") ||
          !fs::exists(prefix.string() + ".idx")) {
        return false;
      }
    }
    const int64_t total = saved_.counts.total_bytes;
    saved_ = from_json(state.at("progress"));
    saved_.counts.bytes = saved_.counts.total_bytes = total;
    is_reused_ = true;
    return true;
  }

  /// Finds out where to begin.
  void resume() {
    const fs::path file = progress_file();
    if (options_.earlier == EarlierTokens::kReplace ||
        (options_.earlier == EarlierTokens::kReuse &&
         state_in(file).is_null())) {
      fs::remove(file);
    }
    if (!fs::exists(file)) {
      for (const fs::path& prefix : outputs()) {
        const std::string bin = prefix.string() + ".bin";
        TESSERA_CHECK(
            options_.earlier != EarlierTokens::kRefuse || !fs::exists(bin),
            "'{}' exists; give another --output, or replace it with --overwrite",
            bin);
      }
      return;
    }
    const json read =
        runtime::parse_json(runtime::read_text_file(file), file.string());
    try {
      TESSERA_CHECK(
          read.at("identity") == identity_,
          "'{}' was left by an interrupted run over other files, or with another tokenizer or other options; give the same to continue it, another --output, or --overwrite to begin anew",
          file.string());
      const int64_t total = saved_.counts.total_bytes;
      saved_ = from_json(read.at("progress"));
      saved_.counts.total_bytes = total;
      TESSERA_CHECK(
          saved_.marks.size() == outputs().size() &&
              saved_.position.file <= files_.size(),
          "'{}' contradicts itself; begin anew with --overwrite",
          file.string());
    } catch (const json::exception& error) {
      TESSERA_FAIL(
          "'{}' is damaged ({}); begin anew with --overwrite",
          file.string(),
          error.what());
    }
  }

  void save() {
    saved_.marks.clear();
    for (DocumentWriter& writer : writers_) {
      saved_.marks.push_back(writer.sync());
    }
    write_state(progress_file());
  }

  void write_state(const fs::path& file) const {
    runtime::write_file_atomically(
        file,
        json{{"identity", identity_}, {"progress", to_json(saved_)}}.dump() +
            "\n");
  }

  /// @return false at the end of the input.
  bool read_batch(TextDocuments& source) {
    texts_.clear();
    int64_t bytes = 0;
    bool is_more = false;
    while (bytes < options_.batch_bytes) {
      auto document = source.next();
      if (!document) {
        break;
      }
      is_more = true;
      saved_.position = document->next;
      if (!document->problem.empty()) {
        TESSERA_CHECK(
            options_.skip_bad,
            "{}. Mend it, or skip and count what cannot be read with --skip-bad, in a configuration data.text.skip_bad_rows=true",
            document->problem);
        ++saved_.counts.bad_rows;
        continue;
      }
      bytes += static_cast<int64_t>(document->text.size());
      texts_.push_back(std::move(document->text));
    }
    saved_.counts.bytes = std::min(
        begins_[saved_.position.file] + saved_.position.offset,
        saved_.counts.total_bytes);
    return is_more;
  }

  void write_batch() {
    const std::vector<std::string_view> views(texts_.begin(), texts_.end());
    const auto encoded = tokenizer_.encode_batch(
        views,
        {.add_special_tokens = false,
         .splits_special_tokens = !options_.parse_special_tokens},
        options_.workers);
    for (const text::Encoding& one : encoded) {
      std::vector<int64_t> ids = one.ids();
      if (begin_token_) {
        ids.insert(ids.begin(), *begin_token_);
      }
      if (end_token_) {
        ids.push_back(*end_token_);
      }
      const bool to_heldout =
          writers_.size() > 1 &&
          is_held_out(saved_.counts.documents, options_.held_out);
      writers_[to_heldout ? 1 : 0].add(ids);
      ++saved_.counts.documents;
      saved_.counts.tokens += static_cast<int64_t>(ids.size());
    }
  }

  const TokenizeOptions& options_;
  fs::path model_; ///< of the tokenizer
  std::vector<fs::path> files_;
  std::vector<int64_t> begins_; ///< of files, in bytes of the input
  text::Tokenizer tokenizer_;
  std::optional<int64_t> begin_token_;
  std::optional<int64_t> end_token_;
  json identity_;
  bool is_reused_ = false;
  SavedProgress saved_;
  std::vector<DocumentWriter> writers_;
  std::vector<std::string> texts_;
};

} // namespace

void visit_fields(runtime::OptionFields& fields, TokenizeOptions& options) {
  fields.choice(
      "format",
      options.format.format,
      {{"text", TextFormat::kText},
       {"jsonl", TextFormat::kJsonLines},
       {"csv", TextFormat::kCsv},
       {"tsv", TextFormat::kTsv}},
      "of all files; by default what their suffix says: `.jsonl`, `.ndjson` and `.json`, `.csv`, `.tsv`, else plain text");
  fields.choice(
      "document",
      options.format.unit,
      {{"file", TextUnit::kFile},
       {"paragraph", TextUnit::kParagraph},
       {"line", TextUnit::kLine}},
      "what a document of a plain text is: all of the file, lines up to an empty one, or a line");
  fields.field(
      "key",
      options.format.text_key,
      "key of JSON objects, or column of tables, that has the text");
  fields.field(
      "begin_token",
      options.begin_token,
      "the token that begins each document, such as `<s>` (empty: none)");
  fields.field(
      "end_token",
      options.end_token,
      "the token that ends each document (empty: the tokenizer's eos_token)");
  fields.field(
      "append_end",
      options.append_end,
      "whether documents end with that token; by default if there is one");
  fields.field(
      "parse_special_tokens",
      options.parse_special_tokens,
      "texts such as `<|endoftext|>` in documents become that token");
  fields.field(
      "skip_bad_rows",
      options.skip_bad,
      "leave out documents that are empty, not UTF-8, or in rows that cannot be read, and log how many; otherwise they are an error");
}

TokenizeResult tokenize_files(
    const fs::path& model,
    const TokenizeOptions& options) {
  TESSERA_CHECK(
      options.held_out >= 0 && options.held_out < 1,
      "the share of held-out documents is {}; it must be at least 0 and less than 1",
      options.held_out);
  TESSERA_CHECK(!options.inputs.empty(), "there are no input files");
  TESSERA_CHECK(
      !options.output.filename().empty(),
      "--output is '{}'; give a prefix of files, such as data/texts",
      options.output.string());
  if (const fs::path folder = options.output.parent_path(); !folder.empty()) {
    std::error_code code;
    fs::create_directories(folder, code);
    TESSERA_CHECK(
        fs::is_directory(folder),
        "--output is '{}': cannot create the folder '{}'{}; give another one",
        options.output.string(),
        folder.string(),
        code ? ": " + code.message() : "");
  }
  const fs::path lock_file = options.output.string() + ".lock";
  const runtime::FileLock lock(
      lock_file, formatted("the output '{}'", options.output.string()));
  const FileRemover remover(lock_file); // after an error, too
  TokenizeRun run(model, options);
  try {
    return run.run();
  } catch (...) {
    run.clean_up();
    throw;
  }
}

} // namespace tessera::zoo
