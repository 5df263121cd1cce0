// SPDX-License-Identifier: Apache-2.0
// Direct preference optimization: losses, rewards and gradients against TRL
// (tests/fixture_makers/preference.py), what is an answer in a row, and runs.
#include "tessera/tasks/preference_loss.h"

#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/preference_batches.h"
#include "tessera/tasks/run_training.h"
#include "zoo/lora_fixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks::preference_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Names = std::vector<std::string>;

constexpr const char* kLines =
    "{% for m in messages %}{{ m.role }}:\n{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}";

const std::vector<std::pair<const char*, PreferenceOptions>>& cases() {
  static const std::vector<std::pair<const char*, PreferenceOptions>> all{
      {"sigmoid", {}},
      {"smoothed", {.beta = 0.3, .label_smoothing = 0.2}},
      {"ipo", {.loss = PreferenceLossKind::kIpo, .beta = 0.2}},
      {"free", {.reference_free = true}}};
  return all;
}

class TrlFixture {
 public:
  TrlFixture()
      : file_(
            runtime::SafetensorsFile::open(fixture("preference.safetensors"))) {
  }

  at::Tensor tensor(const std::string& name) const {
    return fixture_tensor(file_, name);
  }

  std::vector<PreferencePair> pairs() const {
    std::vector<PreferencePair> all;
    for (int pair = 0; pair < 3; ++pair) {
      all.push_back({text(2 * pair), text(2 * pair + 1)});
    }
    return all;
  }

  /// Gradients by names of the adapter's file.
  std::map<std::string, at::Tensor> gradients(const std::string& name) const {
    const std::string prefix = name + ".grad.";
    std::map<std::string, at::Tensor> found;
    for (const auto& entry : file_.entries()) {
      if (entry.name.starts_with(prefix)) {
        found[entry.name.substr(prefix.size())] = tensor(entry.name);
      }
    }
    return found;
  }

 private:
  SupervisedText text(int number) const {
    const at::Tensor tokens = tensor("tokens." + std::to_string(number));
    SupervisedText text;
    text.tokens.assign(
        tokens.const_data_ptr<int64_t>(),
        tokens.const_data_ptr<int64_t>() + tokens.numel());
    text.answers = {
        {tensor("prompt." + std::to_string(number)).item<int64_t>(),
         tokens.numel()}};
    return text;
  }

  runtime::SafetensorsFile file_;
};

SupervisedInputs inputs(bool packs) {
  return {.is_packed = packs, .max_length = 24, .padding_token = 0};
}

zoo::ModelInput batch_of(const TrlFixture& trl, bool packs) {
  const PreferenceBatches data(trl.pairs(), inputs(packs), 0);
  std::vector<size_t> all;
  for (size_t i = 0; i < data.size(); ++i) {
    all.push_back(i);
  }
  EXPECT_EQ(data.size(), packs ? 2U : 3U);
  return data.make(all, 0, true);
}

} // namespace

// In a process of its own: ranks cannot be forked from one that has computed on
// several threads.
TEST(PreferenceLoss, EqualsTrl) {
  tests::on_ranks(1, [] {
    const TrlFixture trl;
    const zoo::LoraFixture adapter("llama");
    for (const auto& [name, options] : cases()) {
      for (const bool packs : {false, true}) {
        SCOPED_TRACE(std::string(name) + (packs ? ", packed" : ""));
        const auto model = zoo::from_pretrained(adapter.base().folder());
        zoo::load_lora(*model, adapter.folder());
        PreferenceLoss preference(options, nullptr);
        const zoo::ModelInput batch = batch_of(trl, packs);
        const zoo::ModelOutput output = preference.score(*model, batch);
        at::Tensor found = output.logits.detach();
        at::Tensor wanted = torch::stack(
            {trl.tensor(std::string(name) + ".losses"),
             trl.tensor(std::string(name) + ".chosen"),
             trl.tensor(std::string(name) + ".rejected")},
            1);
        if (packs) { // pairs are packed in an order of their own
          found = std::get<0>(found.sort(0));
          wanted = std::get<0>(wanted.sort(0));
        }
        // float32 log-probabilities of about -20.
        EXPECT_TRUE(torch::allclose(found, wanted, 1e-4, 2e-5)) << found << "\n"
                                                                << wanted;
        preference.loss(*model, batch).backward();
        const auto gradients = trl.gradients(name);
        EXPECT_FALSE(gradients.empty());
        const auto parameters = model->named_parameters();
        size_t compared = 0;
        const zoo::WeightNames names = zoo::lora_names(*model);
        for (const zoo::NamedWeight& weight : names.weights()) {
          std::vector<torch::Tensor> native;
          for (const std::string& own : weight.native) {
            native.push_back(parameters[own].grad());
          }
          const at::Tensor& foreign = gradients.at(weight.name);
          EXPECT_TRUE(torch::allclose(
              weight.assemble(native),
              foreign,
              1e-3,
              1e-4 * foreign.abs().max().item<double>()))
              << weight.name;
          ++compared;
        }
        EXPECT_EQ(compared, gradients.size());
      }
    }
  });
}

class Preference : public ::testing::Test {
 protected:
  void write_model(const std::string& chat_template = "") const {
    const auto words =
        text::Tokenizer::from_file(fixture("tokenizers") / "llama2.json");
    json config = read_json(fixture("models") / "llama" / "config.json");
    config["vocab_size"] = words.size();
    config["pad_token_id"] = 0;
    config["eos_token_id"] = *words.id_of("</s>");
    config["max_position_embeddings"] = 96;
    torch::manual_seed(3);
    zoo::save_pretrained(*zoo::from_config(config), base_);
    fs::copy(
        fixture("tokenizers") / "llama2.json",
        base_ / "tokenizer.json",
        fs::copy_options::overwrite_existing);
    json settings{{"eos_token", "</s>"}};
    if (!chat_template.empty()) {
      settings["chat_template"] = chat_template;
    }
    std::ofstream(base_ / "tokenizer_config.json") << settings;
  }

  std::string file(const std::string& name, const std::vector<json>& rows)
      const {
    std::ofstream out(folder_ / name);
    for (const json& row : rows) {
      out << row << "\n";
    }
    return (folder_ / name).string();
  }

  TrainingConfig config(const Names& overrides = {}) const {
    const json values = {
        {"task", "preference"},
        {"model",
         {{"folder", base_.string()},
          {"max_length", 96},
          {"lora", {{"r", 4}, {"target_modules", "all-linear"}}}}},
        {"data", {{"train", rows_}, {"heldout", rows_}}},
        {"optimizer", {{"lr", 0.01}}},
        {"schedule", {{"decay", "constant"}}},
        {"training",
         {{"clip_grad_norm", 0},
          {"batch_size", 2},
          {"epochs", 20},
          {"seed", 5}}},
        {"output", {{"folder", run_.string()}, {"overwrite", true}}}};
    runtime::write_file_atomically(folder_ / "train.json", values.dump());
    return read_training_config(folder_ / "train.json", overrides);
  }

  static std::vector<json> texts() {
    std::vector<json> rows;
    for (const char* word : {"mail", "server", "numbers", "lines"}) {
      rows.push_back(
          {{"prompt", std::string("is ") + word + " good?"},
           {"chosen", "yes it is"},
           {"rejected", "no way"}});
    }
    return rows;
  }

  const TemporaryFolder folder_;
  const fs::path base_ = folder_ / "base";
  const fs::path run_ = folder_ / "run";
  const std::string rows_ = file("rows.jsonl", texts());
};

TEST_F(Preference, AnswersAreWhatFollowsThePrompt) {
  tests::on_ranks(1, [&] {
    write_model(kLines);
    const text::Tokenizer tokenizer = text::Tokenizer::from_folder(base_);
    SupervisedOptions options;
    options.messages = "(messages)";
    options.completion = "(completion)";
    const SupervisedEncoder texts(
        tokenizer, options, PromptKind::kDecoder, base_, tokenizer.size(), 96);
    const PreferenceEncoder encoder(texts, options, {});
    const auto learned = [&](const SupervisedText& text) {
      std::string all;
      for (const TokenRange& range : text.answers) {
        all += tokenizer.decode(
            {text.tokens.begin() + range.begin,
             text.tokens.begin() + range.end},
            /*skip_special_tokens=*/true);
        all += "|";
      }
      return all;
    };
    const auto said = [](const char* role, const char* content) {
      return json{{"role", role}, {"content", content}};
    };
    const json prompt{
        said("user", "hi"), said("assistant", "hello"), said("user", "well?")};
    json chosen = prompt;
    chosen.push_back(said("assistant", "yes"));
    json rejected = prompt;
    rejected.push_back(said("assistant", "no"));
    rejected.push_back(said("user", "sure?"));
    rejected.push_back(said("assistant", "not sure"));
    const auto encoded = [&](const json& row) {
      const auto pairs = encoder.read({file("row.jsonl", {row})});
      return std::pair(learned(pairs[0].chosen), learned(pairs[0].rejected));
    };
    const auto full = encoded({{"chosen", chosen}, {"rejected", rejected}});
    EXPECT_EQ(full.first, "yes \n|"); // with what ends it
    EXPECT_EQ(full.second, "no \n|not sure \n|");
    EXPECT_EQ(
        encoded(
            {{"prompt", prompt},
             {"chosen", json{said("assistant", "yes")}},
             {"rejected", "no"}}),
        std::pair(std::string("yes \n|"), std::string("no \n|")));
    EXPECT_EQ(
        encoded({{"prompt", "a b"}, {"chosen", " c"}, {"rejected", " d e"}}),
        std::pair(std::string("c|"), std::string("d e|")));
    expect_error(
        [&] {
          encoded({{"prompt", "a"}, {"chosen", "b"}});
        },
        {"row.jsonl:1", "'rejected'"});
    expect_error(
        [&] {
          encoded({{"prompt", "a"}, {"chosen", prompt}, {"rejected", "b"}});
        },
        {"'prompt'", "both must be lists"});
    expect_error( // hh-rlhf's form
        [&] {
          encoded({{"chosen", "Human: a"}, {"rejected", "Human: b"}});
        },
        {"row.jsonl:1", "there is no 'prompt'", "data.prompt_key"});
    expect_error(
        [&] {
          encoded({{"prompt", "a"}, {"chosen", "b"}, {"rejected", ""}});
        },
        {"'rejected' is empty", "leave out the row"});
    expect_error(
        [&] {
          encoded({{"prompt", "a"}, {"chosen", " \n"}, {"rejected", "b"}});
        },
        {"'chosen' is empty (spaces alone)", "leave out the row"});
  });
}

// Both ways to have the same reference train the same; held-out rows are
// scored alike over two ranks, and by `tessera eval`.
TEST_F(Preference, TrainsAgainstTheBaseOfTheAdapter) {
  tests::on_ranks(1, [&] { write_model(); });
  tests::on_ranks(2, [&] {
    const auto before =
        run_training(config({"training.max_steps=1", "optimizer.lr=1e-5"}));
    EXPECT_NEAR(
        before.score->values.at("heldout_margin").get<double>(), 0, 0.05);
    const auto result = run_training(config(
        {"training.evaluate_every=1000", "training.best_metric=margin"}));
    const auto values = result.score->values;
    EXPECT_EQ(values.at("heldout_accuracy"), 1.0);
    EXPECT_GT(values.at("heldout_margin").get<double>(), 0.3);
    EXPECT_LT(values.at("heldout_loss").get<double>(), 0.6);
    EXPECT_EQ(values.at("heldout_pairs"), 4);
    EXPECT_EQ(evaluate_run(run_).values, values);
    const auto other = run_training(config(
        {"preference.reference.folder=" + base_.string(),
         "output.folder=" + (folder_ / "other").string()}));
    for (const auto& [name, value] : values.items()) {
      EXPECT_NEAR(
          other.score->values.at(name).get<double>(), value.get<double>(), 1e-5)
          << name;
    }
    std::ofstream(folder_ / "values.json") << values;
  });
  tests::on_ranks(1, [&] {
    const json values = read_json(folder_ / "values.json");
    const auto alone = evaluate_run(run_).values;
    for (const auto& [name, value] : values.items()) {
      EXPECT_NEAR(alone.at(name).get<double>(), value.get<double>(), 1e-5)
          << name;
    }
    const auto packed = run_training(config(
        {"data.packed=true",
         "training.batch_size=1",
         "training.epochs=20",
         "preference.loss=ipo",
         "output.folder=" + (folder_ / "packed").string()}));
    EXPECT_EQ(packed.score->values.at("heldout_accuracy"), 1.0);
  });
}

// Packed sequences have different numbers of pairs, each of which counts once.
TEST_F(Preference, LossesAreMeansOverPairs) {
  tests::on_ranks(1, [&] {
    write_model();
    std::vector<json> rows = texts(); // in one sequence, and one in another
    std::string answer;
    for (int i = 0; i < 30; ++i) {
      answer += " it";
    }
    rows.push_back(
        {{"prompt", "is"}, {"chosen", answer}, {"rejected", answer + " no"}});
    const std::string train = file("unequal.jsonl", rows);
    const auto loss_of = [&](const Names& overrides) {
      Names all{
          "data.train=" + train,
          "data.packed=true",
          "preference.loss=ipo",
          "optimizer.type=sgd",
          "training.max_steps=3",
          "training.log_every=1"};
      all.insert(all.end(), overrides.begin(), overrides.end());
      run_training(config(all));
      std::ifstream lines(run_ / "metrics.jsonl");
      double loss = 0;
      for (std::string line; std::getline(lines, line);) {
        loss = json::parse(line).value("loss", loss);
      }
      return loss;
    };
    const double together = loss_of({"training.batch_size=2"});
    const Names apart{"training.batch_size=1", "training.accumulate=2"};
    EXPECT_NEAR(loss_of(apart), together, 1e-4 * together);
    EXPECT_GT(
        std::abs(
            loss_of({apart[0], apart[1], "training.loss_mean=micro_batches"}) -
            together),
        1e-3 * together);
  });
}

TEST_F(Preference, WhatDoesNotFitIsNamed) {
  tests::on_ranks(1, [&] {
    write_model();
    expect_error(
        [&] { config({"model.lora=null"}); }, {"preference.reference"});
    expect_error(
        [&] {
          config({"preference.loss=ipo", "preference.label_smoothing=0.1"});
        },
        {"label_smoothing"});
    expect_error(
        [&] {
          config(
              {"preference.reference_free=true",
               "preference.reference.folder=" + base_.string()});
        },
        {"reference_free"});
    expect_error(
        [&] { run_training(config({"model.lora.bias=all"})); }, {"lora.bias"});
    expect_error(
        [&] {
          run_training(config(
              {"training.evaluate_every=1000", "training.best_metric=pairs"}));
        },
        {"training.best_metric is 'pairs'", "margin"});
  });
}

} // namespace tessera::tasks::preference_test
