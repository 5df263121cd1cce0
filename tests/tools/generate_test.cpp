// SPDX-License-Identifier: Apache-2.0
// `tessera generate` as a user runs it, on one rank and on several.
#include "support/paths.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/zoo/generation/blanks.h"
#include "tessera/zoo/models/pretrained.h"
#include "tools/run_forked.h"
#include "tools/run_program.h"
#include "zoo/scaled_glm.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace tessera::generate_test {

namespace {

using tests::read_json;

std::filesystem::path fixtures() {
  return std::filesystem::path(tests::source_dir()) / "tests/zoo/fixtures";
}

/// A case of LLaMA of the fixture.
nlohmann::json reference(const std::string& way = "penalty") {
  for (const auto& one : read_json(fixtures() / "generation.json")) {
    if (one.at("model") == "llama" && one.at("way") == way) {
      return one;
    }
  }
  return {};
}

/// The texts of a batch without their padding.
nlohmann::json texts_of(const nlohmann::json& batch) {
  nlohmann::json texts;
  for (size_t row = 0; row < batch.at("input_ids").size(); ++row) {
    nlohmann::json text;
    for (size_t i = 0; i < batch["input_ids"][row].size(); ++i) {
      if (batch["attention_mask"][row][i] == 1) {
        text.push_back(batch["input_ids"][row][i]);
      }
    }
    texts.push_back(text);
  }
  return texts;
}

std::vector<std::string> command(
    const std::filesystem::path& input,
    const std::filesystem::path& output,
    const std::filesystem::path& model = fixtures() / "models/llama") {
  return {
      "generate",
      "--model",
      model.string(),
      "--input",
      input.string(),
      "--output",
      output.string()};
}

/// A model with the tokenizer of the fixture.
/// @param name empty: the tokenizer alone.
void write_model(
    const std::filesystem::path& folder,
    const std::string& name = "llama") {
  for (const auto& from :
       {fixtures() / "models" / name, fixtures() / "text_generation"}) {
    if (name.empty() && from != fixtures() / "text_generation") {
      continue;
    }
    std::filesystem::copy(
        from,
        folder,
        std::filesystem::copy_options::recursive |
            std::filesystem::copy_options::overwrite_existing);
  }
}

/// What a case of the fixture of texts has.
nlohmann::json texts_case(const std::string& model, const std::string& way) {
  const nlohmann::json all =
      read_json(fixtures() / "text_generation/texts.json");
  for (nlohmann::json one : all.at("cases")) {
    if (one.at("model") == model && one.at("way") == way) {
      one["prompts"] = all.at("prompts");
      return one;
    }
  }
  return {};
}

nlohmann::json read_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  nlohmann::json lines = nlohmann::json::array();
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

std::vector<std::string> text_command(
    const std::filesystem::path& model,
    const std::vector<std::string>& more) {
  std::vector<std::string> words{"generate", "--model", model.string()};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Lets what a command types come from a file.
void type(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file) << text;
  ASSERT_NE(std::freopen(file.c_str(), "r", stdin), nullptr);
  std::cin.clear();
}

} // namespace

// From text to text, alone and divided; a pipeline has the texts on its last
// rank, but rank 0 prints.
TEST(Generate, ContinuesTextsOnAnyLayout) {
  const TemporaryFolder folder;
  write_model(folder / "model");
  const nlohmann::json expected = texts_case("llama", "stops");
  {
    std::ofstream lines(folder / "prompts.jsonl");
    for (const auto& prompt : expected["prompts"]) {
      lines << nlohmann::json{{"prompt", prompt}} << "\n\n";
    }
  }
  const std::vector<std::string> options{
      "--max-new-tokens",
      "8",
      "--repetition-penalty",
      "1.5",
      "--stop",
      "zq",
      "--stop",
      "h",
      "--stop",
      " the"};
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, std::vector<std::string>>>{
           {1, {}},
           {2, {}},
           {2, {"--pipeline", "2"}},
           {4, {"--tensor", "2", "--pipeline", "2"}}}) {
    auto words = text_command(
        folder / "model",
        {"--input",
         (folder / "prompts.jsonl").string(),
         "--output",
         (folder / "out.jsonl").string(),
         "--batch-size",
         "2"});
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), layout.begin(), layout.end());
    const auto result = tests::run_forked(ranks, words);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    const nlohmann::json lines = read_lines(folder / "out.jsonl");
    ASSERT_EQ(lines.size(), 3U);
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i]["prompt"], expected["prompts"][i]);
      EXPECT_EQ(lines[i]["text"], expected["results"][i]["text"]) << ranks;
      EXPECT_EQ(lines[i]["finish_reason"], expected["results"][i]["reason"]);
      EXPECT_EQ(
          lines[i]["new_tokens"], expected["results"][i]["tokens"].size());
    }
    std::filesystem::remove(folder / "out.jsonl");
    // One prompt, to the terminal.
    words = text_command(folder / "model", {"--prompt", "an"});
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), layout.begin(), layout.end());
    const auto printed = tests::run_forked(ranks, words);
    ASSERT_EQ(printed.exit_code, 0) << printed.output;
    EXPECT_EQ(
        printed.output,
        expected["results"][1]["text"].get<std::string>() + "\n");
  }
}

TEST(Generate, ReadsTextsFromAnywhere) {
  const TemporaryFolder folder;
  write_model(folder / "model", "t5");
  const nlohmann::json expected = texts_case("t5", "greedy");
  std::string typed;
  std::string printed;
  std::vector<std::string> given{"--max-new-tokens", "8"};
  for (size_t i = 0; i < 3; ++i) {
    const std::string prompt = expected["prompts"][i];
    given.insert(given.end(), {"--prompt", prompt});
    typed += prompt + "\r\n\n";
    printed += "[" + std::to_string(i + 1) + "] " +
               expected["results"][i]["text"].get<std::string>() + "\n";
  }
  const auto as_options =
      tests::run_forked(1, text_command(folder / "model", given));
  EXPECT_EQ(as_options.output, printed);
  std::ofstream(folder / "prompts.txt") << typed;
  const auto from_file = tests::run_forked(
      1,
      text_command(
          folder / "model",
          {"--max-new-tokens",
           "8",
           "--input",
           (folder / "prompts.txt").string()}));
  const auto expect_printed = [&](const std::string& output) {
    // Ranks print into one stream; the warning may stand before the results.
    std::string rest = output;
    const size_t at = rest.find("tessera: ");
    ASSERT_NE(at, std::string::npos) << output;
    const size_t end = rest.find('\n', at) + 1;
    EXPECT_NE(
        rest.substr(at, end - at).find("warning: 2 empty lines of "),
        std::string::npos)
        << output;
    EXPECT_EQ(rest.erase(at, end - at), printed);
  };
  expect_printed(from_file.output);
  for (const int ranks : {1, 2}) { // standard input is that of rank 0
    type(folder / "typed", typed);
    const auto from_input = tests::run_forked(
        ranks, text_command(folder / "model", {"--max-new-tokens", "8"}));
    expect_printed(from_input.output);
  }
}

TEST(Generate, BlankTextsArePrompts) {
  const TemporaryFolder folder;
  write_model(folder / "model");
  for (const char* prompt : {"", " "}) {
    const auto result = tests::run_forked(
        1,
        text_command(
            folder / "model", {"--prompt", prompt, "--max-new-tokens", "2"}));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(result.output.find("is empty"), std::string::npos)
        << result.output;
  }
}

TEST(Generate, TemplatesSeeTheToolsOfARow) {
  const TemporaryFolder folder;
  const auto model = folder / "model";
  write_model(model);
  std::ofstream(model / "chat_template.jinja")
      << "{% if tools %}{{ tools[0].function.name }}{% else %}he{% endif %}";
  const std::string row = R"({"messages": [{"role": "user", "content": "x"}])";
  std::ofstream(folder / "chats.jsonl")
      << row << "}\n"
      << row << R"(, "tools": [{"function": {"name": "the cat"}}]})"
      << "\n"
      << row << R"(, "tools": [{"function": {"name": "he"}}]})"
      << "\n";
  const auto result = tests::run_forked(
      1,
      text_command(
          model,
          {"--chat",
           "--input",
           (folder / "chats.jsonl").string(),
           "--output",
           (folder / "out.jsonl").string(),
           "--max-new-tokens",
           "4"}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json lines = read_lines(folder / "out.jsonl");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_NE(lines[0]["text"], lines[1]["text"]);
  EXPECT_EQ(lines[0]["text"], lines[2]["text"]);
}

TEST(Generate, AnswersInAConversation) {
  const TemporaryFolder folder;
  write_model(folder / "model");
  const auto model = folder / "model";
  const auto fails = [&](const std::vector<std::string>& more,
                         const char* expected) {
    const auto result = tests::run_forked(1, text_command(model, more));
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.output.find(expected), std::string::npos) << result.output;
  };
  fails({"--chat", "--prompt", "an"}, "has no chat template");
  std::ofstream(model / "chat_template.jinja")
      << "{% for m in messages %}{{ m.content }}{% if m.role == 'system' %}, {% endif %}{% endfor %}";
  // Without special tokens: the template has none.
  const auto answer = [&](const std::string& prompt) {
    nlohmann::json config =
        read_json(fixtures() / "text_generation/tokenizer.json");
    config["post_processor"] = nullptr;
    const auto plain = folder / "plain";
    write_model(plain);
    std::ofstream(plain / "tokenizer.json") << config;
    const auto result = tests::run_forked(
        1, text_command(plain, {"--prompt", prompt, "--max-new-tokens", "4"}));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.output;
  };
  const std::string first = answer("the cat");
  const std::string second =
      answer("the cat" + first.substr(0, first.size() - 1) + "an");
  const std::string other = answer("an");
  ASSERT_NE(second, other);
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, std::vector<std::string>>>{
           {1, {}}, {4, {"--tensor", "2", "--pipeline", "2"}}}) {
    type(folder / "typed", "the cat\n\nan\n/reset\nan\n/exit\nin\n");
    std::vector<std::string> more{"--chat", "--max-new-tokens", "4"};
    more.insert(more.end(), layout.begin(), layout.end());
    const auto result = tests::run_forked(ranks, text_command(model, more));
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.output, first + second + other);
  }
  std::ofstream(folder / "chats.jsonl")
      << R"({"messages": [{"role": "user", "content": "an"}]})"
      << "\n"
      << R"({"messages": [{"role": "user", "content": "in"}]})"
      << "\n";
  const auto result = tests::run_forked(
      1,
      text_command(
          model,
          {"--chat",
           "--system",
           "he",
           "--input",
           (folder / "chats.jsonl").string(),
           "--output",
           (folder / "out.jsonl").string(),
           "--max-new-tokens",
           "4"}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json lines = read_lines(folder / "out.jsonl");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1]["text"].get<std::string>() + "\n", answer("he, in"));
  EXPECT_EQ(lines[1]["messages"].size(), 2U);
  // The template takes contents for texts; messages are shown as given.
  const std::string parts = R"([{"type": "text", "text": "an"}])";
  std::ofstream(folder / "parts.jsonl")
      << R"({"messages": [{"role": "user", "content": )" << parts << "}]}\n";
  const auto of_parts = tests::run_forked(
      1,
      text_command(
          model,
          {"--chat",
           "--input",
           (folder / "parts.jsonl").string(),
           "--output",
           (folder / "out.jsonl").string(),
           "--max-new-tokens",
           "4"}));
  ASSERT_EQ(of_parts.exit_code, 0) << of_parts.output;
  const nlohmann::json shown = read_lines(folder / "out.jsonl");
  EXPECT_EQ(shown[0]["text"].get<std::string>() + "\n", other);
  EXPECT_EQ(shown[0]["messages"][0]["content"], nlohmann::json::parse(parts));
  type(folder / "typed", "/what\nan\n");
  const auto mistyped = tests::run_forked(
      1, text_command(model, {"--chat", "--max-new-tokens", "4"}));
  EXPECT_EQ(
      mistyped.output,
      "'/what' is no command; there are /reset and /exit\n" + other);
  std::ofstream(folder / "chats.jsonl") << "{\"messages\": 1}\n";
  const std::string input = (folder / "chats.jsonl").string();
  fails({"--chat", "--input", input}, "chats.jsonl:1: 'messages' is 1");
  std::ofstream(folder / "chats.jsonl") << "\n{\"prompt\": 1}\n";
  fails({"--chat", "--input", input}, "chats.jsonl:2 has no 'messages'");
  fails({"--system", "x", "--prompt", "an"}, "--system requires --chat");
}

// GLM whole: from marks in a text to the text with its blanks filled.
TEST(Generate, FillsBlanksOnAnyLayout) {
  const TemporaryFolder folder;
  const nlohmann::json all =
      read_json(fixtures() / "text_generation/blanks.json");
  tests::run_ranks(1, [&](World&) { // LibTorch does not run in this process
    const auto model = zoo::from_pretrained(fixtures() / "models/glm_2021");
    tests::scale_glm(*model, all["scales"]);
    zoo::save_pretrained(*model, folder / "scaled");
  });
  write_model(folder / "scaled", "");
  std::vector<std::string> prompts{"--max-new-tokens", "6"};
  std::string expected;
  for (size_t i = 0; i < all["cases"].size(); ++i) {
    const nlohmann::json& one = all["cases"][i];
    prompts.insert(prompts.end(), {"--prompt", one["prompt"]});
    expected += "[" + std::to_string(i + 1) + "] " +
                zoo::with_blanks_filled(
                    one["prompt"].get<std::string>(), one["texts"]) +
                "\n";
  }
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, std::vector<std::string>>>{
           {1, {}}, {4, {"--tensor", "2", "--pipeline", "2"}}, {2, {}}}) {
    auto words = text_command(folder / "scaled", prompts);
    words.insert(words.end(), layout.begin(), layout.end());
    const auto result = tests::run_forked(ranks, words);
    EXPECT_EQ(result.output, expected) << ranks;
  }
}

TEST(Generate, GoesOnAsTransformersDoes) {
  const TemporaryFolder folder;
  const nlohmann::json expected = reference();
  std::ofstream(folder / "texts.json")
      << nlohmann::json{{"input_ids", texts_of(expected)}};
  const auto check = [&](int ranks, const std::vector<std::string>& more) {
    auto arguments = command(folder / "texts.json", folder / "out.json");
    arguments.insert(
        arguments.end(),
        {"--max-new-tokens", "9", "--repetition-penalty", "1.7"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = tests::run_forked(ranks, arguments);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    // The fixture ends and pads with other tokens than the folder says.
    const nlohmann::json found = read_json(folder / "out.json").at("sequences");
    ASSERT_EQ(found.size(), 3U);
    for (size_t row = 0; row < 3; ++row) {
      const int end = expected["options"]["eos_token_id"];
      const nlohmann::json& sequence = expected["sequences"][row];
      const auto& mask = expected["attention_mask"][row];
      const auto padding =
          static_cast<size_t>(std::count(mask.begin(), mask.end(), 0));
      for (size_t i = padding; i < sequence.size(); ++i) {
        EXPECT_EQ(found[row][i - padding], sequence[i]);
        if (i >= mask.size() && (sequence[i] == end || sequence[i] == 2)) {
          break;
        }
      }
    }
    std::filesystem::remove(folder / "out.json");
  };
  check(1, {});
  check(2, {"--pipeline", "2"});
  check(4, {"--tensor", "2", "--pipeline", "2"});
}

// Greedily, by beams and drawn: texts and token sequences are those of any
// other batches, on one rank and on several.
TEST(Generate, DoesNotDependOnTheBatchSize) {
  const TemporaryFolder folder;
  write_model(folder / "model");
  std::ofstream(folder / "prompts.txt")
      << "the cat\nan\nhe on the ring\nx\nthe ring on\n";
  std::ofstream(folder / "tokens.json")
      << R"({"input_ids": [[5, 7, 11, 7], [13], [7, 2, 2, 9, 9, 2], [21, 2]]})";
  const auto written = [&](int ranks,
                           const std::string& input,
                           const std::string& batch_size,
                           const std::vector<std::string>& more) {
    const auto out = folder / "out";
    auto words = text_command(
        folder / "model",
        {"--input",
         (folder / input).string(),
         "--output",
         out.string(),
         "--max-new-tokens",
         "6",
         "--no-repeat-ngram-size",
         "1",
         "--batch-size",
         batch_size});
    words.insert(words.end(), more.begin(), more.end());
    const auto result = tests::run_forked(ranks, words);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::ifstream file(out);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  for (const std::string input : {"prompts.txt", "tokens.json"}) {
    for (const auto& way : std::vector<std::vector<std::string>>{
             {"--num-beams", "2"},
             {"--sample",
              "--seed",
              "3",
              "--temperature",
              "2",
              "--num-return-sequences",
              "2"}}) {
      const std::string alone = written(1, input, "1", way);
      ASSERT_FALSE(alone.empty());
      for (const char* size : {"2", "3", "8"}) {
        EXPECT_EQ(written(1, input, size, way), alone) << input << way[0];
      }
      EXPECT_EQ(written(2, input, "3", way), alone) << input << way[0];
    }
  }
}

// A mask leaves out what a text does not have.
TEST(Generate, GoesOnWithoutPadding) {
  const TemporaryFolder folder;
  const auto sequences = [&](const char* input) {
    std::ofstream(folder / "texts.json") << input;
    auto arguments = command(folder / "texts.json", folder / "out.json");
    const auto result = tests::run_forked(1, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return read_json(folder / "out.json").at("sequences");
  };
  EXPECT_EQ(
      sequences(R"({"input_ids": [[0, 0, 5, 7], [3, 4, 5, 6]],
                    "attention_mask": [[0, 0, 1, 1], [1, 1, 1, 1]]})"),
      sequences(R"({"input_ids": [[5, 7], [3, 4, 5, 6]]})"));
}

// What the folder says, and what is said in place of it.
TEST(Generate, FollowsBeams) {
  const TemporaryFolder folder;
  for (const std::string way : {"beams", "patient_beams"}) {
    nlohmann::json expected = reference(way);
    nlohmann::json options = expected.at("options");
    if (way == "patient_beams") {
      options["early_stopping"] = true;
      options["num_beams"] = 7;
    }
    const auto model = folder / way;
    std::filesystem::copy(fixtures() / "models/llama", model);
    std::ofstream(model / "generation_config.json") << options;
    std::ofstream(folder / "texts.json")
        << nlohmann::json{{"input_ids", texts_of(expected)}};
    auto arguments = command(folder / "texts.json", folder / "out.json", model);
    if (way == "patient_beams") {
      arguments.insert(
          arguments.end(), {"--num-beams", "2", "--early-stopping", "never"});
    }
    const auto result = tests::run_forked(1, arguments);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    const nlohmann::json found = read_json(folder / "out.json").at("sequences");
    const size_t each = expected["options"].value("num_return_sequences", 1);
    ASSERT_EQ(found.size(), 3 * each);
    for (size_t row = 0; row < found.size(); ++row) {
      nlohmann::json& sequence = expected["sequences"][row];
      const auto& mask = expected["attention_mask"][row / each];
      sequence.erase(
          sequence.begin(),
          sequence.begin() + std::count(mask.begin(), mask.end(), 0));
      while (sequence.back() == expected["options"]["pad_token_id"]) {
        sequence.erase(sequence.size() - 1); // behind a shorter one
      }
      EXPECT_EQ(found[row], sequence) << way;
    }
  }
}

TEST(Generate, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const auto fails = [&](const std::string& input,
                         const std::vector<std::string>& more,
                         const char* expected) {
    std::ofstream(folder / "texts.json") << input;
    auto arguments = command(folder / "texts.json", folder / "out.json");
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = tests::run_forked(1, arguments);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << result.output;
    EXPECT_FALSE(std::filesystem::exists(folder / "out.json"));
  };
  fails("[1]", {}, "not a JSON object");
  fails("{}", {}, "'input_ids' is missing");
  fails(
      R"({"input_ids": [[1]], "labels": [[1]]})",
      {},
      "unexpected key 'labels'");
  fails(
      R"({"input_ids": [[1, 2]], "attention_mask": [[1]]})",
      {},
      "a 0 or 1 for each token");
  fails(R"({"input_ids": [[1], []]})", {}, "a list of token sequences");
  fails(R"({"input_ids": [["a"]]})", {}, "a list of token sequences");
  fails(R"({"input_ids": [[1.5]]})", {}, "a list of token sequences");
  fails(R"({"input_ids": [[1, 999]]})", {}, "input_ids holds 999");
  const std::string good = R"({"input_ids": [[1]]})";
  fails(good, {"--sample", "--top-p", "2"}, "--top-p is 2");
  fails(good, {"--prompt", "an"}, "go with neither --chat nor --prompt");
  for (const char* const option :
       {"--temperature", "--top-k", "--top-p", "--min-p", "--seed"}) {
    fails(good, {option, "1"}, "add --sample");
  }
}

TEST(Generate, NamesThePredictorOfAClassifier) {
  for (const char* architecture :
       {"BertForSequenceClassification", "BertForQuestionAnswering"}) {
    const auto result = tests::run_forked(
        1,
        {"generate",
         "--model",
         tests::source_dir() + "/models/minilm",
         "--architecture",
         architecture,
         "--prompt",
         "a game"});
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(
        result.output.find(
            std::string("a ") + architecture + " does not write texts"),
        std::string::npos)
        << result.output;
    EXPECT_NE(result.output.find("`tessera predict`"), std::string::npos);
  }
}

// As in configurations: GB is 10^9 bytes, GiB 2^30, with fractions.
TEST(Generate, SizesAreReadAsInConfigurations) {
  const TemporaryFolder folder;
  std::ofstream(folder / "ids.json") << R"({"input_ids": [[1, 2]]})";
  const auto output_of = [&](const std::string& size) {
    auto words = command(folder / "ids.json", folder / "out.json");
    words.insert(words.end(), {"--device-memory", size});
    const auto result = tests::run_forked(1, words);
    EXPECT_NE(result.exit_code, 0);
    return result.output;
  };
  for (const auto& [size, read] :
       {std::pair("1kb", "(1000 bytes)"),
        std::pair("1.5KiB", "(1536 bytes)"),
        std::pair("0.000002 GB", "(2000 bytes)"),
        std::pair("3000", "(3000 bytes)")}) {
    EXPECT_NE(output_of(size).find(read), std::string::npos) << output_of(size);
  }
  for (const char* const wrong : {"1.5", "5parsecs", "-3kB"}) {
    const std::string output = output_of(wrong);
    EXPECT_NE(
        output.find(std::string("'") + wrong + "' is not a size"),
        std::string::npos)
        << output;
    EXPECT_NE(output.find("--device-memory"), std::string::npos) << output;
  }
}

// The keys of configurations mean nothing here, and room on the host does not
// help where only layers on the device are too large.
TEST(Generate, RemediesOfASmallBudgetAreOptions) {
  const TemporaryFolder folder;
  std::ofstream(folder / "ids.json") << R"({"input_ids": [[1, 2]]})";
  auto words = command(folder / "ids.json", folder / "out.json");
  words.insert(
      words.end(), {"--device-memory", "4kB", "--host-memory", "1GiB"});
  const auto result = tests::run_forked(1, words);
  EXPECT_NE(result.exit_code, 0);
  for (const char* const part :
       {"--device-memory is",
        "raise --device-memory to at least",
        "use more ranks"}) {
    EXPECT_NE(result.output.find(part), std::string::npos) << result.output;
  }
  for (const char* const part :
       {"memory.device_bytes",
        "memory.host_bytes",
        "memory.nvme_path",
        "raise --host-memory",
        "set --nvme",
        "sharding.modules"}) {
    EXPECT_EQ(result.output.find(part), std::string::npos) << result.output;
  }
}

TEST(Generate, ErrorsNameTheOptionsThatAreGiven) {
  const TemporaryFolder folder;
  std::ofstream(folder / "ids.json") << R"({"input_ids": [[1, 2]]})";
  write_model(folder.path(), "gpt2"); // with so many positions
  const auto ids = command(folder / "ids.json", folder / "out.json");
  const std::vector<std::string> texts{
      "generate", "--model", folder.path().string(), "--prompt", "the cat"};
  struct Case {
    std::vector<std::string> words;
    std::vector<std::string> more;
    const char* part;
  };
  for (const Case& one : std::vector<Case>{
           {ids,
            {"--num-return-sequences", "3"},
            "--num-return-sequences is 3; without --sample"},
           {ids, {"--num-beams", "0"}, "--num-beams is 0"},
           {ids, {"--temperature", "-1", "--sample"}, "--temperature is -1"},
           {ids, {"--expert", "2"}, "--expert is 2"},
           {ids,
            {"--device-memory", "1GB", "--nvme", "/nowhere"},
            "--nvme: '/nowhere' is not a folder"},
           {texts,
            {"--max-new-tokens", "100000"},
            "--max-new-tokens is 100000"},
           {texts,
            {"--max-new-tokens", "100000"},
            "set --max-new-tokens to"}}) {
    auto words = one.words;
    words.insert(words.end(), one.more.begin(), one.more.end());
    const auto result = tests::run_forked(1, words);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.output.find(one.part), std::string::npos) << result.output;
  }
}

TEST(Generate, OptionsOfBeamsNeedBeams) {
  const TemporaryFolder folder;
  std::ofstream(folder / "ids.json") << R"({"input_ids": [[1, 2]]})";
  for (const auto& [name, value] :
       {std::pair("--length-penalty", "2"),
        std::pair("--early-stopping", "yes")}) {
    auto words = command(folder / "ids.json", folder / "out.json");
    words.insert(words.end(), {name, value});
    const auto alone = tests::run_forked(1, words);
    EXPECT_NE(alone.exit_code, 0);
    EXPECT_NE(
        alone.output.find(
            std::string(name) +
            " only affects beam search, which is off; add --num-beams"),
        std::string::npos)
        << alone.output;
    words.insert(words.end(), {"--num-beams", "2", "--max-new-tokens", "2"});
    const auto beams = tests::run_forked(1, words);
    EXPECT_EQ(beams.exit_code, 0) << beams.output;
  }
}

} // namespace tessera::generate_test
