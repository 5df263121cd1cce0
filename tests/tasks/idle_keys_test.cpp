// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/idle_keys.h"

#include "support/temporary_folder.h"
#include "tessera/runtime/core/config.h"
#include "tessera/tasks/training_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks::idle_keys_test {

using nlohmann::json;
using Names = std::vector<std::string>;

namespace {

Names lines_of(const char* task, json data, const Names& overrides) {
  const TemporaryFolder folder;
  data["train"] = "nowhere.bin";
  data["heldout"] = "nowhere_else.bin";
  json root{
      {"task", task},
      {"model", {{"folder", folder.path().string()}}},
      {"data", std::move(data)},
      {"output", {{"folder", (folder / "run").string()}}}};
  const runtime::ConfigReader reader(std::move(root), "train.json", overrides);
  return idle_keys(reader, read_training_config(reader));
}

} // namespace

TEST(IdleKeys, AreNamedWithTheReason) {
  const auto found = lines_of(
      "language_model",
      {},
      {"optimizer.ema_warmup=true",
       "precision.frozen_weights=nf4",
       "loss_scale.initial=8"});
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(
      found[0],
      "optimizer.ema_warmup has no effect, because there are no averages: set "
      "optimizer.ema_decay");
  EXPECT_EQ(
      found[1],
      "precision.frozen_weights has no effect, because all weights are trained: "
      "set model.lora");
  EXPECT_TRUE(found[2].starts_with("loss_scale.initial has no effect"))
      << found[2];
}

TEST(IdleKeys, AreThoseOfTheTask) {
  EXPECT_EQ(
      lines_of("language_model", {}, {"data.text.document=line"}).size(), 1U);
  EXPECT_EQ(
      lines_of("text_classification", {}, {"data.label_separator=;"}).size(),
      1U);
  EXPECT_EQ(
      lines_of(
          "supervised",
          {},
          {"data.max_new_tokens=5",
           "data.rouge_stemmer=true",
           "data.prompt_key=question",
           "data.template={question} [completion]"})
          .size(),
      3U);
  EXPECT_EQ(
      lines_of("image_folder", {}, {"data.fit=stretch", "data.center_crop=0.5"})
          .size(),
      1U);
}

// A new key needs a row that says when it has an effect.
TEST(IdleKeys, AreLookedForAmongAllKeys) {
  for (const auto& [name, kind] : task_kinds()) {
    EXPECT_EQ(keys_without_rule(*kind), Names()) << name;
  }
}

TEST(IdleKeys, AreThoseOfOtherObjectives) {
  const Names given{
      "data.mask.probability=0.3",
      "data.spans.density=0.3",
      "data.blanks.short=1",
      "data.special_tokens.mask=4",
      "data.special_tokens.first_sentinel=4"};
  for (const auto& [objective, used] :
       std::vector<std::pair<std::string, Names>>{
           {"next_token", {}},
           {"masked", {"data.mask.probability", "data.special_tokens.mask"}},
           {"span_corruption",
            {"data.spans.density", "data.special_tokens.first_sentinel"}},
           {"blank_filling", {"data.blanks.short", "data.special_tokens.mask"}},
           {"prefix", {}}}) {
    Names overrides = given;
    overrides.push_back("data.objective=" + objective);
    const Names lines = lines_of("language_model", {}, overrides);
    EXPECT_EQ(lines.size(), given.size() - used.size()) << objective;
    for (const std::string& line : lines) {
      EXPECT_NE(line.find("the objective is " + objective), std::string::npos)
          << line;
      for (const std::string& key : used) {
        EXPECT_FALSE(line.starts_with(key)) << objective << ": " << line;
      }
    }
  }
}

// What the model's head is for, where the configuration does not say it.
TEST(IdleKeys, AreThoseOfOtherModels) {
  const TemporaryFolder folder;
  std::ofstream(folder / "config.json") << json{
      {"model_type", "gpt2"},
      {"architectures", {"GPT2LMHeadModel"}},
      {"vocab_size", 8},
      {"n_embd", 4},
      {"n_layer", 1},
      {"n_head", 1},
      {"n_positions", 8}};
  const std::string model = "model.folder=" + folder.path().string();
  EXPECT_EQ(
      lines_of("language_model", {}, {model, "data.mask.probability=0.3"})
          .size(),
      1U);
  EXPECT_EQ(
      lines_of("examples", {}, {model, "data.patch_mask=0.3"}).size(), 1U);
  // Not known: opening the model says what is wrong.
  EXPECT_EQ(
      lines_of("language_model", {}, {"data.mask.probability=0.3"}), Names());
}

TEST(IdleKeys, AreThoseOfOtherFormats) {
  const TemporaryFolder folder;
  std::ofstream(folder / "a.jsonl") << "{\"text\": \"a\", \"label\": \"b\"}\n";
  std::ofstream(folder / "a.csv") << "text,label\na,b\n";
  std::ofstream(folder / "a.txt") << "a\n";
  std::ofstream(folder / "squad.json") << "{\"data\": []}";
  const auto lines = [&](const char* task, const char* train, Names more) {
    more.push_back("data.train=" + (folder / train).string());
    more.push_back("data.heldout=" + (folder / train).string());
    return lines_of(task, {}, more);
  };
  const Names tables{"data.columns=[\"text\", \"label\"]", "data.quotes=false"};
  for (const char* task :
       {"text_classification", "supervised", "reward", "question_answering"}) {
    EXPECT_EQ(lines(task, "a.jsonl", tables).size(), 2U) << task;
    EXPECT_EQ(lines(task, "a.csv", tables), Names()) << task;
  }
  Names text{"data.text.document=line", "data.text.key=words"};
  EXPECT_EQ(
      lines("language_model", "a.jsonl", text),
      Names{"data.text.document has no effect, because each row of JSON lines "
            "and tables is a document"});
  EXPECT_EQ(
      lines("language_model", "a.txt", text),
      Names{"data.text.key has no effect, because the files are plain text, "
            "which has no keys"});
  EXPECT_EQ(
      lines("question_answering", "squad.json", {"data.answer_key=a"}).size(),
      1U);
  EXPECT_EQ(
      lines("question_answering", "a.jsonl", {"data.answer_key=a"}), Names());
}

TEST(IdleKeys, AreThoseOfOtherChoices) {
  const auto count = [](const char* task, const Names& overrides) {
    return lines_of(task, {}, overrides).size();
  };
  EXPECT_EQ(
      count(
          "text_classification",
          {"data.preset=glue/sst2", "data.text_key=a", "data.label_key=b"}),
      2U);
  EXPECT_EQ(
      count(
          "text_classification",
          {"data.template={text} [label]", "data.text_key=a"}),
      1U);
  EXPECT_EQ(
      count(
          "supervised",
          {"data.preset=alpaca", "data.prompt_key=a", "data.completion_key=b"}),
      2U);
  EXPECT_EQ(
      count("supervised", {"data.metric=bleu", "data.rouge_stemmer=true"}), 1U);
  EXPECT_EQ(
      count(
          "preference",
          {"preference.reference_free=true",
           "data.label_key=a",
           "data.completion_key=b"}),
      2U);
  EXPECT_EQ(
      count(
          "preference",
          {"preference.loss=kto",
           "preference.reference.folder=x",
           "data.label_key=a",
           "data.completion_key=b"}),
      0U);
  EXPECT_EQ(count("question_answering", {"data.no_answer_threshold=3"}), 1U);
  EXPECT_EQ(
      count(
          "question_answering",
          {"data.no_answer_threshold=3", "data.unanswerable=true"}),
      0U);
  EXPECT_EQ(
      count(
          "image_folder",
          {"data.views.recipe=crop", "data.views.jitter_probability=1"}),
      1U);
  EXPECT_EQ(
      count(
          "image_folder",
          {"data.views.recipe=crop",
           "data.views.jitter=[0.1,0.1,0.1,0.1]",
           "data.views.jitter_probability=1"}),
      0U);
  // Of every task.
  const Names idle{
      "training.profile_first=3",
      "training.new_data=true",
      "offload.stage_bytes=1MiB",
      "memory.nvme_bytes=1GB",
      "sharding.communication.block_elements=64",
      "parallel.chunks=2"};
  EXPECT_EQ(count("examples", idle), idle.size());
  Names used = idle;
  for (const char* more :
       {"training.profile_steps=2",
        "training.resume=true",
        "placement.optimizer=host",
        "memory.nvme_path=/tmp",
        "sharding.communication.gather=int8",
        "parallel.tensor=2",
        "parallel.pipeline=2"}) {
    used.emplace_back(more);
  }
  EXPECT_EQ(lines_of("examples", {}, used), Names());
  // A scale of one's own is used in float32, too.
  EXPECT_EQ(count("examples", {"loss_scale.fixed=8"}), 0U);
  EXPECT_EQ(
      count(
          "examples",
          {"precision.parameters=float16",
           "loss_scale.fixed=8",
           "loss_scale.initial=8"}),
      1U);
}

TEST(IdleKeys, AreNotThoseThatOthersUse) {
  EXPECT_EQ(lines_of("language_model", {}, {}), Names());
  EXPECT_EQ(
      lines_of(
          "language_model",
          {},
          {"optimizer.ema_decay=0.9",
           "optimizer.ema_warmup=true",
           "precision.parameters=float16",
           "loss_scale.initial=8"}),
      Names());
  EXPECT_EQ(
      lines_of(
          "text_classification",
          {},
          {"data.label_separator=;",
           "model.problem_type=multi_label_classification"}),
      Names());
  EXPECT_EQ(
      lines_of(
          "supervised",
          {},
          {"data.max_new_tokens=5", "data.metric=bleu", "data.prompt_key=q"}),
      Names());
}

// Objects of overrides are not merged, as those of `extends` are.
TEST(DroppedKeys, AreNamedWithTheOverride) {
  const TemporaryFolder folder;
  std::ofstream(folder / "base.json") << json{
      {"task", "language_model"},
      {"model", {{"folder", folder.path().string()}}},
      {"data", {{"train", "nowhere.bin"}}},
      {"optimizer", {{"lr", 1e-3}, {"betas", {0.8, 0.9}}, {"eps", nullptr}}},
      {"output", {{"folder", (folder / "run").string()}}}};
  std::ofstream(folder / "train.json")
      << R"({"extends": "base.json", "optimizer": {"weight_decay": 0.1}})";
  const auto log_of = [&](const Names& overrides) {
    testing::internal::CaptureStderr();
    read_training_config(folder / "train.json", overrides);
    return testing::internal::GetCapturedStderr();
  };
  const std::string log = log_of({R"(optimizer={"lr":1e-2})"});
  EXPECT_NE(
      log.find(
          R"(override 'optimizer={"lr":1e-2}' replaces all that the file has of optimizer; back to the default: optimizer.betas, optimizer.weight_decay. To change single keys, write optimizer.KEY=VALUE)"),
      std::string::npos)
      << log;
  EXPECT_EQ(log_of({"optimizer.lr=1e-2"}), "");
  EXPECT_EQ(log_of({"optimizer="}), "");
  EXPECT_EQ(
      log_of(
          {R"(optimizer={"lr":1e-2})",
           "optimizer.betas=[0.7, 0.8]",
           "optimizer.weight_decay=0.2"}),
      "");
}

} // namespace tessera::tasks::idle_keys_test
