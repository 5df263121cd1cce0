// SPDX-License-Identifier: Apache-2.0
// Supervised fine-tuning: what is learned of conversations and completions,
// against transformers' masks (tests/fixture_makers/supervised_labels.py) and
// by hand; packing; and runs of decoders and T5.
#include "tessera/tasks/supervised_batches.h"

#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/model_task.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/run_training.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

namespace tessera::tasks::supervised_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<int64_t>;
using Names = std::vector<std::string>;

constexpr const char* kLines =
    "{% for m in messages %}{{ m.role }}:\n{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}";

json said(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// 1 for each token that is learned.
Ids mask_of(const SupervisedText& text) {
  Ids mask(text.tokens.size(), 0);
  for (const TokenRange& range : text.answers) {
    std::fill(mask.begin() + range.begin, mask.begin() + range.end, 1);
  }
  return mask;
}

class Supervised : public ::testing::Test {
 protected:
  /// @param chat_template empty: none.
  text::Tokenizer tokenizer(
      const std::string& name,
      const std::string& eos,
      const std::string& chat_template = "") const {
    write_tokenizer(folder_ / "tokenizer", name, eos, chat_template);
    return text::Tokenizer::from_folder(folder_ / "tokenizer");
  }

  static void write_tokenizer(
      const fs::path& folder,
      const std::string& name,
      const std::string& eos,
      const std::string& chat_template) {
    fs::create_directories(folder);
    fs::copy(
        fixture("tokenizers") / (name + ".json"),
        folder / "tokenizer.json",
        fs::copy_options::overwrite_existing);
    json config{{"eos_token", eos}};
    if (!chat_template.empty()) {
      config["chat_template"] = chat_template;
    }
    std::ofstream(folder / "tokenizer_config.json") << config;
  }

  SupervisedEncoder encoder(
      text::Tokenizer tokenizer,
      const SupervisedOptions& options = {},
      PromptKind kind = PromptKind::kDecoder,
      int64_t max_length = 512) const {
    return {
        std::move(tokenizer),
        options,
        kind,
        folder_ / "tokenizer",
        /*vocab=*/100000,
        max_length};
  }

  /// The row of a file that has only this one.
  text::TextRow row(const json& values) const {
    std::ofstream(folder_ / "row.jsonl") << values << "\n";
    return text::TextRows(folder_ / "row.jsonl").next().value();
  }

  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  /// A newly initialized model with a tokenizer.
  void write_model(
      const std::string& name,
      const std::string& tokenizer_name,
      const std::string& eos,
      const std::string& chat_template = "") const {
    const auto own = text::Tokenizer::from_file(
        fixture("tokenizers") / (tokenizer_name + ".json"));
    json config = read_json(fixture("models") / name / "config.json");
    config["vocab_size"] = own.size();
    config["pad_token_id"] = 0;
    config["eos_token_id"] = *own.id_of(eos);
    if (config.contains("decoder_start_token_id")) {
      config["decoder_start_token_id"] = 0;
    }
    for (const char* key : {"n_positions", "max_position_embeddings"}) {
      if (config.contains(key)) {
        config[key] = 144;
      }
    }
    for (const char* key :
         {"attn_pdrop", "embd_pdrop", "resid_pdrop", "dropout_rate"}) {
      if (config.contains(key)) {
        config[key] = 0.0;
      }
    }
    torch::manual_seed(3);
    zoo::save_pretrained(*zoo::from_config(config), model_);
    write_tokenizer(model_, tokenizer_name, eos, chat_template);
  }

  TrainingConfig config(const Names& overrides = {}) const {
    const fs::path path = folder_ / "train.json";
    const json values = {
        {"task", "supervised"},
        {"model", {{"folder", model_.string()}, {"max_length", 64}}},
        {"data",
         {{"train", (folder_ / "train.jsonl").string()},
          {"heldout", (folder_ / "heldout.jsonl").string()},
          {"metric", {"exact_match", "bleu", "rouge_l"}},
          {"max_new_tokens", 12}}},
        {"optimizer", {{"lr", 0.01}}},
        {"schedule", {{"warmup_steps", 0}}},
        {"training",
         {{"clip_grad_norm", 0},
          {"batch_size", 4},
          {"epochs", 20},
          {"seed", 5}}},
        {"output", {{"folder", run_.string()}, {"overwrite", true}}}};
    runtime::write_file_atomically(path, values.dump());
    return read_training_config(path, overrides);
  }

  const TemporaryFolder folder_;
  const fs::path model_ = folder_ / "base";
  const fs::path run_ = folder_ / "run";
};

/// What is translated, and into what.
const std::vector<std::pair<const char*, const char*>> kWords{
    {"the world is here", "is it so"},
    {"a mail server", "no way to tell"},
    {"numbers and lines", "def if return"},
    {"two spaces", "Tessera"}};

} // namespace

TEST_F(Supervised, ReadsRowsOfPresets) {
  const text::Tokenizer chats = tokenizer("qwen2", "<|end|>", kLines);
  const auto preset = [](SupervisedPreset one) {
    SupervisedOptions options;
    options.preset = one;
    return options;
  };
  const auto expect_same = [](const SupervisedText& found,
                              const SupervisedText& wanted) {
    EXPECT_EQ(found.tokens, wanted.tokens);
    EXPECT_EQ(found.answers, wanted.answers);
    EXPECT_EQ(found.reference, wanted.reference);
  };
  const auto shared = encoder(chats, preset(SupervisedPreset::kShareGpt));
  const auto alpaca = encoder(chats, preset(SupervisedPreset::kAlpaca));
  const json messages{
      said("system", "be short"),
      said("user", "is it so"),
      said("assistant", "no way")};
  expect_same(
      shared.encode(row(
          {{"conversations",
            {{{"from", "system"}, {"value", "be short"}},
             {{"from", "human"}, {"value", "is it so"}},
             {{"from", "gpt"}, {"value", "no way"}}}}})),
      encoder(chats).encode(row({{"messages", messages}})));
  expect_same(
      alpaca.encode(row(
          {{"instruction", "is it so"}, {"input", "here"}, {"output", "no"}})),
      encoder(chats).encode(row(
          {{"messages",
            {said("user", "is it so\nhere"), said("assistant", "no")}}})));
  const json continued{
      {"instruction", "is it so"},
      {"output", "no"},
      {"history", json::array({json::array({"is it here", "no way"})})}};
  expect_same(
      alpaca.encode(row(continued)),
      encoder(chats).encode(row(
          {{"messages",
            {said("user", "is it here"),
             said("assistant", "no way"),
             said("user", "is it so"),
             said("assistant", "no")}}})));
  // Without a chat template, in the words of Stanford Alpaca.
  const text::Tokenizer plain = tokenizer("qwen2", "<|end|>");
  const auto words = encoder(plain, preset(SupervisedPreset::kAlpaca));
  for (const std::string input : {"", "here"}) {
    const std::string prompt =
        "Below is an instruction that describes a task" +
        std::string(
            input.empty()
                ? ""
                : ", paired with an input that provides further context") +
        ". Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nis it so\n\n" +
        (input.empty() ? "" : "### Input:\nhere\n\n") + "### Response:";
    expect_same(
        words.encode(row(
            {{"instruction", "is it so"},
             {"input", input},
             {"output", "no way"}})),
        encoder(plain).encode(
            row({{"prompt", prompt}, {"completion", "no way"}})));
  }
  expect_error(
      [&] { words.encode(row(continued)); }, {"'history'", "chat template"});
  expect_error(
      [&] {
        json wrong = continued;
        wrong["history"] = json::array({"alone"});
        alpaca.encode(row(wrong));
      },
      {"'history' is", "pairs"});
  expect_error(
      [&] {
        shared.encode(row(
            {{"conversations", {{{"from", "owl"}, {"value", "is it so"}}}}}));
      },
      {"row.jsonl:1: conversations[0]", "\"owl\"", "human, user, gpt"});
  expect_error(
      [&] {
        alpaca.encode(row({{"instruction", "is it so"}}));
      },
      {"row.jsonl:1", "there is no 'output'"});
  expect_error(
      [&] {
        encoder(plain).encode(row({{"instruction", "a"}, {"output", "b"}}));
      },
      {"set data.preset=alpaca"});
}

TEST_F(Supervised, LearnsWhatTransformersMarks) {
  const json all = read_json(fixture("supervised_labels.json"));
  ASSERT_GT(all.at("cases").size(), 10U);
  for (const json& one : all.at("cases")) {
    const std::string chat_template =
        all.at("templates").at(one.at("template").get<std::string>());
    const auto text =
        encoder(
            tokenizer(one.at("tokenizer"), one.at("eos_token"), chat_template))
            .encode(row({{"messages", one.at("messages")}}));
    EXPECT_EQ(text.tokens, one.at("input_ids").get<Ids>()) << one;
    EXPECT_EQ(mask_of(text), one.at("learned").get<Ids>()) << one;
  }
}

TEST_F(Supervised, LearnsAnswersOfATemplateWithoutMarks) {
  const auto words = tokenizer("qwen2", "<|end|>", kLines);
  const Ids end{*words.id_of("<|end|>")};
  const auto user =
      words.ids("user:\nHello") + end + words.ids("\nassistant:\n");
  const Ids first = words.ids("Hi there.") + end + words.ids("\n");
  const Ids again = words.ids("user:\nand") + end + words.ids("\nassistant:\n");
  const Ids second = words.ids("Bye") + end + words.ids("\n");
  const json messages{
      said("user", "Hello"),
      said("assistant", "Hi there."),
      said("user", "and"),
      said("assistant", "Bye")};
  const auto text = encoder(words).encode(row({{"messages", messages}}));
  EXPECT_EQ(text.tokens, user + first + again + second);
  EXPECT_EQ(
      mask_of(text),
      Ids(user.size(), 0) + Ids(first.size(), 1) + Ids(again.size(), 0) +
          Ids(second.size(), 1));
  EXPECT_EQ(text.prompt(), user + first + again);
  EXPECT_EQ(text.reference, "Bye\n");
  // What is too long loses its end, and with it the second answer.
  const auto length = static_cast<int64_t>((user + first + again).size());
  const auto cut = encoder(words, {}, PromptKind::kDecoder, length)
                       .encode(row({{"messages", messages}}));
  EXPECT_TRUE(cut.is_truncated);
  EXPECT_EQ(cut.tokens, user + first + again);
  EXPECT_EQ(cut.answers.size(), 1U);
  expect_error(
      [&] {
        encoder(
            words, {}, PromptKind::kDecoder, static_cast<int64_t>(user.size()))
            .encode(row({{"messages", messages}}));
      },
      {"row.jsonl:1", "model.max_length"});
}

// OpenAI's "weight" 0, and other trainers' "train" false.
TEST_F(Supervised, LearnsNoAnswersThatAreSwitchedOff) {
  const std::string marked =
      "{% for m in messages %}{{ m.role }}:\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ eos_token }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}";
  for (const std::string& form : {std::string(kLines), marked}) {
    const auto words = tokenizer("qwen2", "<|end|>", form);
    json messages{
        said("user", "Hello"),
        said("assistant", "Hi there."),
        said("user", "and"),
        said("assistant", "Bye")};
    const auto both = encoder(words).encode(row({{"messages", messages}}));
    ASSERT_EQ(both.answers.size(), 2U);
    messages[1]["weight"] = 0;
    messages[3]["weight"] = 1;
    const auto second = encoder(words).encode(row({{"messages", messages}}));
    EXPECT_EQ(second.tokens, both.tokens);
    EXPECT_EQ(second.answers, std::vector{both.answers[1]});
    messages[1] = said("assistant", "Hi there.");
    messages[3]["weight"] = 0.0;
    const auto first = encoder(words).encode(row({{"messages", messages}}));
    EXPECT_EQ(first.answers, std::vector{both.answers[0]});
    // What is scored is the last answer that is learned.
    EXPECT_EQ(
        first.prompt(),
        Ids(both.tokens.begin(), both.tokens.begin() + both.answers[0].begin));
  }
  SupervisedOptions preset;
  preset.preset = SupervisedPreset::kShareGpt;
  const auto turn = [](const char* from, const char* value) {
    return json{{"from", from}, {"value", value}};
  };
  json turns{
      turn("human", "Hello"),
      turn("gpt", "Hi there."),
      turn("human", "and"),
      turn("gpt", "Bye")};
  turns[1]["train"] = false;
  const auto words = tokenizer("qwen2", "<|end|>", kLines);
  const auto text =
      encoder(words, preset).encode(row({{"conversations", turns}}));
  ASSERT_EQ(text.answers.size(), 1U);
  EXPECT_EQ(text.reference, "Bye\n");
}

// A template that knows no lists would write them as Python does.
TEST_F(Supervised, PartsOfAContentAreItsText) {
  const json parts{
      {{"type", "text"}, {"text", "two"}},
      {{"type", "text"}, {"text", "lines"}}};
  const json messages{
      {{"role", "user"}, {"content", parts}}, said("assistant", "Hi")};
  const auto tokens_of = [&](const std::string& form, const json& given) {
    return encoder(tokenizer("qwen2", "<|end|>", form))
        .encode(row({{"messages", given}}))
        .tokens;
  };
  EXPECT_EQ(
      tokens_of(kLines, messages),
      tokens_of(kLines, {said("user", "two\nlines"), said("assistant", "Hi")}));
  const std::string reads =
      "{% for m in messages %}{{ m.role }}:\n{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}";
  EXPECT_EQ(
      tokens_of(reads, messages),
      tokens_of(
          kLines, {said("user", "<two><lines>"), said("assistant", "Hi")}));
}

TEST_F(Supervised, TheDefaultLengthIsThatOfAModelWithFewerPositions) {
  json values = read_json(fixture("models") / "gpt2" / "config.json");
  values["n_positions"] = 144;
  fs::create_directories(model_);
  std::ofstream(model_ / "config.json") << values;
  const TrainingConfig read = config({"model.max_length=null"});
  EXPECT_EQ(read.max_length, 144);
  EXPECT_EQ(read.resolved.at("model").at("max_length"), 144);
  EXPECT_EQ(config({"model.max_length=1024"}).max_length, 1024);
}

TEST_F(Supervised, WarnsIfChatsBeginOrEndUnlikeTheRows) {
  const auto warned = [&](const std::string& chat_template, Ids* prompt) {
    const auto words = tokenizer("qwen2", "<|end|>", chat_template);
    const json chat{
        {"messages", {said("user", "Hello"), said("assistant", "the world")}}};
    const auto path = file("chats.jsonl", chat.dump() + "\n" + chat.dump());
    ::testing::internal::CaptureStderr();
    const auto texts = encoder(words).read({path});
    *prompt = texts.front().prompt();
    return ::testing::internal::GetCapturedStderr();
  };
  Ids prompt;
  EXPECT_EQ(warned(kLines, &prompt), "");
  // The space is a token of its own in the prompt, and of " the" in the row.
  const std::string spaced =
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
  const std::string log = warned(spaced, &prompt);
  for (const char* part :
       {"chats.jsonl:1: the prompt for the last answer",
        "(2 such rows)",
        "without a space"}) {
    EXPECT_NE(log.find(part), std::string::npos) << log;
  }
  EXPECT_EQ(log.find("such rows", log.find("such rows") + 1), log.npos) << log;
  // What is scored is written from the prompt of chats.
  const auto words = tokenizer("qwen2", "<|end|>", spaced);
  EXPECT_EQ(
      prompt,
      words.ids("user: Hello") + Ids{*words.id_of("<|end|>")} +
          words.ids("assistant: "));
  const std::string endless =
      "{% for m in messages %}{{ m.role }}:\n{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}";
  const std::string ends = warned(endless, &prompt);
  EXPECT_NE(
      ends.find("no answer ends with the eos_token \"<|end|>\""),
      std::string::npos)
      << ends;
  EXPECT_NE(ends.find("{{ eos_token }}"), std::string::npos) << ends;
}

TEST_F(Supervised, LearnsCompletionsAndTheirEnd) {
  SupervisedOptions options;
  options.prompt_template = "question: {q} answer: [completion]";
  const json values{{"q", "is it so?"}, {"completion", "no way"}};
  for (const auto& [name, eos, begin] :
       {std::tuple{"gpt2", "<|end|>", ""},
        std::tuple{"llama2", "</s>", "<s>"}}) {
    SCOPED_TRACE(name);
    const auto words = tokenizer(name, eos);
    const auto text = encoder(words, options).encode(row(values));
    const Ids end{*words.id_of(eos)};
    Ids prompt = words.encode("question: is it so? answer:").ids();
    if (*begin != '\0') {
      prompt.pop_back(); // the colon, in one token with the space after it
    }
    EXPECT_EQ(
        text.tokens,
        words.encode("question: is it so? answer: no way").ids() + end);
    EXPECT_EQ(
        mask_of(text),
        Ids(prompt.size(), 0) + Ids(text.tokens.size() - prompt.size(), 1));
    EXPECT_EQ(text.prompt(), prompt);
    EXPECT_EQ(words.token(text.tokens.front()) == "<s>", *begin != '\0');
    // Without a template, nothing is between them.
    const auto plain = encoder(words).encode(
        row({{"prompt", "answer:"}, {"completion", "\n42"}}));
    EXPECT_EQ(plain.tokens, words.encode("answer:\n42").ids() + end);
    EXPECT_EQ(plain.prompt(), words.encode("answer:").ids());
  }
  const auto t5 = tokenizer("t5", "</s>");
  const auto pair =
      encoder(t5, options, PromptKind::kEncoderDecoder).encode(row(values));
  EXPECT_EQ(pair.tokens, t5.encode("question: is it so? answer:").ids());
  EXPECT_EQ(pair.target, t5.encode("no way").ids());
  EXPECT_EQ(pair.target.back(), *t5.id_of("</s>"));
  EXPECT_TRUE(pair.answers.empty());
}

TEST_F(Supervised, PackedRowsAreWholeAndFit) {
  Ids lengths;
  for (int64_t i = 0; i < 200; ++i) {
    lengths.push_back(1 + (i * 37) % 64);
  }
  std::set<std::vector<std::vector<size_t>>> seen;
  for (const uint64_t seed : {1, 2, 3}) {
    const auto packed = packed_rows(lengths, 64, seed);
    EXPECT_EQ(packed, packed_rows(lengths, 64, seed));
    seen.insert(packed);
    std::set<size_t> rows;
    for (const auto& sequence : packed) {
      int64_t sum = 0;
      for (const size_t one : sequence) {
        EXPECT_TRUE(rows.insert(one).second);
        sum += lengths[one];
      }
      EXPECT_LE(sum, 64);
    }
    EXPECT_EQ(rows.size(), lengths.size());
    const auto least = std::accumulate(lengths.begin(), lengths.end(), 0) / 64;
    EXPECT_LE(static_cast<int64_t>(packed.size()), least + 3);
  }
  EXPECT_EQ(seen.size(), 3U);
}

TEST_F(Supervised, PackedAndPaddedRowsHaveTheLossesOfRowsAlone) {
  const auto words = tokenizer("qwen2", "<|end|>", kLines);
  std::string rows;
  for (int i = 0; i < 7; ++i) {
    rows += json{{"messages",
                  {said("user", std::string(static_cast<size_t>(1 + i), 'a')),
                   said("assistant", i % 2 == 0 ? "yes" : "no way to tell")}}}
                .dump() +
            "\n";
  }
  rows += json{{"prompt", "two"}, {"completion", " spaces"}}.dump() + "\n";
  const auto texts = encoder(words).read({file("rows.jsonl", rows)});
  ASSERT_EQ(texts.size(), 8U);
  SupervisedInputs inputs;
  inputs.max_length = 80;
  inputs.multiple_of = 4;
  const SupervisedBatches padded(texts, inputs, {}, words, 1);
  inputs.is_packed = true;
  const SupervisedBatches packed(texts, inputs, {}, words, 1);
  ASSERT_EQ(padded.size(), 8U);
  ASSERT_LT(packed.size(), 6U);
  tests::on_ranks(1, [&] { // threads of LibTorch do not survive a fork
    for (const char* name : {"gpt2", "llama"}) {
      json config = read_json(fixture("models") / name / "config.json");
      config["vocab_size"] = words.size();
      for (const char* key : {"n_positions", "max_position_embeddings"}) {
        if (config.contains(key)) {
          config[key] = 80;
        }
      }
      torch::manual_seed(3);
      const auto model = zoo::from_config(config);
      model->to(torch::kDouble);
      model->eval();
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) { // far from uniform
        parameter.normal_(0, 0.5);
      }
      // By hand: of each learned token, given those before it.
      std::vector<double> sums;
      for (const SupervisedText& text : texts) {
        zoo::ModelInput alone;
        alone.input_ids = torch::tensor(text.tokens).unsqueeze(0);
        const at::Tensor scores =
            model->forward(alone).logits[0].log_softmax(-1);
        double sum = 0;
        for (const TokenRange& range : text.answers) {
          for (int64_t i = range.begin; i < range.end; ++i) {
            sum -= scores[i - 1][text.tokens[static_cast<size_t>(i)]]
                       .item<double>();
          }
        }
        sums.push_back(sum);
      }
      for (const SupervisedBatches* data : {&padded, &packed}) {
        for (size_t i = 0; i < data->size(); ++i) {
          double sum = 0;
          int64_t learned = 0;
          for (const size_t one : data->examples()[i]) {
            sum += sums[one];
            learned += texts[one].learned();
          }
          const zoo::ModelInput input = data->make({i}, 0, true);
          EXPECT_NEAR(
              model->forward(input).loss.item<double>(),
              sum / static_cast<double>(learned),
              1e-10)
              << name << " " << i;
          if (data->examples()[i].size() > 1) {
            zoo::ModelInput without = input; // makes a difference
            without.others.erase("document_ids");
            EXPECT_GT(
                std::abs(
                    model->forward(without).loss.item<double>() -
                    sum / static_cast<double>(learned)),
                1e-6);
          }
        }
      }
      // Together, with padding.
      std::vector<size_t> all(padded.size());
      std::iota(all.begin(), all.end(), 0);
      const zoo::ModelInput input = padded.make(all, 0, true);
      EXPECT_EQ(input.input_ids.size(1) % 4, 0);
      int64_t learned = 0;
      for (const SupervisedText& text : texts) {
        learned += text.learned();
      }
      EXPECT_NEAR(
          model->forward(input).loss.item<double>(),
          std::accumulate(sums.begin(), sums.end(), 0.0) /
              static_cast<double>(learned),
          1e-10);
    }
  });
}

TEST_F(Supervised, BadRowsAreNamed) {
  const auto words = tokenizer("qwen2", "<|end|>", kLines);
  const std::string good = R"({"prompt": "a", "completion": " b"})";
  const std::string chat = json{{"messages", {said("user", "a")}}}.dump();
  const auto refuses = [&](const std::string& line,
                           const Names& parts,
                           PromptKind kind = PromptKind::kDecoder) {
    const auto path = file("bad.jsonl", good + "\n" + line + "\n");
    try {
      encoder(words, {}, kind).read({path});
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("bad.jsonl:2"), std::string::npos) << message;
      for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
      }
    }
    SupervisedOptions skips;
    skips.rows.bad_rows = text::BadRows::kSkip;
    EXPECT_EQ(encoder(words, skips, kind).read({path}).size(), 1U) << line;
  };
  refuses(R"({"prompt": "a"})", {"'completion'", "data.messages_key"});
  refuses(R"({"b": "a", "chat": []})", {"but 'b, chat'"});
  refuses(R"({"completion": "a"})", {"'prompt'"});
  refuses(R"({"prompt": "a", "completion": 3})", {"'completion' is 3"});
  refuses(R"({"prompt": "a", "completion": ""})", {"'completion' is empty"});
  for (const char* blank : {" ", " \\n\\t", "\u3000"}) { // ideographic space
    refuses(
        R"({"prompt": "a", "completion": ")" + std::string(blank) + "\"}",
        {"'completion' is empty (spaces alone)", "data.skip_bad_rows=true"});
  }
  refuses(R"({"messages": "a"})", {"'messages' is \"a\""});
  refuses(R"({"messages": [{"content": "a"}]})", {"'messages' is"});
  refuses(chat, {"no answer", "the roles are user"});
  const auto chat_of = [](const json& messages) {
    return json{{"messages", messages}}.dump();
  };
  refuses(
      chat_of({said("user", "a"), said("bot", "b")}),
      {"no answer of the role assistant", "the roles are user, bot"});
  refuses(
      chat_of({{{"role", "user"}}, said("assistant", "b")}),
      {"messages[0] of the role \"user\" has no 'content'"});
  refuses(
      chat_of({said("user", "a"), said("assistant", "")}),
      {"messages[1] of the role \"assistant\" has an empty 'content'"});
  refuses(
      chat_of({said("user", "a"), said("assistant", "\n ")}),
      {"messages[1] of the role \"assistant\" has an empty 'content' (without text, or spaces alone)",
       "data.skip_bad_rows=true"});
  for (const json& content : {json(), json(""), json("  ")}) {
    const json calls{
        {"role", "assistant"},
        {"content", content},
        {"tool_calls", json::array({{{"function", {{"name", "f"}}}}})}};
    refuses(
        chat_of({said("user", "a"), calls}),
        {"messages[1]", "does not write its tool_calls", "empty answer"});
  }
  const auto weighted = [&](const json& weight) {
    json answer = said("assistant", "b");
    answer["weight"] = weight;
    return chat_of({said("user", "a"), answer});
  };
  refuses(weighted(0.5), {"'weight' of a message is 0.5"});
  refuses(weighted(0), {"no answer", "are switched off (weight, train)"});
  const json nothing = {{"type", "text"}, {"text", ""}};
  for (const json& content :
       {json::array(),
        json::array({nothing}),
        json::array({{{"type", "text"}, {"text", " "}}}),
        json::array({nothing, nothing})}) {
    refuses(
        chat_of(
            {said("user", "a"), {{"role", "assistant"}, {"content", content}}}),
        {"messages[1] of the role \"assistant\" has an empty 'content'"});
  }
  refuses(
      chat_of(
          {{{"role", "user"},
            {"content",
             json::array({{{"type", "image_url"}, {"image_url", "a.png"}}})}},
           said("assistant", "b")}),
      {"messages[0]", "image_url", "must be texts"});
  refuses(chat, {"encoder-decoder"}, PromptKind::kEncoderDecoder);
  refuses(R"({"prompt": )", {});
  const std::string table = file("t.csv", "messages\nhi\n");
  expect_error(
      [&] { encoder(words).read({table}); }, {"t.csv:2", "JSON lines"});
  expect_error(
      [&] { encoder(words).read({file("empty.jsonl", "")}); }, {"empty.jsonl"});
  // A tokenizer without a template is no row's fault.
  SupervisedOptions skips;
  skips.rows.bad_rows = text::BadRows::kSkip;
  expect_error(
      [&] {
        encoder(tokenizer("qwen2", "<|end|>"), skips)
            .read({file("chat.jsonl", chat + "\n" + good + "\n")});
      },
      {"no chat template"});
}

// Learns four translations by heart; the score is the same over two ranks.
TEST_F(Supervised, ModelsLearnToTranslate) {
  std::string rows;
  for (const auto& [from, to] : kWords) {
    rows += json{{"prompt", from}, {"completion", to}}.dump() + "\n";
  }
  file("heldout.jsonl", rows);
  file("train.jsonl", rows + rows);
  file(
      "stems.jsonl",
      json{{"prompt", kWords[2].first}, {"completion", "def if returning"}}
          .dump());
  for (const auto& [model, words, eos] :
       {std::tuple{"t5", "t5", "</s>"},
        std::tuple{"llama", "llama2", "</s>"}}) {
    SCOPED_TRACE(model);
    const Names more{
        "training.epochs=40",
        "training.batch_size=1",
        "training.evaluate_every=1000",
        "training.best_metric=heldout_rouge_l"};
    tests::on_ranks(1, [&, model = model, words = words, eos = eos] {
      write_model(model, words, eos);
      config();
      const auto untrained = evaluate_run(folder_ / "train.json");
      EXPECT_EQ(untrained.values.at("heldout_exact_match"), 0.0);
      EXPECT_GT(untrained.values.at("heldout_loss"), 2);
    });
    tests::on_ranks(1, [&] {
      const auto result = run_training(config(more));
      ASSERT_TRUE(result.score.has_value());
      const auto& values = result.score->values;
      EXPECT_EQ(values.at("heldout_exact_match"), 1.0);
      EXPECT_EQ(values.at("heldout_rouge_l"), 1.0);
      EXPECT_GT(values.at("heldout_bleu"), 20);
      EXPECT_LT(values.at("heldout_loss"), 0.2);
      EXPECT_EQ(values.at("heldout_generated"), 4);
      EXPECT_EQ(evaluate_run(run_).values, values);
      std::ofstream(folder_ / "after.json") << values;
      // The model writes "def if return".
      const auto rouge_of = [&](const std::string& stemmer) {
        return evaluate_run(
                   run_,
                   {"data.heldout=" + (folder_ / "stems.jsonl").string(),
                    "data.rouge_stemmer=" + stemmer})
            .values.at("heldout_rouge_l")
            .get<double>();
      };
      EXPECT_NEAR(rouge_of("false"), 2.0 / 3, 1e-12);
      EXPECT_EQ(rouge_of("true"), 1.0);
    });
    tests::on_ranks(2, [&] {
      const auto score = evaluate_run(run_, {"training.batch_size=3"});
      const json after = read_json(folder_ / "after.json");
      for (const auto& [name, value] : after.items()) {
        EXPECT_NEAR(score.values.at(name), value, 1e-5) << name;
      }
      const auto fewer = evaluate_run(run_, {"data.generate_heldout=3"}).values;
      EXPECT_EQ(fewer.at("heldout_generated"), 3);
    });
  }
}

// A model of 144 positions writes to their end, from each prompt.
TEST_F(Supervised, GeneratedTextsDoNotDependOnTheBatch) {
  std::string rows;
  for (int words = 1; words <= 10; words += 3) {
    std::string prompt;
    for (int i = 0; i < words; ++i) {
      prompt += "the world ";
    }
    rows += json{{"prompt", prompt}, {"completion", "is here"}}.dump() + "\n";
  }
  file("heldout.jsonl", rows);
  file("train.jsonl", rows);
  tests::on_ranks(1, [&] {
    write_model("gpt2", "llama2", "</s>");
    TrainingConfig given = config({"data.max_new_tokens=200"});
    World& world = init();
    prepare_data(given, world, ModelState::kFirst);
    ParallelRun parallel(world, given.parallel, 1);
    const Task task =
        given.task->open(given, world, parallel, ModelState::kFirst);
    Engine engine = wrap_model(world, parallel, given, task.model);
    const auto alone = evaluate(task, engine, parallel, 1)->generated;
    ASSERT_EQ(alone.size(), 4U);
    EXPECT_GT(alone[0].size(), alone[3].size());
    EXPECT_EQ(evaluate(task, engine, parallel, 3)->generated, alone);
  });
}

// No text can be generated then, but the trainer knows what is to be done.
TEST_F(Supervised, ALossThatIsNotFiniteIsAScore) {
  file("train.jsonl", R"({"prompt": "a", "completion": "b"})");
  file("heldout.jsonl", R"({"prompt": "a", "completion": "b"})");
  tests::on_ranks(1, [&] {
    write_model("llama", "llama2", "</s>");
    const auto model = zoo::from_pretrained(model_);
    {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model->parameters()) {
        parameter.fill_(NAN);
      }
    }
    zoo::save_pretrained(*model, folder_ / "spoiled");
    fs::copy_file(
        folder_ / "spoiled" / "model.safetensors",
        model_ / "model.safetensors",
        fs::copy_options::overwrite_existing);
    config();
    const auto score = evaluate_run(folder_ / "train.json");
    EXPECT_TRUE(std::isnan(score.values.at("heldout_loss").get<double>()));
    EXPECT_EQ(score.values.at("heldout_exact_match"), 0.0);
    EXPECT_EQ(score.values.at("heldout_generated"), 1);
  });
}

TEST_F(Supervised, GoesOnInTheMiddleOfAnEpoch) {
  std::string rows;
  for (int i = 0; i < 40; ++i) {
    rows += json{{"messages",
                  {said("user", std::string(static_cast<size_t>(1 + i), 'a')),
                   said("assistant", std::to_string(i * i))}}}
                .dump() +
            "\n";
  }
  file("train.jsonl", rows);
  const auto run = [&](const std::string& name, const Names& more) {
    tests::on_ranks(1, [&] {
      Names overrides{
          "data.heldout=",
          "data.metric=[]",
          "training.epochs=2",
          "schedule.decay=constant",
          "training.batch_size=2",
          "output.overwrite=false",
          "output.folder=" + (folder_ / name).string()};
      overrides.insert(overrides.end(), more.begin(), more.end());
      run_training(config(overrides));
    });
    return runtime::read_text_file(folder_ / name / "model/model.safetensors");
  };
  tests::on_ranks(1, [&] { write_model("llama", "qwen2", "<|end|>", kLines); });
  for (const std::string packed : {"data.packed=true", "data.packed=false"}) {
    const std::string name = packed == "data.packed=true" ? "p" : "u";
    const auto full = run(name + "whole", {packed});
    const auto part =
        run(name + "part",
            {packed, "training.max_steps=3", "training.save_every=3"});
    EXPECT_FALSE(part == full);
    EXPECT_TRUE(run(name + "part", {packed, "training.resume=true"}) == full);
  }
}

TEST_F(Supervised, WhatDoesNotFitIsNamed) {
  file("train.jsonl", R"({"prompt": "a", "completion": "b"})");
  file("heldout.jsonl", R"({"prompt": "a", "completion": "b"})");
  expect_error([&] { config({"data.metric=[\"accuracy\"]"}); }, {"rouge_l"});
  expect_error([&] { config({"data.heldout="}); }, {"data.metric"});
  expect_error([&] { config({"data.template={prompt}"}); }, {"[completion]"});
  expect_error([&] { config({"model.folder="}); }, {"model.folder"});
  tests::on_ranks(1, [&] {
    write_model("t5", "t5", "</s>");
    expect_error(
        [&] { run_training(config({"data.packed=true"})); }, {"data.packed"});
    for (const char* metric : {"generated", "rouge"}) {
      expect_error(
          [&] {
            run_training(config(
                {"training.batch_size=1",
                 "training.evaluate_every=1000",
                 std::string("training.best_metric=") + metric}));
          },
          {"training.best_metric is", metric, "rouge_l"});
    }
  });
  tests::on_ranks(1, [&] {
    write_model("bert", "bert", "[SEP]");
    expect_error([&] { run_training(config()); }, {"has no language model"});
  });
  EXPECT_FALSE(fs::exists(run_));
}

} // namespace tessera::tasks::supervised_test
