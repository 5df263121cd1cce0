// SPDX-License-Identifier: Apache-2.0
// Losses of preferences: losses, rewards and gradients against TRL
// (tests/fixture_makers/preference.py, preference_losses.py), what is an answer
// in a row, and runs.
#include "tessera/tasks/preference_loss.h"

#include "support/expect_error.h"
#include "tasks/preference_run.h"
#include "tessera/runtime/core/config.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/kto_batches.h"
#include "tessera/tasks/preference_batches.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks::preference_test {

namespace {

constexpr const char* kLines =
    "{% for m in messages %}{{ m.role }}:\n{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}";

const std::vector<std::pair<const char*, PreferenceOptions>>& cases() {
  static const std::vector<std::pair<const char*, PreferenceOptions>> all{
      {"sigmoid", {}},
      {"ipo", {.loss = PreferenceLossKind::kIpo, .beta = 0.2}}};
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

namespace {

/// Options of a case of preference_losses.py, read as the section `preference`.
PreferenceOptions options_of_case(const std::string& name, json values) {
  values["loss"] = name.substr(0, name.find('_'));
  const runtime::ConfigReader reader(values, name);
  PreferenceOptions options;
  runtime::read_fields(reader, options);
  reader.finish();
  return options;
}

} // namespace

TEST(PreferenceLosses, EqualThoseOfTrl) {
  tests::on_ranks(1, [] {
    const json all = read_json(fixture("preference_losses.json"));
    const at::Tensor reference = numbers_in(all["reference"]).to(at::kFloat);
    const at::Tensor lengths = numbers_in(all["lengths"]).to(at::kLong);
    std::set<std::string> compared;
    for (const auto& [name, wanted] : all["pairs"].items()) {
      const PreferenceOptions options =
          options_of_case(name, wanted["options"]);
      const at::Tensor policy =
          numbers_in(all["policy"]).to(at::kFloat).requires_grad_();
      const PairScores scores = pair_scores(
          policy,
          options.has_reference() ? reference : at::Tensor(),
          lengths,
          options);
      expect_close(scores.losses, wanted["losses"], name + ".losses");
      expect_close(scores.chosen, wanted["chosen"], name + ".chosen");
      expect_close(scores.rejected, wanted["rejected"], name + ".rejected");
      scores.losses.mean().backward();
      expect_close(policy.grad(), wanted["gradient"], name + ".gradient");
      compared.insert(rule_of(options.loss).name);
    }
    for (const PreferenceRule& rule : preference_rules()) {
      EXPECT_EQ(compared.contains(rule.name), rule.has_pairs()) << rule.name;
    }
  });
}

TEST(PreferenceLosses, OfGoodAndBadAnswersEqualThoseOfTrl) {
  tests::on_ranks(1, [] {
    const json all = read_json(fixture("preference_losses.json"));
    const at::Tensor reference = numbers_in(all["reference"]).to(at::kFloat);
    at::Tensor desirable = torch::zeros_like(reference);
    for (int64_t i = 0; i < desirable.size(0); ++i) {
      desirable[i] = all["desirable"][static_cast<size_t>(i)].get<bool>();
    }
    for (const auto& [name, wanted] : all["unpaired"].items()) {
      json given = wanted["options"];
      at::Tensor kl = (numbers_in(all["mismatched"]) -
                       numbers_in(all["mismatched_reference"]))
                          .mean()
                          .to(at::kFloat);
      if (given.contains("kl")) {
        kl = torch::full({}, given["kl"].get<double>());
        given.erase("kl");
      }
      const PreferenceOptions options = options_of_case(name, given);
      const at::Tensor policy =
          numbers_in(all["policy"]).to(at::kFloat).requires_grad_();
      const at::Tensor rewards = options.beta * (policy - reference);
      expect_close(rewards, wanted["rewards"], name + ".rewards");
      const at::Tensor losses = kto_losses(rewards, desirable, kl, options);
      expect_close(losses, wanted["losses"], name + ".losses");
      losses.mean().backward();
      expect_close(policy.grad(), wanted["gradient"], name + ".gradient");
    }
  });
}

// An answer whose probability is 1 has infinite odds.
TEST(PreferenceLosses, OfCertainAnswersAreFinite) {
  tests::on_ranks(1, [] {
    for (const PreferenceRule& rule : preference_rules()) {
      if (!rule.has_pairs()) {
        continue;
      }
      const at::Tensor policy =
          torch::tensor({0.0F, -1e4F, -1e4F, 0.0F}).requires_grad_();
      const PairScores scores = pair_scores(
          policy,
          {},
          torch::tensor({2, 1, 3, 1}, torch::kLong),
          {.loss = rule.kind});
      scores.losses.mean().backward();
      EXPECT_TRUE(scores.losses.isfinite().all().item<bool>()) << rule.name;
      EXPECT_TRUE(policy.grad().isfinite().all().item<bool>()) << rule.name;
    }
  });
}

class Preference : public PreferenceRun {
 protected:
  Preference() : PreferenceRun("preference") {}
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

TEST_F(Preference, LossesDoNotDependOnTheLayout) {
  tests::on_ranks(1, [&] { write_model(); });
  const std::string train = file("unequal.jsonl", unequal_texts());
  for (const PreferenceRule& rule : preference_rules()) {
    Names overrides{
        "data.train=" + train, std::string("preference.loss=") + rule.name};
    if (rule.has_pairs()) {
      overrides.emplace_back("preference.nll_weight=0.5");
    }
    if (rule.has_reference) {
      overrides.push_back("preference.reference.folder=" + base_.string());
    }
    train_in_layouts(overrides);
    expect_same_in_layouts(rule.name);
  }
}

TEST_F(Preference, MismatchedAnswersAreOfOtherPrompts) {
  tests::on_ranks(1, [&] {
    write_model(kLines);
    const text::Tokenizer tokenizer = text::Tokenizer::from_folder(base_);
    SupervisedOptions options;
    options.messages = "(messages)";
    options.completion = "(completion)";
    const SupervisedEncoder texts(
        tokenizer, options, PromptKind::kDecoder, base_, tokenizer.size(), 96);
    const PreferenceEncoder encoder(texts, options, {});
    const auto read = [&](const std::vector<json>& rows) {
      return encoder.read_judged({file("judged.jsonl", rows)});
    };
    const json asked = {{{"role", "user"}, {"content", "sure?"}}};
    const auto judged = read(
        {{{"prompt", "a b"}, {"chosen", " c"}, {"rejected", " d e"}},
         {{"prompt", "a b"}, {"completion", " f"}, {"label", 0}},
         {{"prompt", "g"}, {"completion", " h i"}, {"label", true}},
         {{"prompt", asked}, {"completion", "yes"}, {"label", "false"}}});
    ASSERT_EQ(judged.size(), 5U);
    std::vector<bool> good;
    for (const JudgedText& one : judged) {
      good.push_back(one.is_desirable);
    }
    EXPECT_EQ(good, (std::vector<bool>{true, false, false, true, false}));
    const KtoBatches data(judged, {.max_length = 96, .padding_token = 0}, {});
    const auto decoded = [&](const SupervisedText& text) {
      return tokenizer.decode(text.tokens, /*skip_special_tokens=*/true);
    };
    const auto learned = [&](const SupervisedText& text) {
      return tokenizer.decode(
          {text.tokens.begin() + text.answers.front().begin,
           text.tokens.begin() + text.answers.front().end},
          /*skip_special_tokens=*/true);
    };
    EXPECT_EQ(learned(data.mismatched(1)), "yes \n");
    EXPECT_EQ(decoded(data.mismatched(0)), decoded(data.mismatched(2)));
    EXPECT_EQ(decoded(data.mismatched(3)), "g f");
    EXPECT_EQ(learned(data.mismatched(3)), "f");
    EXPECT_EQ(learned(data.mismatched(4)), "h i");
    // They lose what is too long, and are in the batch with their own tokens.
    const int64_t most = data.mismatched(0).answers.front().begin + 1;
    const KtoBatches shorter(judged, {.max_length = most}, {});
    EXPECT_EQ(shorter.mismatched(0).tokens.size(), static_cast<size_t>(most));
    const zoo::ModelInput batch = data.make({3, 0}, 0, true);
    EXPECT_TRUE(batch.others.at(KtoInputs::kDesirable).equal(torch::ones({2})));
    EXPECT_EQ(
        batch.others.at("mismatched_answer_lengths")[0].item<int64_t>(),
        batch.others.at("mismatched_answer_tokens").size(0) -
            batch.others.at("mismatched_answer_lengths")[1].item<int64_t>());
    expect_error(
        [&] {
          KtoBatches(
              read(
                  {{{"prompt", "a"}, {"completion", "b"}, {"label", true}},
                   {{"prompt", "a"}, {"completion", "c"}, {"label", false}}}),
              {.max_length = 96},
              {});
        },
        {"2 rows have the same prompt", "choose a loss of pairs"});
    const std::pair<json, const char*> bad[] = {
        {{{"prompt", "a"}, {"completion", "b"}}, "there is no 'label'"},
        {{{"prompt", "a"}, {"label", true}}, "there is no 'completion'"},
        {{{"completion", "b"}, {"label", true}}, "there is no 'prompt'"},
        {{{"prompt", "a"}, {"completion", "b"}, {"label", 2}},
         "'label' is 2; it must be true"},
        {{{"prompt", "a"}, {"completion", 3}, {"label", true}},
         "'completion' is 3"},
        {{{"prompt", "a"}, {"completion", asked}, {"label", true}},
         "one is a list of messages"}};
    for (const auto& [row, part] : bad) {
      const std::string message = error_of([&, one = row] { read({one}); });
      EXPECT_NE(message.find(part), std::string::npos) << part << "\n"
                                                       << message;
      EXPECT_NE(message.find("judged.jsonl:1"), std::string::npos) << message;
    }
  });
}

// Scores do not depend on the ranks, nor on batches.
TEST_F(Preference, TrainsOnGoodAndBadAnswers) {
  tests::on_ranks(1, [&] { write_model(); });
  std::vector<json> rows;
  for (const char* word : {"mail", "server", "numbers", "lines"}) {
    const std::string prompt = std::string("is ") + word + " good?";
    rows.push_back(
        {{"prompt", prompt}, {"completion", "yes it is"}, {"label", true}});
    rows.push_back(
        {{"prompt", prompt}, {"completion", "no way"}, {"label", false}});
  }
  const std::string judged = file("judged.jsonl", rows);
  const Names overrides{
      "data.train=" + judged,
      "data.heldout=" + judged,
      "preference.loss=kto",
      "preference.undesirable_weight=1.5",
      "training.evaluate_every=1000",
      "training.best_metric=accuracy"};
  tests::on_ranks(2, [&] {
    const auto values = run_training(config(overrides)).score->values;
    EXPECT_EQ(values.at("heldout_accuracy"), 1.0);
    EXPECT_GT(values.at("heldout_margin").get<double>(), 0.2);
    EXPECT_EQ(values.at("heldout_answers"), 8);
    std::ofstream(folder_ / "values.json") << values;
  });
  tests::on_ranks(1, [&] {
    const json values = read_json(folder_ / "values.json");
    const auto alone = evaluate_run(run_, {"training.batch_size=3"}).values;
    for (const auto& [name, value] : values.items()) {
      EXPECT_NEAR(alone.at(name).get<double>(), value.get<double>(), 1e-5)
          << name;
    }
  });
}

TEST_F(Preference, OptionsBelongToLosses) {
  tests::on_ranks(1, [&] {
    write_model();
    const std::pair<Names, const char*> cases[] = {
        {{"preference.loss=hinge", "preference.label_smoothing=0.1"},
         "preference.label_smoothing is a key only for sigmoid, robust, simpo, cpo"},
        {{"preference.gamma=1"}, "preference.gamma is a key only for simpo"},
        {{"preference.loss=orpo", "preference.reference_free=true"},
         "preference.reference_free is a key only for sigmoid, robust, hinge, ipo"},
        {{"preference.loss=simpo",
          "preference.reference.folder=" + base_.string()},
         "preference.reference is a key only for sigmoid"},
        {{"preference.loss=cpo", "preference.nll_weight=-1"},
         "preference.nll_weight is -1"},
        {{"preference.loss=simpo", "preference.gamma=-0.5"},
         "preference.gamma is -0.5"},
        {{"preference.loss=robust", "preference.label_smoothing=0.5"},
         "preference.label_smoothing is 0.5"},
        {{"preference.loss=slic"}, "preference.loss is the string \"slic\""},
        {{"preference.loss=kto", "preference.nll_weight=1"},
         "preference.nll_weight is a key only for sigmoid"},
        {{"preference.loss=kto", "preference.reference_free=true"},
         "preference.reference_free is a key only for sigmoid, robust, hinge, ipo"},
        {{"preference.desirable_weight=2"},
         "preference.desirable_weight is a key only for kto"},
        {{"preference.loss=kto", "data.packed=true"},
         "data.packed is true; the loss kto needs"},
        {{"preference.cpo_alpha=1"}, "preference.nll_weight"}};
    for (const auto& [overrides, part] : cases) {
      const std::string message =
          error_of([&, all = overrides] { config(all); });
      EXPECT_NE(message.find(part), std::string::npos) << part << "\n"
                                                       << message;
    }
    // They need no adapter.
    config({"preference.loss=orpo", "model.lora=null"});
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
