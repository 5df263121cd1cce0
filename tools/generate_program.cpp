// SPDX-License-Identifier: Apache-2.0
// `tessera generate --model DIR --input IDS.json --output OUT.json`: generates
// tokens from tokenized prompts.

#include "divided_model.h"
#include "program_main.h"

#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/generation/generate.h"
#include "tessera/zoo/json_fields.h"

#include <torch/types.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::tools {

namespace {

const std::map<std::string, zoo::EarlyStopping> kEarlyStopping{
    {"no", zoo::EarlyStopping::kNo},
    {"yes", zoo::EarlyStopping::kYes},
    {"never", zoo::EarlyStopping::kNever}};

struct GenerateArguments {
  ModelArguments model;
  std::string input;
  std::string output;
};

/// Lists of integers; nullopt if it is anything else.
std::vector<std::vector<int64_t>> texts_of(const nlohmann::json& lists) {
  std::vector<std::vector<int64_t>> texts;
  for (const nlohmann::json& list : lists) {
    const bool are_tokens =
        list.is_array() &&
        std::all_of(list.begin(), list.end(), [](const nlohmann::json& one) {
          return one.is_number_integer();
        });
    if (!are_tokens) {
      return {};
    }
    texts.push_back(list.get<std::vector<int64_t>>());
  }
  return texts;
}

/// Removes tokens whose mask is 0.
void drop_masked(
    const std::string& file,
    const nlohmann::json& mask,
    std::vector<std::vector<int64_t>>& texts) {
  const std::vector<std::vector<int64_t>> kept = texts_of(mask);
  for (size_t row = 0; row < texts.size(); ++row) {
    TESSERA_CHECK(
        kept.size() == texts.size() && kept[row].size() == texts[row].size(),
        "{}: 'attention_mask' is {}; it must have a 0 or 1 for each token of 'input_ids', or be omitted",
        file,
        runtime::show_json(mask));
    std::vector<int64_t> text;
    for (size_t i = 0; i < kept[row].size(); ++i) {
      if (kept[row][i] != 0) {
        text.push_back(texts[row][i]);
      }
    }
    texts[row] = std::move(text);
  }
}

/// Reads sequences of different lengths and pads them on the left.
zoo::ModelInput read_prompt(
    const std::string& file,
    int64_t padding,
    at::Device device) {
  const zoo::JsonFields fields(
      runtime::parse_json(runtime::read_text_file(file), file), file);
  for (const auto& item : fields.object().items()) {
    TESSERA_CHECK(
        item.key() == "input_ids" || item.key() == "attention_mask",
        "{}: unexpected key '{}'; give only 'input_ids', sequences of any lengths",
        file,
        item.key());
  }
  std::vector<std::vector<int64_t>> texts =
      texts_of(fields.object().value("input_ids", nlohmann::json()));
  if (const auto mask = fields.object().find("attention_mask");
      mask != fields.object().end() && !texts.empty()) {
    drop_masked(file, *mask, texts);
  }
  size_t longest = 0;
  for (const auto& text : texts) {
    longest = text.empty() ? SIZE_MAX : std::max(longest, text.size());
  }
  TESSERA_CHECK(
      longest > 0 && longest != SIZE_MAX,
      "{}: 'input_ids' is {}; it must be a list of token sequences of any lengths: [[5, 7], [3]]",
      file,
      fields.object().contains("input_ids")
          ? runtime::show_json(fields.object().at("input_ids"))
          : "missing");
  const auto rows = static_cast<int64_t>(texts.size());
  const auto length = static_cast<int64_t>(longest);
  zoo::ModelInput prompt;
  prompt.input_ids = torch::full({rows, length}, padding, torch::kLong);
  prompt.attention_mask = torch::zeros({rows, length}, torch::kLong);
  bool is_padded = false;
  for (int64_t row = 0; row < rows; ++row) {
    const auto& text = texts[static_cast<size_t>(row)];
    const auto own = static_cast<int64_t>(text.size());
    prompt.input_ids[row]
        .narrow(0, length - own, own)
        .copy_(torch::tensor(text, torch::kLong));
    prompt.attention_mask[row].narrow(0, length - own, own).fill_(1);
    is_padded = is_padded || own < length;
  }
  prompt.input_ids = prompt.input_ids.to(device);
  prompt.attention_mask =
      is_padded ? prompt.attention_mask.to(device) : at::Tensor();
  return prompt;
}

/// Writes sequences without the padding on the left.
/// @param prompt the prompts; empty if the sequences do not contain them.
void write_sequences(
    const std::string& file,
    const at::Tensor& tokens,
    const zoo::ModelInput& prompt) {
  nlohmann::json sequences = nlohmann::json::array();
  const at::Tensor& mask = prompt.attention_mask;
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    const at::Tensor own = tokens[row].contiguous();
    const int64_t* begin = own.const_data_ptr<int64_t>();
    int64_t padding = 0;
    if (mask.defined()) { // of the prompt, which may have several rows
      const int64_t text = row * mask.size(0) / tokens.size(0);
      padding = mask[text].eq(0).sum().item<int64_t>();
    }
    sequences.push_back(
        std::vector<int64_t>(begin + padding, begin + own.numel()));
  }
  runtime::write_file_atomically(
      file, nlohmann::json{{"sequences", sequences}}.dump() + "\n");
}

/// Options of the command line, which override those of the folder.
class GivenOptions {
 public:
  explicit GivenOptions(CLI::App& app) : app_(app) {}

  template <typename Value>
  CLI::Option* add(
      const char* name,
      Value zoo::GenerateOptions::*field,
      const char* help) {
    CLI::Option* option = app_.add_option(name, given_.*field, help);
    take_if_given(option, field);
    return option;
  }
  void add_flag(
      const char* name,
      bool zoo::GenerateOptions::*field,
      const char* help) {
    take_if_given(app_.add_flag(name, given_.*field, help), field);
  }

  /// @throws tessera::Error if an option is given that only affects sampling,
  ///     and sampling is off.
  void check_used(const zoo::GenerateOptions& options) const {
    for (const char* const name :
         {"--temperature", "--top-k", "--top-p", "--min-p", "--seed"}) {
      TESSERA_CHECK(
          options.do_sample || app_.count(name) == 0,
          "{} only affects sampling, which is off; add --sample, or remove it",
          name);
    }
  }

  zoo::GenerateOptions over(zoo::GenerateOptions options) const {
    for (const auto& take : takes_) {
      take(options);
    }
    return options;
  }

 private:
  template <typename Value>
  void take_if_given(
      const CLI::Option* option,
      Value zoo::GenerateOptions::*field) {
    takes_.emplace_back([this, option, field](zoo::GenerateOptions& options) {
      if (option->count() > 0) {
        options.*field = given_.*field;
      }
    });
  }

  CLI::App& app_;
  zoo::GenerateOptions given_;
  std::vector<std::function<void(zoo::GenerateOptions&)>> takes_;
};

} // namespace

int run_generate(int argc, char** argv) {
  CLI::App app(
      "Continues sequences. Options that are not given default to "
      "generation_config.json of the model, or to transformers' defaults",
      "tessera generate");
  GenerateArguments arguments;
  add_model_options(app, arguments.model);
  app.add_option(
         "--input",
         arguments.input,
         "JSON file: {\"input_ids\": [[5, 7], [3]]}, sequences of any lengths")
      ->required();
  app.add_option(
         "--output",
         arguments.output,
         "JSON file to write: {\"sequences\": [[...], [...]]}; the results for "
         "one input sequence follow each other")
      ->required();
  using Options = zoo::GenerateOptions;
  GivenOptions given(app);
  given.add(
      "--max-new-tokens",
      &Options::max_new_tokens,
      "Maximum number of new tokens per sequence");
  given.add(
      "--min-new-tokens",
      &Options::min_new_tokens,
      "Minimum number of new tokens before a sequence may end");
  given.add(
      "--repetition-penalty",
      &Options::repetition_penalty,
      "Above 1: tokens already in the sequence become less likely");
  given.add(
      "--no-repeat-ngram-size",
      &Options::no_repeat_ngram_size,
      "Do not repeat any sequence of this many tokens; 0: off");
  given.add_flag(
      "--sample,!--greedy",
      &Options::do_sample,
      "Sample tokens, or always take the most likely one");
  given.add(
      "--temperature",
      &Options::temperature,
      "Divides the logits when sampling");
  given.add(
      "--top-k",
      &Options::top_k,
      "Sample from this many most likely tokens; 0: from all");
  given.add(
      "--top-p",
      &Options::top_p,
      "Sample from the most likely tokens with this total probability");
  given.add(
      "--min-p",
      &Options::min_p,
      "Sample from tokens with at least this fraction of the highest probability");
  given.add("--seed", &Options::seed, "Seed of the random number generator");
  given.add(
      "--num-beams",
      &Options::num_beams,
      "Above 1: beam search with this many beams");
  given.add(
      "--length-penalty",
      &Options::length_penalty,
      "Beam search: above 0 favors long sequences");
  given
      .add(
          "--early-stopping",
          &Options::early_stopping,
          "Beam search: yes stops once as many sequences have ended as there "
          "are beams, no stops when a better one is unlikely, never when none "
          "is possible")
      ->transform(CLI::CheckedTransformer(kEarlyStopping)
                      .description("no, yes or never"));
  given.add(
      "--num-return-sequences",
      &Options::num_return_sequences,
      "Results per input sequence: the best beams, or samples");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  const zoo::GenerateOptions options =
      given.over(zoo::generate_options(arguments.model.model));
  options.check();
  given.check_used(options);

  DividedModel divided(arguments.model);
  const zoo::ModelInput prompt =
      read_prompt(arguments.input, options.pad_token_id, divided.device());
  const at::Tensor tokens =
      zoo::generate(divided.model(), prompt, options, &divided.parallel());
  if (divided.tells()) {
    write_sequences(
        arguments.output,
        tokens,
        divided.model().first_token() ? zoo::ModelInput() : prompt);
  }
  return 0;
}

} // namespace tessera::tools
