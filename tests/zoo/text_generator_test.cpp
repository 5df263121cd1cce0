// SPDX-License-Identifier: Apache-2.0
// Texts that models write, against transformers' and, for GLM, against formulas
// in Python (tests/fixture_makers/text_generation.py).
#include "tessera/zoo/generation/text_generator.h"
#include "support/chi_square.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/text/chat/chat_prompt.h"
#include "tessera/zoo/generation/blanks.h"
#include "tessera/zoo/generation/next_token.h"
#include "tessera/zoo/generation/stop_filter.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/scaled_glm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tessera::zoo::text_generator_test {
namespace {

std::filesystem::path fixtures() {
  return std::filesystem::path(tests::source_dir()) / "tests/zoo/fixtures";
}

nlohmann::json read(const char* name) {
  std::ifstream file(fixtures() / "text_generation" / name);
  return nlohmann::json::parse(file);
}

text::Tokenizer tokenizer() {
  return text::Tokenizer::from_folder(fixtures() / "text_generation");
}

std::shared_ptr<Model> load(const std::string& name) {
  return from_pretrained(fixtures() / "models" / name);
}

GenerateOptions options_of(nlohmann::json json, const nlohmann::json& changes) {
  json.update(changes);
  GenerateOptions options;
  options.max_new_tokens = json.at("max_new_tokens");
  options.eos_token_id = {json.at("eos_token_id")};
  options.pad_token_id = json.at("pad_token_id");
  options.repetition_penalty = json.value("repetition_penalty", 1.0);
  options.no_repeat_ngram_size = json.value("no_repeat_ngram_size", 0);
  options.num_beams = json.value("num_beams", 1);
  options.num_return_sequences = json.value("num_return_sequences", 1);
  options.length_penalty = json.value("length_penalty", 1.0);
  options.stop_strings = json.value("stop_strings", std::vector<std::string>());
  if (json.contains("early_stopping")) {
    options.early_stopping = json["early_stopping"] == "never"
                                 ? EarlyStopping::kNever
                                 : EarlyStopping::kYes;
  }
  return options;
}

/// The prompts of one call come out as each alone.
void expect_results(
    const nlohmann::json& expected,
    const std::vector<GeneratedText>& found,
    const std::string& label) {
  ASSERT_EQ(found.size(), expected.size()) << label;
  for (size_t i = 0; i < found.size(); ++i) {
    auto tokens = found[i].tokens;
    EXPECT_EQ(nlohmann::json(tokens), expected[i]["tokens"])
        << label << ", " << i;
    EXPECT_EQ(found[i].text, expected[i]["text"]) << label << ", " << i;
    EXPECT_EQ(name_of(found[i].reason), expected[i]["reason"])
        << label << ", " << i;
  }
}

} // namespace

TEST(TextGenerator, WritesAsTransformersDoes) {
  std::map<std::string, int> reasons;
  const nlohmann::json all = read("texts.json");
  const std::vector<std::string> prompts = all["prompts"];
  for (const nlohmann::json& one : all["cases"]) {
    const auto model = load(one["model"]);
    const TextGenerator generator(
        *model,
        tokenizer(),
        {.tokens = options_of(all["options"], one["options"])});
    std::map<size_t, std::string> streamed;
    const auto found = generator.generate(
        prompts, [&](size_t text, std::string_view fragment) {
          streamed[text] += fragment;
        });
    expect_results(
        one["results"],
        found,
        one["model"].get<std::string>() + " " + one["way"].get<std::string>());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(streamed[i], found[i].text);
      ++reasons[name_of(found[i].reason)];
    }
  }
  EXPECT_GT(reasons["stop"], 5);
  EXPECT_GT(reasons["end"], 1);
  EXPECT_GT(reasons["length"], 5);
}

TEST(TextGenerator, FillsBlanksAsTheFormulasDo) {
  const nlohmann::json all = read("blanks.json");
  const auto model = load("glm_2021");
  tests::scale_glm(*model, all["scales"]);
  TextOptions options;
  options.tokens.max_new_tokens = all["max_new_tokens"];
  const TextGenerator generator(*model, tokenizer(), options);
  std::vector<std::string> prompts;
  bool has_end = false;
  for (const nlohmann::json& one : all["cases"]) {
    prompts.push_back(one["prompt"]);
  }
  // Together: with padding, and different numbers of blanks.
  const auto found = generator.generate(prompts);
  ASSERT_EQ(found.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const nlohmann::json& one = all["cases"][i];
    const auto alone = generator.generate({prompts[i]});
    std::vector<int64_t> tokens;
    bool is_cut = false;
    for (const std::vector<int64_t> blank : one["filled"]) {
      tokens.insert(tokens.end(), blank.begin(), blank.end());
      const bool ends = blank.back() == 5 || blank.back() == 7;
      has_end = has_end || ends;
      is_cut = is_cut || !ends;
    }
    for (const GeneratedText& text : {found[i], alone[0]}) {
      EXPECT_EQ(text.tokens, tokens) << prompts[i];
      EXPECT_EQ(
          text.text,
          with_blanks_filled(
              prompts[i], one["texts"].get<std::vector<std::string>>()));
      EXPECT_EQ(
          text.reason, is_cut ? FinishReason::kLength : FinishReason::kEnd);
    }
  }
  EXPECT_TRUE(has_end);
  // Samples of one prompt go their own ways.
  options.tokens.do_sample = true;
  options.tokens.temperature = 5;
  options.tokens.num_return_sequences = 3;
  const TextGenerator sampler(*model, tokenizer(), options);
  const auto several = sampler.generate({prompts[2], prompts[0]});
  ASSERT_EQ(several.size(), 6U);
  EXPECT_NE(several[0].tokens, several[1].tokens);
  EXPECT_TRUE(several[3].text.starts_with("the "));
}

TEST(TextGenerator, FillsBlanksByBeams) {
  const nlohmann::json all = read("blanks.json");
  const auto model = load("glm_2021");
  tests::scale_glm(*model, all["beam_scales"]);
  TextOptions options;
  options.tokens.max_new_tokens = all["max_new_tokens"];
  options.tokens.num_beams = all["num_beams"];
  const TextGenerator generator(*model, tokenizer(), options);
  options.tokens.num_beams = 1;
  const TextGenerator greedy(*model, tokenizer(), options);
  std::vector<std::string> prompts;
  for (const nlohmann::json& one : all["cases"]) {
    prompts.push_back(one["prompt"]);
  }
  const auto together = generator.generate(prompts);
  int differ = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int64_t> tokens;
    for (const std::vector<int64_t> blank :
         all["cases"][i]["filled_by_beams"]) {
      tokens.insert(tokens.end(), blank.begin(), blank.end());
    }
    EXPECT_EQ(together[i].tokens, tokens) << prompts[i];
    EXPECT_EQ(generator.generate({prompts[i]})[0].tokens, tokens) << prompts[i];
    differ += greedy.generate({prompts[i]})[0].tokens == tokens ? 0 : 1;
  }
  EXPECT_GT(differ, 2);
}

TEST(Blanks, ArePlacedAsByTheAuthors) {
  const text::Tokenizer words = tokenizer();
  const BlankTokens tokens = BlankTokens::of(words);
  EXPECT_EQ(tokens.blanks, (std::vector<int64_t>{8, 9, 10}));
  EXPECT_EQ(tokens.start, 6);
  EXPECT_EQ(tokens.end, 7);
  BlankedText text = blanked_text(words, tokens, "an [MASK] or [gMASK]");
  EXPECT_EQ(
      text.context, (std::vector<int64_t>{4, 49, 11, 8, 11, 58, 11, 10, 5}));
  EXPECT_EQ(text.blanks, (std::vector<int64_t>{3, 7}));
  text.filled = {{20, 21}};
  const ModelInput input =
      blank_inputs({text, blanked_text(words, tokens, "[MASK]")}, 6, at::kCPU);
  EXPECT_TRUE(input.input_ids.equal(torch::tensor(
      {{4, 49, 11, 8, 11, 58, 11, 10, 5, 6, 20, 21, 6},
       {6, 6, 6, 6, 6, 6, 6, 6, 6, 4, 8, 5, 6}},
      torch::kLong)));
  EXPECT_TRUE(input.position_ids[0].equal(torch::tensor(
      {{0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 3, 3, 7},
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 1}},
      torch::kLong)));
  EXPECT_TRUE(input.position_ids[1].equal(torch::tensor(
      {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 1},
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
      torch::kLong)));
  EXPECT_TRUE(
      input.others.at("sep").equal(torch::tensor({9, 12}, torch::kLong)));
  EXPECT_EQ(
      with_blanks_filled("at [MASK] (once [gMASK]", {" a b ", "c"}),
      "at a b (once c");
}

TEST(StopFilter, ShowsNothingOfAStopString) {
  StopFilter filter({"###", "\nUser:"});
  EXPECT_EQ(filter.add("a#"), "a");
  EXPECT_EQ(filter.add("#b\n"), "##b");
  EXPECT_EQ(filter.add("Us"), "");
  EXPECT_EQ(filter.add("e"), "");
  EXPECT_EQ(filter.add("d #"), "\nUsed ");
  EXPECT_EQ(filter.add("##x"), "");
  EXPECT_TRUE(filter.is_stopped());
  EXPECT_EQ(filter.add("more"), "");
  EXPECT_EQ(filter.finish(), "");
  StopFilter open({"abc"});
  EXPECT_EQ(open.add("xab"), "x");
  EXPECT_EQ(open.finish(), "ab");
}

// Padding does not count in max_length and min_length, whatever is beside a
// prompt.
TEST(TextGenerator, LengthsAreThoseOfEachPrompt) {
  const auto model = load("gpt2");
  const std::vector<std::string> prompts{
      "an", std::string(9, 'x'), "to", std::string(12, 'y')};
  for (const auto& [beams, samples] : {std::pair(1, 1), std::pair(3, 2)}) {
    TextOptions options;
    options.tokens.max_length = 15;
    options.tokens.min_length = 14;
    options.tokens.eos_token_id = {3, 5, 9, 11, 17, 20, 22, 30};
    options.tokens.num_beams = beams;
    options.tokens.num_return_sequences = samples;
    const TextGenerator generator(*model, tokenizer(), options);
    std::map<size_t, std::string> streamed;
    const auto all = generator.generate(
        prompts, [&](size_t text, std::string_view fragment) {
          streamed[text] += fragment;
        });
    ASSERT_EQ(all.size(), prompts.size() * static_cast<size_t>(samples));
    std::set<size_t> lengths;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto alone = generator.generate({prompts[i]});
      for (size_t j = 0; j < alone.size(); ++j) {
        const size_t row = i * alone.size() + j;
        EXPECT_EQ(all[row].tokens, alone[j].tokens) << row;
        EXPECT_EQ(all[row].text, alone[j].text) << row;
        EXPECT_EQ(streamed[row], all[row].text) << row;
        lengths.insert(all[row].tokens.size());
      }
    }
    EXPECT_GE(lengths.size(), 3U);
    expect_error(
        [&] {
          generator.generate({"an", std::string(15, 'z')});
        },
        {"prompt 2 ('zzz", "max_length is 15", "set max_new_tokens"});
  }
}

TEST(TextGenerator, SaysWhatIsWrong) {
  const auto model = load("gpt2"); // 23 positions
  TextOptions options;
  options.tokens.max_new_tokens = 9;
  const TextGenerator generator(*model, tokenizer(), options);
  expect_error(
      [&] {
        generator.generate({"an", std::string(30, 'x')});
      },
      {"prompt 2 (", "has 31 tokens", "max_new_tokens is 9", "23 positions"});
  expect_error(
      [&] { generator.generate({std::string(16, 'x')}); },
      {"prompt 1 (", "has 17 tokens", "set max_new_tokens to 7"});
  options.tokens.fit_to_model = true;
  const TextGenerator fitting(*model, tokenizer(), options);
  EXPECT_LE(fitting.generate({std::string(16, 'x')})[0].tokens.size(), 7U);
  const auto glm = load("glm_2021");
  const TextGenerator filler(*glm, tokenizer(), options);
  expect_error(
      [&] {
        filler.generate({"an [MASK]", "no blank"});
      },
      {"prompt 2", "no blank", "[MASK]"});
  ModelInput prompt;
  prompt.input_ids = torch::tensor({{5, 6, 7}}, torch::kLong);
  expect_error(
      [&] { zoo::generate(*glm, prompt, options.tokens); },
      {"fills blanks", "position_ids"});
  options.tokens.stop_strings = {"x"};
  expect_error(
      [&] { zoo::generate(*model, prompt, options.tokens); },
      {"stop_strings", "TextGenerator"});
}

// Turns of a conversation: the texts are those of whole prompts, and what a
// prompt has in common with the text before it is not read again.
TEST(TextGenerator, ReadsAConversationOnce) {
  for (const int64_t beams : {1, 3}) {
    for (const std::string name : {"llama", "qwen3", "llama_dynamic"}) {
      SCOPED_TRACE(name + ", beams " + std::to_string(beams));
      const auto model = load(name);
      TextOptions options;
      options.tokens.max_new_tokens = 5;
      options.tokens.num_beams = beams;
      options.add_special_tokens = false;
      const TextGenerator generator(*model, tokenizer(), options);
      PromptCache kept;
      std::string text = "the cat";
      std::vector<int64_t> known;
      int64_t reused = 0;
      // The third goes back to another end of the first one.
      for (const std::string next : {"", " on the", "the cart", " or an"}) {
        text = next.starts_with("the") ? next : text + next;
        const int64_t before = kept.read_tokens();
        const auto alone = generator.generate({text});
        EXPECT_EQ(kept.read_tokens(), before);
        const auto found = generator.generate({text}, {}, &kept);
        EXPECT_EQ(found[0].tokens, alone[0].tokens) << text;
        EXPECT_EQ(found[0].text, alone[0].text);
        const std::vector<int64_t> ids = generator.tokenizer().ids(text);
        const auto common = std::min<int64_t>(
            std::mismatch(ids.begin(), ids.end(), known.begin(), known.end())
                    .first -
                ids.begin(),
            static_cast<int64_t>(ids.size()) - 1);
        reused += common;
        const int64_t read = kept.read_tokens() - before;
        const auto fresh = static_cast<int64_t>(ids.size()) - common;
        known = ids;
        if (name == "llama_dynamic") { // depends on the length
          EXPECT_EQ(read, 0);
        } else if (beams == 1) { // the last token is not read
          const auto& written = found[0].tokens;
          EXPECT_EQ(read, fresh + static_cast<int64_t>(written.size()) - 1);
          known.insert(known.end(), written.begin(), written.end() - 1);
        } else {
          EXPECT_EQ((read - fresh) % beams, 0) << read << " " << fresh;
          EXPECT_LE(read, fresh + beams * 4);
        }
        text += found[0].text;
      }
      EXPECT_GT(reused, 10);
      // Several prompts, or one with padding, leave it as it is.
      const int64_t before = kept.read_tokens();
      generator.generate({"an", "the cat"}, {}, &kept);
      EXPECT_EQ(kept.read_tokens(), before);
    }
  }
}

// The chances of tokens by transformers; 20,000 draws with one seed.
TEST(NextToken, DrawsByTheChancesOfTransformers) {
  const nlohmann::json all = read("chances.json");
  constexpr int64_t kDraws = 20'000;
  const at::Tensor logits =
      torch::tensor(all["logits"].get<std::vector<float>>());
  for (const nlohmann::json& one : all["cases"]) {
    const nlohmann::json& given = one["options"];
    GenerateOptions options;
    options.do_sample = true;
    options.temperature = given.value("temperature", 1.0);
    options.top_k = given.value("top_k", 0);
    options.top_p = given.value("top_p", 1.0);
    options.min_p = given.value("min_p", 0.0);
    options.seed = 11;
    const at::Tensor counts =
        NextToken(options, kDraws)
            .choose(logits.expand({kDraws, -1}).clone(), 0)
            .bincount({}, logits.numel());
    std::map<int64_t, double> chances;
    std::map<int64_t, int64_t> drawn;
    for (int64_t token = 0; token < logits.numel(); ++token) {
      chances[token] = one["chances"][static_cast<size_t>(token)];
      drawn[token] = counts[token].item<int64_t>();
    }
    tests::expect_drawn(chances, drawn, given.dump());
  }
}

TEST(ChatPrompt, KeysWithoutAValueAreLeftOut) {
  text::TokenizerSettings settings;
  settings.chat_template =
      "{% for m in messages %}[{{ m.role }}:{{ m.content }}{% if m.tool_calls is defined %}!{% endif %}]{% endfor %}";
  const text::ChatPrompt chat(settings, "a folder");
  const auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "user", "content": "x", "tool_calls": null},
          {"role": "assistant", "content": null, "tool_calls": [null]}])");
  EXPECT_EQ(chat.render(messages, "line 1"), "[user:x][assistant:!]");
  EXPECT_EQ(
      chat.render_with_answers(messages, "line 1").text,
      "[user:x][assistant:!]");
}

TEST(ChatPrompt, NamesKeysThatTheTemplateDoesNotWrite) {
  const auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "user", "content": "x", "name": "Ann"},
          {"role": "assistant", "content": "y", "reasoning": "z",
           "tool_calls": [{"function": {"name": "f"}}]}])");
  const auto tools = nlohmann::ordered_json::parse(R"([{"type": "function"}])");
  using Names = std::vector<std::string>;
  const auto unwritten = [&](const std::string& more) {
    text::TokenizerSettings settings;
    settings.chat_template =
        "{% for m in messages %}{{ m.content }}" + more + "{% endfor %}";
    return text::ChatPrompt(settings, "folder of " + more)
        .unwritten_keys(messages, "line 1", tools);
  };
  EXPECT_EQ(unwritten(""), (Names{"tool_calls", "reasoning", "name", "tools"}));
  EXPECT_EQ(
      unwritten("{{ m.tool_calls }}{{ tools }}"), (Names{"reasoning", "name"}));
  EXPECT_EQ(
      unwritten("{{ m.reasoning_content }}{{ m.name }}"),
      (Names{"tool_calls", "tools"}));
  text::TokenizerSettings settings;
  settings.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}";
  const text::ChatPrompt chat(settings, "a folder that drops calls");
  testing::internal::CaptureStderr();
  chat.warn_of_unwritten_keys(messages, "line 1", nullptr);
  chat.warn_of_unwritten_keys(messages, "line 2", nullptr);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(
      log.find(
          "line 1: the chat template of 'a folder that drops calls' does not write 'tool_calls'"),
      std::string::npos)
      << log;
  EXPECT_EQ(log.find("line 2"), std::string::npos) << log;
}

TEST(ChatPrompt, ListsAreGivenToTemplatesThatReadAllOfThem) {
  const auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "user", "content": [{"type": "text", "text": "a"},
                                       {"type": "text", "text": "b"}]},
          {"role": "user", "content": [{"type": "text", "text": "c"}]}])");
  const auto rendered = [&](const std::string& text) {
    text::TokenizerSettings settings;
    settings.chat_template = "{% for m in messages %}" + text + "{% endfor %}";
    const text::ChatPrompt chat(settings, "a folder");
    return chat.render(chat.with_read_contents(messages, "line 1"), "line 1");
  };
  EXPECT_EQ(
      rendered("{% for p in m.content %}<{{ p.text }}>{% endfor %}"),
      "<a><b><c>");
  // These lose the second part, or write the second message as a list.
  EXPECT_EQ(
      rendered(
          "[{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}]"),
      "[a\nb][c]");
  EXPECT_EQ(
      rendered(
          "[{% if loop.first and m.content is not string %}{% for p in m.content %}{{ p.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}]"),
      "[a\nb][c]");
}

TEST(ChatPrompt, IsRenderedByTheFoldersTemplate) {
  const auto folder =
      std::filesystem::temp_directory_path() / "tessera-chat-prompt-test";
  std::filesystem::create_directories(folder);
  std::filesystem::copy(
      fixtures() / "text_generation/tokenizer.json",
      folder / "tokenizer.json",
      std::filesystem::copy_options::overwrite_existing);
  const nlohmann::json messages =
      nlohmann::json::parse(R"([{"role": "user", "content": "an"}])");
  const auto rendered = [&] {
    return text::ChatPrompt(
               text::Tokenizer::from_folder(folder).settings(), folder.string())
        .render(messages, "line 1");
  };
  expect_error(
      rendered, {folder.c_str(), "no chat template", "chat_template.jinja"});
  const auto write = [&](const char* name, const nlohmann::json& json) {
    std::ofstream(folder / name) << json;
  };
  const std::string text =
      "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{{ pad_token }}{% endfor %}{% if add_generation_prompt %}A{% endif %}";
  write("chat_template.json", {{"chat_template", "P" + text}});
  EXPECT_EQ(rendered(), "PanA");
  nlohmann::json config{
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}};
  std::filesystem::remove(folder / "chat_template.json");
  config["chat_template"] = text;
  write("tokenizer_config.json", config);
  EXPECT_EQ(rendered(), "<s>an</s><pad>A");
  config["chat_template"] = nlohmann::json::parse(
      R"([{"name": "tool_use", "template": "T"},
          {"name": "default", "template": "{{ bos_token }}D"}])");
  write("tokenizer_config.json", config);
  EXPECT_EQ(rendered(), "<s>D");
  const text::ChatPrompt named(
      text::Tokenizer::from_folder(folder).settings(), folder.string());
  EXPECT_EQ(named.render(messages, "line 1", {{{"type", "function"}}}), "T");
  EXPECT_EQ(named.render(messages, "line 1", nullptr), "<s>D");
  std::ofstream(folder / "chat_template.jinja") << "J{{ eos_token }}";
  EXPECT_EQ(rendered(), "J</s>");
  const text::ChatPrompt chat(
      text::Tokenizer::from_folder(folder).settings(), folder.string());
  for (const char* bad : {"[]", "{}", R"([{"content": "x"}])", R"(["x"])"}) {
    expect_error(
        [&] { chat.render(nlohmann::json::parse(bad), "a.jsonl:3"); },
        {"a.jsonl:3", "'messages' is"});
  }
  std::filesystem::create_directories(folder / "additional_chat_templates");
  std::ofstream(folder / "additional_chat_templates" / "tool_use.jinja") << "F";
  EXPECT_EQ(
      text::ChatPrompt(
          text::Tokenizer::from_folder(folder).settings(), folder.string())
          .render(messages, "line 1", {{{"type", "function"}}}),
      "F");
  std::ofstream(folder / "chat_template.jinja")
      << "{{ raise_exception('roles must alternate') }}";
  expect_error(rendered, {"line 1", "roles must alternate"});
  runtime::remove_tree(folder);
}

} // namespace tessera::zoo::text_generator_test
