// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/idle_keys.h"

#include "support/temporary_folder.h"
#include "tessera/runtime/core/config.h"
#include "tessera/tasks/training_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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
      {"optimizer.ema_warmup=true", "loss_scale.initial=8"});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(
      found[0],
      "optimizer.ema_warmup has no effect, because there are no averages: set "
      "optimizer.ema_decay");
  EXPECT_TRUE(found[1].starts_with("loss_scale.initial has no effect"))
      << found[1];
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

} // namespace tessera::tasks::idle_keys_test
