// SPDX-License-Identifier: Apache-2.0
// Reward models: the loss against TRL
// (tests/fixture_makers/preference_losses.py), rows, runs and predictions.
#include "tessera/tasks/reward_loss.h"

#include "support/expect_error.h"
#include "tasks/preference_run.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/preference_batches.h"
#include "tessera/tasks/reward_predictor.h"

namespace tessera::tasks::reward_test {

using preference_test::expect_close;
using preference_test::json;
using preference_test::Names;
using preference_test::numbers_in;

TEST(RewardLoss, EqualsThatOfTrl) {
  tests::on_ranks(1, [] {
    const json all = read_json(fixture("preference_losses.json"));
    for (const auto& [name, wanted] : all["rewards"].items()) {
      const json& given = wanted["options"];
      const at::Tensor scores =
          numbers_in(all["scores"]).to(at::kFloat).requires_grad_();
      const at::Tensor margins = given.contains("margins")
                                     ? numbers_in(all["margins"]).to(at::kFloat)
                                     : at::Tensor();
      const PairScores found = reward_scores(
          scores, margins, {.center_weight = given.value("center", 0.0)});
      const at::Tensor loss = found.losses.mean();
      EXPECT_NEAR(loss.item<double>(), wanted["loss"].get<double>(), 1e-6)
          << name;
      loss.backward();
      expect_close(scores.grad(), wanted["gradient"], name + ".gradient");
    }
  });
}

class Reward : public preference_test::PreferenceRun {
 protected:
  Reward() : PreferenceRun("reward") {}

  static std::vector<json> with_margins(std::vector<json> rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i]["margin"] = 0.25 * static_cast<double>(i);
    }
    return rows;
  }

  /// The mean reward of the answers at `key`.
  double mean_reward(const RewardPredictor& predictor, const char* key) const {
    std::vector<SupervisedText> answers;
    for (const json& row : texts()) {
      text::TextRow one;
      one.values = {{"prompt", row["prompt"]}, {"completion", row[key]}};
      answers.push_back(predictor.text_of(one));
    }
    double sum = 0;
    for (const double reward : predictor.predict(answers)) {
      sum += reward;
    }
    return sum / static_cast<double>(answers.size());
  }
};

// Weights or an adapter, sharded over two and three ranks; scored alike by one,
// and the rewards of `tessera predict` are those.
TEST_F(Reward, TrainsOnPairs) {
  tests::on_ranks(1, [&] { write_model(); });
  for (const bool adapts : {true, false}) {
    Names overrides{"training.epochs=15"};
    if (!adapts) {
      overrides.emplace_back("model.lora=null");
    }
    tests::on_ranks(adapts ? 2 : 3, [&] {
      Names sharded = overrides;
      sharded.emplace_back("sharding.zero_stage=3");
      sharded.emplace_back(
          adapts ? "training.batch_size=2" : "training.batch_size=1");
      const auto values = run_training(config(sharded)).score->values;
      EXPECT_EQ(values.at("heldout_accuracy"), 1.0);
      EXPECT_GT(values.at("heldout_margin").get<double>(), 0.3);
      EXPECT_EQ(values.at("heldout_pairs"), 4);
      std::ofstream(folder_ / "values.json") << values;
    });
    tests::on_ranks(1, [&] {
      const json values = read_json(folder_ / "values.json");
      const auto alone = evaluate_run(run_).values;
      for (const auto& [name, value] : values.items()) {
        EXPECT_NEAR(alone.at(name).get<double>(), value.get<double>(), 1e-5)
            << name;
      }
      const RewardPredictor predictor(trained_model(run_), c10::kCPU);
      EXPECT_NEAR(
          mean_reward(predictor, "chosen"),
          values["heldout_chosen_reward"].get<double>(),
          1e-5);
      EXPECT_NEAR(
          mean_reward(predictor, "rejected"),
          values["heldout_rejected_reward"].get<double>(),
          1e-5);
      if (!adapts) {
        const json saved = read_json(run_ / "model" / "config.json");
        EXPECT_EQ(saved["architectures"][0], "LlamaForSequenceClassification");
        EXPECT_EQ(saved["id2label"].size(), 1U);
        const auto weights = runtime::SafetensorsFile::open(
            run_ / "model" / "model.safetensors");
        EXPECT_EQ(fixture_tensor(weights, "score.weight").size(0), 1);
      }
    });
  }
}

TEST_F(Reward, LossesDoNotDependOnTheLayout) {
  tests::on_ranks(1, [&] { write_model(); });
  train_in_layouts(
      {"data.train=" + file("margins.jsonl", with_margins(unequal_texts())),
       "reward.center_weight=0.1"});
  expect_same_in_layouts("reward");
}

TEST_F(Reward, RowsHaveMargins) {
  tests::on_ranks(1, [&] {
    write_model();
    const text::Tokenizer tokenizer = text::Tokenizer::from_folder(base_);
    SupervisedOptions options;
    options.messages = "(messages)";
    options.completion = "(completion)";
    const SupervisedEncoder texts(
        tokenizer, options, PromptKind::kDecoder, base_, tokenizer.size(), 96);
    const PreferenceEncoder encoder(
        texts, options, {.margin = "margin", .takes_whole_texts = true});
    const auto read = [&](const std::vector<json>& rows) {
      return encoder.read({file("rows.jsonl", rows)});
    };
    const json row{{"prompt", "a"}, {"chosen", " b"}, {"rejected", " c"}};
    json wide = row;
    wide["margin"] = 1.5;
    const auto pairs = read({wide, wide});
    EXPECT_EQ(pairs[1].margin, 1.5);
    const auto batch_of = [](const std::vector<PreferencePair>& of,
                             size_t example) {
      return PreferenceBatches(of, {.max_length = 96}, 0, PairKind::kTexts)
          .make({example}, 0, true);
    };
    const zoo::ModelInput batch = batch_of(pairs, 1);
    EXPECT_TRUE(batch.others.at(kRewardMargins).equal(torch::full({1}, 1.5F)));
    EXPECT_EQ(batch.input_ids.size(0), 2);
    EXPECT_FALSE(batch_of(read({row}), 0).others.contains(kRewardMargins));
    // Whole texts, as of hh-rlhf.
    const auto whole = read({{{"chosen", "a b"}, {"rejected", "a c"}}});
    EXPECT_EQ(
        tokenizer.decode(
            whole[0].rejected.tokens, /*skip_special_tokens=*/true),
        "a c");
    // Tables have texts.
    std::ofstream(folder_ / "rows.csv")
        << "prompt,chosen,rejected,margin\na,b,c,-0.5\n";
    EXPECT_EQ(encoder.read({(folder_ / "rows.csv").string()})[0].margin, -0.5);
    expect_error(
        [&] {
          read({wide, row});
        },
        {"rows.jsonl:2", "there is no 'margin'", "or none"});
    expect_error(
        [&] {
          read({row, wide});
        },
        {"rows.jsonl:2", "there is a 'margin'", "the first row has none"});
    json wrong = row;
    wrong["margin"] = "wide";
    expect_error(
        [&] { read({wrong}); },
        {"rows.jsonl:1", "'margin' is \"wide\"", "data.margin_key"});
  });
}

TEST_F(Reward, WhatDoesNotFitIsNamed) {
  tests::on_ranks(1, [&] {
    write_model();
    expect_error(
        [&] { config({"reward.center_weight=-1"}); },
        {"reward.center_weight is -1"});
    expect_error(
        [&] { config({"center_rewards_coefficient=0.1"}); },
        {"reward.center_weight"});
    expect_error([&] { config({"data.packed=true"}); }, {"data.packed"});
    expect_error(
        [&] { config({"parallel.pipeline=2"}); },
        {"parallel.pipeline", "the task reward"});
  });
}

} // namespace tessera::tasks::reward_test
