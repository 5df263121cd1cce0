// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/tokenized_data.h"

#include "tessera/engine/trainer/job_agreement.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/tasks/language_model_task.h"
#include "tessera/text/rows/data_format.h"
#include "tessera/zoo/data/tokenize_files.h"
#include "tessera/zoo/formats/hf_folder_writer.h"

#include <chrono>
#include <functional>
#include <utility>

namespace tessera::tasks {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// The tokenizer that the model is trained with.
fs::path tokenizer_of(const TrainingConfig& config) {
  const fs::path& given =
      config.as<LanguageModelOptions>().tokens.objective.tokenizer;
  TESSERA_CHECK(
      !given.empty() || zoo::has_tokenizer(config.model_folder),
      "data.train or data.heldout is text, and {}; name a folder or file of a tokenizer in data.tokenizer",
      config.model_folder.empty()
          ? std::string("a newly initialized model has no tokenizer")
          : formatted(
                "model.folder, '{}', has no tokenizer",
                config.model_folder.string()));
  return given.empty() ? config.model_folder : given;
}

/// "'texts/*.txt' and 2 others".
std::string names_text(const std::vector<std::string>& names) {
  std::string text = "'" + names.front() + "'";
  if (names.size() > 1) {
    text += formatted(" and {} more", names.size() - 1);
  }
  return text;
}

/// Calls `go_on` and logs how far the work is, now and then.
class TokenizeLog {
 public:
  TokenizeLog(std::string names, std::function<void()> go_on)
      : names_(std::move(names)), go_on_(std::move(go_on)) {}

  void show(const zoo::TokenizeProgress& progress) {
    const auto now = Clock::now();
    if (now - called_ > std::chrono::seconds(1)) {
      called_ = now;
      go_on_();
    }
    if (now - shown_ > std::chrono::seconds(10)) {
      shown_ = now;
      log_info(
          "tokenizing {}: {:.1f} of {:.1f} MB, {}",
          names_,
          static_cast<double>(progress.bytes) * 1e-6,
          static_cast<double>(progress.total_bytes) * 1e-6,
          runtime::count_text(progress.tokens, "token"));
    }
  }

 private:
  std::string names_;
  std::function<void()> go_on_;
  Clock::time_point called_ = Clock::now();
  Clock::time_point shown_ = called_;
};

void log_files(
    const std::vector<std::string>& names,
    const zoo::TokenizeResult& result) {
  const auto& progress = result.progress;
  log_info(
      "{} {}: {}, {}{} in '{}'",
      result.is_reused ? "text already tokenized," : "tokenized",
      names_text(names),
      runtime::count_text(progress.documents, "document"),
      runtime::count_text(progress.tokens, "token"),
      progress.bad_rows == 0
          ? ""
          : formatted(
                ", {} skipped",
                runtime::count_text(progress.bad_rows, "bad row")),
      result.outputs.front().string());
}

} // namespace

bool are_texts(const std::vector<std::string>& names) {
  if (names.size() != 1) {
    return !names.empty();
  }
  const fs::path path = names.front();
  const bool is_pattern =
      path.string().find_first_of("*?[") != std::string::npos &&
      !fs::exists(path);
  return is_pattern || text::is_text_file(path);
}

void tokenize_data(TrainingConfig& config, World& world, ModelState state) {
  const zoo::TokenDataOptions& options =
      config.as<LanguageModelOptions>().tokens;
  const fs::path folder = options.text_folder.empty()
                              ? config.trainer.run_folder / "tokens"
                              : options.text_folder;
  const bool reads_training =
      state != ModelState::kTrained || options.split > 0;
  struct Part {
    std::vector<std::string>& names;
    const char* name;
    bool is_read;
  };
  for (const Part& part :
       {Part{config.data.train, "train", reads_training},
        Part{config.data.heldout, "heldout", true}}) {
    if (!are_texts(part.names)) {
      continue;
    }
    const fs::path file = folder / part.name;
    const auto names = std::exchange(part.names, {file.string()});
    if (!part.is_read) {
      continue;
    }
    engine::JobAgreement(world, "tokens of text")
        .by_rank_zero(
            "tokenizing " + names_text(names),
            [&](const std::function<void()>& go_on) {
              zoo::TokenizeOptions of_part = options.text;
              of_part.inputs = names;
              of_part.output = file;
              of_part.earlier = zoo::EarlierTokens::kReuse;
              TokenizeLog log(names_text(names), go_on);
              of_part.progress = [&](const zoo::TokenizeProgress& progress) {
                log.show(progress);
              };
              log_files(
                  names, zoo::tokenize_files(tokenizer_of(config), of_part));
            });
  }
}

} // namespace tessera::tasks
