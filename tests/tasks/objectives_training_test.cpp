// SPDX-License-Identifier: Apache-2.0
// Small models learn their objective from a configuration alone, on one rank
// and on two the same.
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/run_training.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace tessera::tasks::objectives_training_test {

namespace {

using nlohmann::json;
using tests::losses_of;

constexpr int kText = 12; ///< text tokens are 12 .. 16, others special

struct Subject {
  const char* name;
  json model;
  int max_length;
  json data; ///< more of the section `data`
  double loss; ///< to reach; a guess among 5 has 1.6
};

std::vector<Subject> subjects() {
  const json bert = {
      {"model_type", "bert"},
      {"architectures", {"BertForMaskedLM"}},
      {"vocab_size", 32},
      {"hidden_size", 32},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 4},
      {"intermediate_size", 64},
      {"max_position_embeddings", 32},
      {"hidden_dropout_prob", 0.0},
      {"attention_probs_dropout_prob", 0.0},
      {"initializer_range", 0.1},
      {"pad_token_id", 0}};
  json pairs = bert;
  pairs["architectures"] = {"BertForPreTraining"};
  const json t5 = {
      {"model_type", "t5"},
      {"architectures", {"T5ForConditionalGeneration"}},
      {"vocab_size", 32},
      {"d_model", 32},
      {"d_kv", 8},
      {"d_ff", 64},
      {"num_layers", 2},
      {"num_decoder_layers", 2},
      {"num_heads", 4},
      {"dropout_rate", 0.0},
      {"feed_forward_proj", "relu"},
      {"tie_word_embeddings", true},
      {"pad_token_id", 0},
      {"eos_token_id", 2},
      {"decoder_start_token_id", 0}};
  const json glm = {
      {"model_type", "glm"},
      {"architectures", {"GLMForConditionalGeneration"}},
      {"vocab_size", 32},
      {"hidden_size", 32},
      {"num_layers", 2},
      {"num_attention_heads", 4},
      {"max_sequence_length", 56},
      {"embedding_dropout_prob", 0.0},
      {"output_dropout_prob", 0.0},
      {"attention_dropout_prob", 0.0},
      {"block_position_encoding", true},
      {"pad_token_id", 0}};
  const json special = {
      {"start", 1},
      {"end", 2},
      {"document_end", 3},
      {"mask", 4},
      {"sentence_mask", 5},
      {"document_mask", 6},
      {"piece_start", 7},
      {"piece_end", 8},
      {"first_sentinel", 11}};
  const auto with = [&](json more) {
    more["special_tokens"] = special;
    return more;
  };
  return {
      {"masked", bert, 32, with({{"mask", {{"probability", 0.3}}}}), 0.8},
      // With that of pairs, a guess has 2.3.
      {"pairs",
       pairs,
       32,
       with({{"mask", {{"pairs", "sentence_order"}, {"probability", 0.3}}}}),
       1.9},
      {"spans", t5, 24, with({}), 0.9},
      {"prefix", t5, 24, with({{"objective", "prefix"}}), 0.8},
      {"blanks", glm, 64, with({{"blanks", {{"sentence_ends", {12}}}}}), 0.9}};
}

class ObjectivesTraining : public ::testing::Test {
 protected:
  ObjectivesTraining() {
    // Documents that count.
    std::ofstream file(folder_ / "tokens.bin", std::ios::binary);
    for (int document = 0; document < 300; ++document) {
      for (int i = 0; i < 8 + document * 7 % 40; ++i) {
        file.put(static_cast<char>(kText + (document * 11 + i) % 5)).put('\0');
      }
      file.put(3).put('\0');
    }
  }

  std::filesystem::path write(const Subject& subject) const {
    const auto path = [&](const char* suffix) {
      return folder_ / (std::string(subject.name) + suffix);
    };
    runtime::write_file_atomically(path(".model.json"), subject.model.dump());
    json data = subject.data;
    const std::string tokens = (folder_ / "tokens.bin").string();
    data.update({{"train", tokens}, {"end_token", 3}, {"split", 0.1}});
    runtime::write_file_atomically(
        path(".json"),
        json{
            {"task", "language_model"},
            {"model",
             {{"config", path(".model.json").string()},
              {"max_length", subject.max_length}}},
            {"data", data},
            {"optimizer", {{"lr", 5e-3}, {"weight_decay", 0}}},
            {"schedule", {{"warmup_steps", 0}}},
            {"training",
             {{"batch_size", 16},
              {"epochs", 1000},
              {"seed", 3},
              {"clip_grad_norm", 1.0}}},
            {"output", {{"folder", path("").string()}}}}
            .dump());
    return path(".json");
  }

  const TemporaryFolder folder_;
};

} // namespace

TEST_F(ObjectivesTraining, LearnFromAConfiguration) {
  for (const Subject& subject : subjects()) {
    SCOPED_TRACE(subject.name);
    const auto file = write(subject);
    tests::on_ranks(1, [&] {
      const TrainingResult result =
          run_training(read_training_config(file, {"training.max_steps=200"}));
      ASSERT_TRUE(result.score.has_value());
      EXPECT_LT(
          result.score->values.at("heldout_loss").get<double>(), subject.loss);
      // What is scored is drawn the same each time.
      const TaskScore again = evaluate_run(folder_ / subject.name);
      EXPECT_NEAR(
          again.values.at("heldout_loss").get<double>(),
          result.score->values.at("heldout_loss").get<double>(),
          1e-5); // float32
    });
  }
}

// Of the names of the checkpoint, too; and how much has no score.
TEST_F(ObjectivesTraining, SaysWhatRulesAndScoresAreOf) {
  const auto file = write(subjects().front());
  const auto job = tests::on_ranks(1, [&] {
    run_training(read_training_config(
        file,
        {"training.max_steps=1",
         R"(optimizer.parameters=[{"pattern": "bert\\.encoder\\.layer\\.0\\..*",
            "lr_scale": 0.5}])"}));
  });
  for (
      const char* part :
      {R"(optimizer.parameters[0] 'bert\.encoder\.layer\.0\..*': 16 of )",
       "held-out data: 1021 tokens of 34 documents in sequences of 30; 1 token is not scored"}) {
    EXPECT_NE(job.output.find(part), std::string::npos) << part << job.output;
  }
}

TEST_F(ObjectivesTraining, HaveTheLossesOfOneRankOnTwo) {
  for (const Subject& subject : subjects()) {
    SCOPED_TRACE(subject.name);
    const auto file = write(subject);
    std::vector<std::vector<double>> losses;
    for (const int ranks : {1, 2}) {
      const auto folder = folder_ / ("ranks" + std::to_string(ranks));
      runtime::remove_tree(folder);
      tests::on_ranks(ranks, [&] {
        run_training(read_training_config(
            file,
            {"training.max_steps=6",
             "training.batch_size=4",
             "training.accumulate=" + std::to_string(4 / ranks),
             "output.folder=" + folder.string()}));
      });
      losses.push_back(losses_of(folder));
    }
    ASSERT_EQ(losses[0].size(), 6U);
    ASSERT_EQ(losses[1].size(), 6U);
    for (size_t i = 0; i < losses[0].size(); ++i) {
      // Float32 sums in other orders, over six steps of AdamW.
      EXPECT_NEAR(losses[0][i], losses[1][i], 2e-4) << "step " << i + 1;
    }
  }
}

TEST_F(ObjectivesTraining, AreCheckedBeforeTheFirstStep) {
  Subject glm = subjects().back();
  const auto file = write(glm);
  const auto refused = [&](const std::vector<std::string>& overrides,
                           const std::string& message) {
    try {
      run_training(read_training_config(file, overrides));
      ADD_FAILURE() << "no error: " << message;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos)
          << error.what();
    }
    EXPECT_FALSE(std::filesystem::exists(folder_ / glm.name));
  };
  tests::on_ranks(1, [&] {
    refused(
        {"data.special_tokens.piece_end=40"},
        "data.special_tokens.piece_end is 40");
    refused({"data.objective=masked"}, "data.objective is \"masked\"");
    refused(
        {"data.separate_documents=true"},
        "data.separate_documents is true, which the objective");
    refused({"model.max_length=512"}, "positions");
    refused(
        {"data.mask.masked=0.9", "data.mask.random=0.2"},
        "must add up to at most 1");
  });
}

} // namespace tessera::tasks::objectives_training_test
