// SPDX-License-Identifier: Apache-2.0
// Texts that language models classify: prompts, the words of labels, and their
// likelihood.
#include "tessera/tasks/prompt_batches.h"
#include "tessera/tasks/prompt_template.h"

#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/prompted_model.h"
#include "tessera/tasks/run_training.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/scaled_glm.h"
#include "zoo/support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

namespace tessera::tasks::prompts_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Names = std::vector<std::string>;

/// "glm": letters, and the marks of GLM.
fs::path tokenizer_file(const std::string& name) {
  return name == "glm" ? fixture("text_generation/tokenizer.json")
                       : fixture("tokenizers") / (name + ".json");
}

/// The text that tokens stand for.
std::string decoded(
    const text::Tokenizer& tokenizer,
    const std::vector<int64_t>& ids) {
  return tokenizer.decode(ids);
}

class Prompts : public ::testing::Test {
 protected:
  /// BoolQ's format: the answer is in the question.
  void write_data(int rows, const std::string& name) const {
    std::ofstream out(folder_ / name);
    for (int i = 0; i < rows; ++i) {
      out << json{{"passage", i % 3 == 0 ? "a game of cards" : "a mail server"}, {"question", i % 2 == 0 ? "is it so" : "was it ever"}, {"label", i % 2 == 0}}
          << "\n";
    }
  }

  void write_model(const std::string& name, const std::string& tokenizer)
      const {
    const auto own = text::Tokenizer::from_file(tokenizer_file(tokenizer));
    json config = read_json(fixture("models") / name / "config.json");
    config["vocab_size"] = own.size();
    for (const char* key :
         {"n_positions", "max_position_embeddings", "max_sequence_length"}) {
      if (config.contains(key)) {
        config[key] = 144;
      }
    }
    for (const char* key :
         {"attn_pdrop",
          "embd_pdrop",
          "resid_pdrop",
          "dropout_rate",
          "attention_dropout_prob",
          "embedding_dropout_prob",
          "output_dropout_prob"}) {
      if (config.contains(key)) {
        config[key] = 0.0;
      }
    }
    torch::manual_seed(3);
    zoo::save_pretrained(*zoo::from_config(config), model_);
    fs::copy(
        tokenizer_file(tokenizer),
        model_ / "tokenizer.json",
        fs::copy_options::overwrite_existing);
  }

  TrainingConfig config(const Names& overrides = {}) const {
    const fs::path file = folder_ / "train.json";
    const json values = {
        {"task", "text_classification"},
        {"model", {{"folder", model_.string()}, {"max_length", 80}}},
        {"data",
         {{"preset", "super_glue/boolq"},
          {"train", (folder_ / "train.jsonl").string()},
          {"heldout", (folder_ / "heldout.jsonl").string()},
          {"template", template_},
          {"verbalizers", {"true=yes", "false=no"}}}},
        {"optimizer", {{"lr", 0.01}}},
        {"schedule", {{"warmup_steps", 0}}},
        {"training",
         {{"clip_grad_norm", 0}, {"batch_size", 8}, {"epochs", 20}}},
        {"output", {{"folder", run_.string()}, {"overwrite", true}}}};
    runtime::write_file_atomically(file, values.dump());
    return read_training_config(file, overrides);
  }

  std::string template_ = "{passage} question: {question}? answer: [label]";
  const TemporaryFolder folder_;
  const fs::path model_ = folder_ / "base";
  const fs::path run_ = folder_ / "run";
};

} // namespace

TEST_F(Prompts, TemplatesAreFilledFromRows) {
  const text::TextRow row{
      {{"a", "one {b}"}, {"b", 2}, {"c", true}, {"d", nullptr}}, "f.jsonl", 3};
  EXPECT_EQ(
      PromptTemplate("{a}, {b}? {c}: [label]").fill(row), "one {b}, 2? true:");
  EXPECT_EQ(PromptTemplate("x[label]").fill(row), "x");
  for (const char* wrong :
       {"{a}", "[label] {a}", "{a} [label] [label]", "{a [label]"}) {
    expect_error([&] { const PromptTemplate no(wrong); }, {"data.template"});
  }
  expect_error(
      [&] { PromptTemplate("{e} [label]").fill(row); },
      {"f.jsonl:3: there is no 'e'"});
  expect_error(
      [&] { PromptTemplate("{d} [label]").fill(row); },
      {"f.jsonl:3: 'd' is null"});
  EXPECT_EQ(
      verbalizers_of({"no", "yes"}, {"yes=right=so"}),
      (Names{"no", "right=so"}));
  expect_error([] { verbalizers_of({"a", "b"}, {"c=x"}); }, {"\"c=x\""});
  expect_error([] { verbalizers_of({"a", "b"}, {"a=b"}); }, {"the same words"});
}

// Where a row has several texts, each has a prompt.
TEST_F(Prompts, TemplatesNameTheTextsOfPresets) {
  std::ofstream(folder_ / "copa.jsonl")
      << R"({"premise": "It rained.", "question": "effect", "choice1": "I ate.", "choice2": "I got wet.", "label": 1})";
  TextClassificationColumns columns;
  columns.preset = &text_preset("super_glue/copa");
  columns.prompt = "{first_text} {second_text}? [MASK], {premise}";
  const auto texts =
      read_labelled_texts({folder_ / "copa.jsonl"}, columns).texts;
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_EQ(
      texts[0].text,
      "It rained. What happened as a result? I ate.? [MASK], It rained.");
  EXPECT_EQ(
      texts[1].text,
      "It rained. What happened as a result? I got wet.? [MASK], It rained.");
  EXPECT_NE(texts[0].labels, texts[1].labels);
  EXPECT_EQ(texts[0].group, texts[1].group);
  columns.prompt = "{premise} [label]";
  expect_error(
      [&] { read_labelled_texts({folder_ / "copa.jsonl"}, columns); },
      {"copa.jsonl:1", "{second_text}"});
}

TEST_F(Prompts, WordsAreTheTokensAfterThePrompt) {
  const std::string prompt = "a mail server question: is it so? answer:";
  for (const char* name : {"gpt2", "llama2", "qwen2"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = text::Tokenizer::from_file(tokenizer_file(name));
    const auto text = prompted_text(
        {prompt, " "}, {"yes", "no way"}, tokenizer, PromptKind::kDecoder, 80);
    EXPECT_FALSE(text.is_truncated);
    EXPECT_EQ(text.labels[1].input, tokenizer.encode(prompt + " no way").ids());
    for (const PromptedLabel& one : text.labels) {
      EXPECT_TRUE(
          std::equal(one.words.rbegin(), one.words.rend(), one.input.rbegin()));
    }
    const auto spoken = decoded(tokenizer, text.labels[1].words);
    // A token may hold the end of the prompt, too.
    EXPECT_TRUE(spoken.ends_with("no way")) << spoken;
    // A prompt that is too long loses its beginning, not its end.
    const auto cut = prompted_text(
        {prompt, " "}, {"yes", "no way"}, tokenizer, PromptKind::kDecoder, 20);
    EXPECT_TRUE(cut.is_truncated);
    EXPECT_EQ(cut.labels[0].input.size(), 20U);
    EXPECT_EQ(cut.labels[0].words, text.labels[0].words);
    EXPECT_TRUE(std::equal(
        cut.labels[0].input.rbegin(),
        cut.labels[0].input.rend() - 1,
        text.labels[0].input.rbegin()));
    EXPECT_EQ(
        cut.labels[0].input.front() == text.labels[0].input.front(),
        std::string(name) == "llama2"); // which begins with <s>
    expect_error(
        [&] {
          prompted_text(
              {prompt, " "}, {"no way"}, tokenizer, PromptKind::kDecoder, 1);
        },
        {"\"no way\"", "model.max_length is 1"});
  }
  // What is between them is what the template has there.
  const auto gpt2 = text::Tokenizer::from_file(tokenizer_file("gpt2"));
  for (const char* separator : {"", " ", "  "}) {
    const auto text = prompted_text(
        {"so:", separator}, {"yes"}, gpt2, PromptKind::kDecoder, 80);
    EXPECT_EQ(
        decoded(gpt2, text.labels[0].words), std::string(separator) + "yes");
    EXPECT_EQ(
        text.labels[0].input,
        gpt2.encode(std::string("so:") + separator + "yes").ids());
  }
  const auto t5 = text::Tokenizer::from_file(tokenizer_file("t5"));
  const auto text = prompted_text(
      {prompt, " "}, {"yes"}, t5, PromptKind::kEncoderDecoder, 12);
  EXPECT_TRUE(text.is_truncated);
  EXPECT_EQ(text.labels[0].words, t5.encode("yes").ids());
  EXPECT_EQ(text.labels[0].input.size(), 12U);
  EXPECT_EQ(text.labels[0].input.back(), *t5.id_of("</s>"));
  EXPECT_TRUE(
      decoded(t5, text.labels[0].input).find("answer:") != std::string::npos);
}

TEST_F(Prompts, LikelihoodsAreSumsOverTheWords) {
  tests::on_ranks(1, [] {
    const at::Tensor logits =
        torch::tensor({{{1.0, 2.0, 0.5}, {0.0, 3.0, 1.0}, {2.0, 2.0, 2.0}}});
    const auto at_place = [&](int64_t place, int64_t token) {
      const at::Tensor row = logits[0][place];
      return (row[token] - row.logsumexp(0)).item<double>();
    };
    const at::Tensor labels = torch::tensor({{-100, 2, 0}}, at::kLong);
    EXPECT_NEAR(
        label_likelihoods(logits, labels, PromptKind::kDecoder).item<double>(),
        at_place(0, 2) + at_place(1, 0),
        1e-6);
    EXPECT_NEAR(
        label_likelihoods(logits, labels, PromptKind::kEncoderDecoder)
            .item<double>(),
        at_place(1, 2) + at_place(2, 0),
        1e-6);
  });
}

// tests/fixture_makers/text_generation.py has the formulas.
TEST_F(Prompts, WordsInBlanksAreScoredAsByTheFormulas) {
  tests::on_ranks(1, [] {
    const json fixtures = read_json(fixture("text_generation/blanks.json"));
    const auto model = zoo::from_pretrained(fixture("models") / "glm_2021");
    tests::scale_glm(*model, fixtures.at("scales"));
    ASSERT_EQ(prompt_kind_of(*model), PromptKind::kBlank);
    const auto tokenizer = text::Tokenizer::from_file(tokenizer_file("glm"));
    std::vector<PromptedText> texts;
    std::vector<const PromptedLabel*> labels;
    std::vector<double> expected;
    for (const json& one : fixtures.at("worded")) {
      texts.push_back(prompted_text(
          {one.at("prompt").get<std::string>(), ""},
          one.at("words"),
          tokenizer,
          PromptKind::kBlank,
          40)); // positions of blanks do not count
      EXPECT_FALSE(texts.back().is_truncated);
      expected.insert(
          expected.end(), one.at("scores").begin(), one.at("scores").end());
    }
    for (const PromptedText& text : texts) {
      for (const PromptedLabel& label : text.labels) {
        labels.push_back(&label);
      }
    }
    // One batch: rows of several lengths, and words of several tokens.
    const at::NoGradGuard no_grad;
    const zoo::ModelInput input = prompted_input(
        labels, PromptKind::kBlank, prompt_inputs(*model, tokenizer));
    const at::Tensor scores = label_likelihoods(
        model->forward(input).logits, input.labels, PromptKind::kBlank);
    ASSERT_EQ(scores.numel(), static_cast<int64_t>(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i) {
      // float32 on both sides
      EXPECT_NEAR(
          scores[static_cast<int64_t>(i)].item<double>(), expected[i], 1e-4);
    }
  });
}

TEST_F(Prompts, PromptsWithBlanksLoseWhatIsFarFromThem) {
  const auto tokenizer = text::Tokenizer::from_file(tokenizer_file("glm"));
  const auto shown = [&](const std::string& prompt, int64_t length) {
    const auto text = prompted_text(
        {prompt, ""}, {"xy"}, tokenizer, PromptKind::kBlank, length);
    const PromptedLabel& label = text.labels.front();
    EXPECT_EQ(label.input.size(), static_cast<size_t>(length));
    EXPECT_TRUE(text.is_truncated);
    EXPECT_EQ(
        label.input[static_cast<size_t>(label.blank)],
        *tokenizer.id_of("[MASK]"));
    return tokenizer.decode(label.input, /*skip_special_tokens=*/false);
  };
  // The start token and the first of two words are behind.
  EXPECT_EQ(
      shown("bcdf[MASK]ghjk", 11),
      "[CLS]df[MASK]ghjk<|endoftext|><|startofpiece|>x");
  EXPECT_EQ(
      shown("bcdf[MASK]ghjk", 7),
      "[CLS][MASK]gh<|endoftext|><|startofpiece|>x");
  expect_error(
      [&] {
        prompted_text(
            {"b[MASK]", ""}, {"xy"}, tokenizer, PromptKind::kBlank, 4);
      },
      {"\"xy\"", "model.max_length is 4"});
}

// Trained on the words, language models tell the labels; untrained they do not.
TEST_F(Prompts, LanguageModelsLearnToClassify) {
  write_data(48, "train.jsonl");
  write_data(13, "heldout.jsonl");
  for (const auto& [model, tokenizer] :
       {std::pair{"gpt2", "gpt2"},
        std::pair{"llama", "llama2"},
        std::pair{"t5", "t5"},
        std::pair{"glm_2021", "glm"}}) {
    SCOPED_TRACE(model);
    if (std::string(model) == "glm_2021") {
      template_ = "{question}? [MASK], {passage}";
    }
    tests::on_ranks(1, [&] {
      write_model(model, tokenizer);
      config();
      const auto untrained = evaluate_run(folder_ / "train.json");
      EXPECT_GT(untrained.values.at("heldout_loss"), 2);
      std::ofstream(folder_ / "before.json") << untrained.values;
    });
    tests::on_ranks(1, [&] {
      const auto result = run_training(config());
      ASSERT_TRUE(result.score.has_value());
      EXPECT_EQ(result.score->values.at("heldout_accuracy"), 1.0);
      EXPECT_LT(result.score->values.at("heldout_loss"), 0.5);
      EXPECT_EQ(result.score->values.at("heldout_examples"), 13);
      EXPECT_EQ(evaluate_run(run_).values, result.score->values);
      std::ofstream(folder_ / "after.json") << result.score->values;
    });
    // 26 rows of texts and labels over 4 ranks, not all of which have as many.
    tests::on_ranks(4, [&] {
      const auto score = evaluate_run(run_, {"training.batch_size=3"});
      const json after = read_json(folder_ / "after.json");
      for (const auto& [name, value] : after.items()) {
        EXPECT_NEAR(score.values.at(name), value, 1e-5) << name;
      }
      config();
      const auto untrained =
          evaluate_run(folder_ / "train.json", {"training.batch_size=3"});
      const json before = read_json(folder_ / "before.json");
      for (const auto& [name, value] : before.items()) {
        EXPECT_NEAR(untrained.values.at(name), value, 1e-5) << name;
      }
    });
  }
}

TEST_F(Prompts, WhatDoesNotFitIsNamed) {
  write_data(8, "train.jsonl");
  write_data(4, "heldout.jsonl");
  tests::on_ranks(1, [&] {
    write_model("bert", "bert");
    expect_error([&] { run_training(config()); }, {"has no language model"});
  });
  expect_error(
      [&] { config({"data.template=no label"}); },
      {"data.template", "[label]"});
  expect_error(
      [&] { config({"data.template="}); }, {"verbalizers", "data.template"});
  expect_error(
      [&] { config({"data.preset=glue/stsb"}); }, {"one class per text"});
  tests::on_ranks(1, [&] {
    write_model("gpt2", "gpt2");
    expect_error(
        [&] {
          run_training(config({"data.template={passage} {title} [label]"}));
        },
        {"train.jsonl:1: there is no 'title'"});
    expect_error(
        [&] {
          run_training(config(
              {"data.preset=null",
               "data.label_key=label",
               R"(data.verbalizers=["true=yes"])"}));
        },
        {"train.jsonl:2", "data.verbalizers", "'false'", "\"false=false\""});
    expect_error(
        [&] { run_training(config({"data.preset=super_glue/multirc"})); },
        {"train.jsonl:1"});
    expect_error(
        [&] { run_training(config({"data.template={question} [MASK]"})); },
        {"fills no blanks", "[label]"});
    write_model("glm_2021", "glm");
    expect_error(
        [&] { run_training(config()); }, {"fills blanks", "write [MASK]"});
    std::ofstream(folder_ / "train.jsonl")
        << json{{"passage", "a [gMASK]"}, {"question", "b"}, {"label", true}};
    expect_error(
        [&] {
          run_training(config({"data.template={question}? [MASK], {passage}"}));
        },
        {"train.jsonl:1: 'passage' has [gMASK]"});
  });
  EXPECT_FALSE(fs::exists(run_));
}

} // namespace tessera::tasks::prompts_test
