// SPDX-License-Identifier: Apache-2.0
// `tessera generate --model DIR --prompt TEXT`: continues texts, answers in
// conversations (--chat), and continues token sequences.

#include "chat_session.h"
#include "divided_model.h"
#include "generate_options.h"
#include "program_main.h"
#include "shared_text.h"
#include "text_source.h"

#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/json_file.h"
#include "tessera/text/chat/chat_prompt.h"
#include "tessera/zoo/formats/hf_folder_writer.h"
#include "tessera/zoo/generation/generate.h"
#include "tessera/zoo/generation/prompt_batch.h"
#include "tessera/zoo/generation/text_generator.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tools {

namespace {

/// New tokens of a text if nothing else is said: a paragraph.
constexpr int64_t kMostNewTokens = 256;

struct GenerateArguments {
  ModelArguments model;
  std::vector<std::string> prompts;
  std::string input;
  std::string output;
  std::string text_key = "prompt";
  std::string tokenizer; ///< folder or file; empty: that of the model
  size_t batch_size = 8;
  bool skip_special_tokens = true;
  bool is_chat = false;
  std::string system;

  bool are_tokens() const {
    return input.ends_with(".json");
  }
  bool is_conversation() const {
    return is_chat && input.empty() && prompts.empty();
  }
};

/// Lists of integers; empty if it is anything else.
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

/// Reads token sequences of different lengths.
std::vector<std::vector<int64_t>> read_sequences(const std::string& file) {
  const auto fields = runtime::json_object(
      runtime::parse_json(runtime::read_text_file(file), file), file);
  for (const auto& item : fields.value().items()) {
    TESSERA_CHECK(
        item.key() == "input_ids" || item.key() == "attention_mask",
        "{}: unexpected key '{}'; give only 'input_ids', sequences of any lengths; for texts, give JSON lines in a file .jsonl, {{\"prompt\": \"...\"}}",
        file,
        item.key());
  }
  std::vector<std::vector<int64_t>> texts =
      texts_of(fields.value().value("input_ids", nlohmann::json()));
  if (const auto mask = fields.value().find("attention_mask");
      mask != fields.value().end() && !texts.empty()) {
    drop_masked(file, *mask, texts);
  }
  const bool has_empty =
      std::any_of(texts.begin(), texts.end(), [](const auto& text) {
        return text.empty();
      });
  TESSERA_CHECK(
      !texts.empty() && !has_empty,
      "{}: 'input_ids' is {}; it must be a list of token sequences of any lengths: [[5, 7], [3]]",
      file,
      fields.value().contains("input_ids")
          ? runtime::show_json(fields.value().at("input_ids"))
          : "missing");
  return texts;
}

void generate_tokens(
    const GenerateArguments& arguments,
    zoo::GenerateOptions options) {
  TESSERA_CHECK(
      !arguments.output.empty(),
      "--output is missing; token sequences of '{}' need a file to write",
      arguments.input);
  const auto prompts = read_sequences(arguments.input);
  DividedModel divided(arguments.model);
  zoo::Model& model = divided.model();
  nlohmann::json sequences = nlohmann::json::array();
  for (size_t begin = 0; begin < prompts.size();
       begin += arguments.batch_size) {
    const size_t end = std::min(begin + arguments.batch_size, prompts.size());
    options.prompt_numbers.resize(end - begin);
    std::iota(
        options.prompt_numbers.begin(),
        options.prompt_numbers.end(),
        static_cast<int64_t>(begin));
    const zoo::ModelInput batch = zoo::prompt_batch(
        {prompts.begin() + static_cast<std::ptrdiff_t>(begin),
         prompts.begin() + static_cast<std::ptrdiff_t>(end)},
        std::max<int64_t>(0, options.pad_token_id),
        divided.device());
    const at::Tensor tokens =
        zoo::generate(model, batch, options, &divided.parallel());
    for (int64_t row = 0; row < tokens.size(0); ++row) {
      const auto prompt =
          begin + static_cast<size_t>(row / options.num_return_sequences);
      std::vector<int64_t> sequence =
          model.first_token()
              ? std::vector<int64_t>{tokens[row][0].item<int64_t>()}
              : prompts[prompt];
      const auto added = zoo::new_tokens_of(model, options, batch, tokens, row);
      sequence.insert(sequence.end(), added.begin(), added.end());
      sequences.push_back(std::move(sequence));
    }
  }
  if (divided.reports()) {
    runtime::write_file_atomically(
        arguments.output,
        nlohmann::json{{"sequences", sequences}}.dump() + "\n");
  }
}

/// Prompts or conversations, and how they are shown.
struct Asked {
  std::string prompt; ///< as the model is given it
  nlohmann::ordered_json shown; ///< {"prompt": ...} or {"messages": ...}
};

/// Reads what is asked, in batches.
class AskedTexts {
 public:
  AskedTexts(
      const GenerateArguments& arguments,
      const text::ChatPrompt* chat,
      World& world)
      : arguments_(arguments), chat_(chat), shared_(world) {
    if (world.rank() != 0) {
      return;
    }
    if (chat != nullptr && !arguments.input.empty()) {
      read_conversations();
    } else {
      source_.emplace(
          arguments.prompts,
          arguments.input,
          std::vector<std::string>{arguments.text_key});
    }
  }

  /// Empty after the last one. Collective.
  std::vector<Asked> next() {
    const auto batch = shared_.next([&] { return read_batch(); });
    std::vector<Asked> all;
    if (batch) {
      for (const auto& one : nlohmann::ordered_json::parse(*batch)) {
        all.push_back({one.at(0).get<std::string>(), one.at(1)});
      }
    }
    return all;
  }

 private:
  nlohmann::ordered_json with_system(nlohmann::ordered_json messages) const {
    if (!arguments_.system.empty() && messages.is_array()) {
      messages.insert(
          messages.begin(),
          nlohmann::ordered_json{
              {"role", "system"}, {"content", arguments_.system}});
    }
    return messages;
  }

  void read_conversations() {
    const std::string& file = arguments_.input;
    const std::string text = runtime::read_text_file(file);
    int64_t number = 0;
    for (size_t begin = 0; begin < text.size(); ++number) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      if (line.find_first_not_of(" \t\r") == std::string::npos) {
        continue;
      }
      const auto fields = runtime::json_object(
          runtime::parse_json(line, file, number + 1),
          formatted("{}:{}", file, number + 1));
      TESSERA_CHECK(
          fields.contains("messages"),
          "{} has no 'messages'; --chat takes lines of {{\"messages\": [{{\"role\": \"user\", \"content\": \"Hi\"}}]}}",
          fields.place());
      // The order of keys is kept: templates show it.
      const auto row = nlohmann::ordered_json::parse(line);
      const auto tools = row.value("tools", nlohmann::ordered_json());
      const auto messages = with_system(row.at("messages"));
      const auto read =
          chat_->with_read_contents(messages, fields.place(), tools);
      chat_->warn_of_unwritten_keys(read, fields.place(), tools);
      asked_.push_back(
          {chat_->render(read, fields.place(), tools),
           {{"messages", messages}}});
    }
    TESSERA_CHECK(!asked_.empty(), "'{}' is empty", file);
  }

  /// The next ones as JSON: [[prompt, shown], ...].
  std::optional<std::string> read_batch() {
    auto batch = nlohmann::ordered_json::array();
    const auto add = [&](const Asked& one) {
      batch.push_back({one.prompt, one.shown});
    };
    if (source_) {
      for (const auto& text : source_->next_texts(arguments_.batch_size)) {
        if (chat_ == nullptr) {
          add({text, {{"prompt", text}}});
          continue;
        }
        auto messages = nlohmann::ordered_json::array();
        messages.push_back(
            nlohmann::ordered_json{{"role", "user"}, {"content", text}});
        messages = with_system(std::move(messages));
        add({chat_->render(messages, "--prompt"), {{"messages", messages}}});
      }
    } else {
      for (; used_ < asked_.size() && batch.size() < arguments_.batch_size;
           ++used_) {
        add(asked_[used_]);
      }
    }
    // Bytes of a text that are not UTF-8 become U+FFFD, as when it is encoded.
    return batch.empty()
               ? std::nullopt
               : std::optional(batch.dump(
                     -1,
                     ' ',
                     false,
                     nlohmann::ordered_json::error_handler_t::replace));
  }

  const GenerateArguments& arguments_;
  const text::ChatPrompt* chat_;
  SharedText shared_;
  std::optional<TextSource> source_; ///< on rank 0
  std::vector<Asked> asked_; ///< conversations of a file, on rank 0
  size_t used_ = 0;
};

/// Prints texts, or collects them for a file.
class TextWriter {
 public:
  TextWriter(const GenerateArguments& arguments, size_t copies, bool writes)
      : arguments_(arguments), copies_(copies), writes_(writes) {}

  /// Whether a single text appears as it is generated.
  bool streams(const std::vector<Asked>& batch) const {
    return writes_ && arguments_.output.empty() && copies_ == 1 &&
           batch.size() == 1;
  }

  static void stream(std::string_view fragment) {
    std::fwrite(fragment.data(), 1, fragment.size(), stdout);
    std::fflush(stdout);
  }

  void write(
      const std::vector<Asked>& batch,
      const std::vector<zoo::GeneratedText>& texts,
      bool is_streamed) {
    if (!writes_) {
      return;
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      if (!arguments_.output.empty()) {
        nlohmann::ordered_json line = batch[i / copies_].shown;
        line["text"] = texts[i].text;
        line["finish_reason"] = name_of(texts[i].reason);
        line["new_tokens"] = texts[i].tokens.size();
        lines_ += line.dump(
                      -1,
                      ' ',
                      false,
                      nlohmann::ordered_json::error_handler_t::replace) +
                  "\n";
      } else if (is_streamed) {
        stream("\n");
      } else {
        stream(formatted("[{}] {}\n", ++printed_, texts[i].text));
      }
    }
  }

  void finish() const {
    if (writes_ && !arguments_.output.empty()) {
      runtime::write_file_atomically(arguments_.output, lines_);
    }
  }

 private:
  const GenerateArguments& arguments_;
  size_t copies_;
  bool writes_;
  std::string lines_;
  int64_t printed_ = 0;
};

text::Tokenizer tokenizer_of(const GenerateArguments& arguments) {
  const std::string& given = arguments.tokenizer;
  if (!given.empty()) {
    return text::Tokenizer::from_path(given);
  }
  const std::string& folder = arguments.model.model;
  TESSERA_CHECK(
      !std::filesystem::is_directory(folder) || zoo::has_tokenizer(folder),
      "'{}' has no tokenizer; name the one that made the model's training data with --tokenizer (`tessera tokenize` keeps it in PREFIX.tokenizer/), or copy its files there",
      folder);
  return text::Tokenizer::from_folder(folder);
}

void generate_texts(
    const GenerateArguments& arguments,
    const zoo::TextOptions& options) {
  const auto tokenizer = tokenizer_of(arguments);
  std::optional<text::ChatPrompt> chat;
  if (arguments.is_chat) {
    chat.emplace(
        tokenizer.settings(),
        arguments.tokenizer.empty() ? arguments.model.model
                                    : arguments.tokenizer);
  }
  DividedModel divided(arguments.model);
  const zoo::TextGenerator generator(
      divided.model(),
      tokenizer,
      options,
      divided.device(),
      &divided.parallel());
  if (arguments.is_conversation()) {
    SharedText typed(divided.world());
    hold_chat(generator, *chat, arguments.system, typed, divided.is_first());
    return;
  }
  AskedTexts asked(arguments, chat ? &*chat : nullptr, divided.world());
  TextWriter writer(
      arguments,
      static_cast<size_t>(options.tokens.num_return_sequences),
      divided.is_first());
  int64_t answered = 0;
  for (auto batch = asked.next(); !batch.empty(); batch = asked.next()) {
    std::vector<std::string> prompts;
    for (const Asked& one : batch) {
      prompts.push_back(one.prompt);
    }
    const bool streams = writer.streams(batch);
    writer.write(
        batch,
        generator.generate(
            prompts,
            [&](size_t, std::string_view fragment) {
              if (streams) {
                TextWriter::stream(fragment);
              }
            },
            nullptr,
            answered),
        streams);
    answered += static_cast<int64_t>(batch.size());
  }
  writer.finish();
}

void add_text_options(CLI::App& app, GenerateArguments& arguments) {
  app.add_option(
         "--prompt",
         arguments.prompts,
         "Text to continue; may be given several times. Without it and --input: "
         "lines of standard input")
      ->allow_extra_args(false);
  app.add_option(
      "--input",
      arguments.input,
      "File of one prompt per line, or of JSON objects {\"prompt\": ...}, with "
      "--chat {\"messages\": [...], \"tools\": [...]}; a file .json has token sequences of any "
      "lengths: {\"input_ids\": [[5, 7], [3]]}");
  app.add_option(
      "--output",
      arguments.output,
      "File of JSON lines to write instead of printing: {\"prompt\", \"text\", "
      "\"finish_reason\", \"new_tokens\"}; for token sequences "
      "{\"sequences\": [[...], [...]]}. The results for one prompt follow each "
      "other");
  app.add_option(
      "--text-key",
      arguments.text_key,
      "Key of the prompt in JSON objects; default: prompt");
  app.add_option(
      "--tokenizer",
      arguments.tokenizer,
      "Folder or file of the tokenizer; default: the one in the model's folder");
  app.add_option(
         "--batch-size",
         arguments.batch_size,
         "Prompts that are processed together; default: 8")
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
  app.add_flag(
      "--skip-special-tokens,!--keep-special-tokens",
      arguments.skip_special_tokens,
      "Leave special tokens out of the texts, or not");
  CLI::Option* chat = app.add_flag(
      "--chat",
      arguments.is_chat,
      "Answer messages, by the chat template of the model's tokenizer: of "
      "--prompt, of --input, or in a conversation");
  app.add_option(
         "--system",
         arguments.system,
         "The message of the system that a conversation begins with")
      ->needs(chat);
}

} // namespace

int run_generate(int argc, char** argv) {
  CLI::App app(
      "Continues texts. Options that are not given default to "
      "generation_config.json of the model, or to transformers' defaults, but "
      "texts have up to 256 new tokens",
      "tessera generate");
  GenerateArguments arguments;
  add_model_options(app, arguments.model);
  add_text_options(app, arguments);
  const GivenOptions given(app);
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  if (arguments.are_tokens()) {
    TESSERA_CHECK(
        !arguments.is_chat && arguments.prompts.empty(),
        "--input '{}' has token sequences, which go with neither --chat nor --prompt; name a file of JSON lines .jsonl",
        arguments.input);
    const auto options = given.over(arguments.model.model, {});
    given.run([&] { generate_tokens(arguments, options); });
    return 0;
  }
  zoo::GenerateOptions defaults;
  defaults.max_new_tokens = kMostNewTokens;
  zoo::TextOptions options;
  options.tokens = given.over(arguments.model.model, defaults);
  options.add_special_tokens = !arguments.is_chat;
  options.skip_special_tokens = arguments.skip_special_tokens;
  options.tokens.fit_to_model = !given.is_given("--max-new-tokens");
  given.run([&] { generate_texts(arguments, options); });
  return 0;
}

} // namespace tessera::tools
