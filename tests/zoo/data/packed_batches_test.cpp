// SPDX-License-Identifier: Apache-2.0
// Sequences of packed documents: every token once, orders that depend on seed
// and epoch alone, blends, and the losses of documents that are kept apart.
#include "tessera/zoo/data/packed_batches.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/zoo/data/random_order.h"
#include "tessera/zoo/models/registry.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace tessera::zoo::packed_batches_test {

namespace {

constexpr int64_t kEnd = 1;
using Ids = std::vector<int64_t>;

class PackedBatchesTest : public ::testing::Test {
 protected:
  /// Documents of these lengths, the end token included; no other token occurs
  /// twice.
  std::shared_ptr<const DocumentStream> stream(
      const std::vector<int>& lengths,
      uint64_t key = 7,
      uint16_t first = 2) {
    const auto path = folder_ / ("tokens" + std::to_string(files_++) + ".bin");
    std::vector<uint16_t> tokens;
    for (const int length : lengths) {
      for (int i = 1; i < length; ++i) {
        tokens.push_back(first++);
      }
      tokens.push_back(kEnd);
    }
    std::ofstream(path, std::ios::binary)
        .write(
            reinterpret_cast<const char*>(tokens.data()),
            static_cast<std::streamsize>(2 * tokens.size()));
    auto data = std::make_shared<const TokenDocuments>(
        path, TokenFileOptions{.end_token = kEnd});
    Ids all(static_cast<size_t>(data->size()));
    std::iota(all.begin(), all.end(), 0);
    return std::make_shared<const DocumentStream>(data, all, key);
  }

  const TemporaryFolder folder_;
  int files_ = 0;
};

PackedBatches packed(
    std::vector<std::shared_ptr<const DocumentStream>> sources,
    const std::vector<double>& weights,
    const PackedOptions& options) {
  return {std::move(sources), weights, options, at::kCPU};
}

Ids ids_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view(-1);
  const auto* begin = flat.const_data_ptr<int64_t>();
  return {begin, begin + flat.numel()};
}

Ids row(const PackedBatches& data, size_t example, int64_t epoch) {
  return ids_of(data.make({example}, epoch, true).input_ids);
}

} // namespace

TEST(RandomOrder, IsAPermutationThatDependsOnTheKey) {
  for (const int64_t count : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000}) {
    std::set<int64_t> found;
    int64_t fixed = 0;
    int64_t same = 0;
    const RandomOrder order(count, 5);
    const RandomOrder other(count, 6);
    for (int64_t i = 0; i < count; ++i) {
      found.insert(order[i]);
      fixed += order[i] == i ? 1 : 0;
      same += order[i] == other[i] ? 1 : 0;
      EXPECT_GE(order[i], 0);
    }
    EXPECT_EQ(found.size(), static_cast<size_t>(count));
    EXPECT_EQ(*found.rbegin(), count - 1);
    // Both are of mean 1, and nearly Poisson distributed.
    EXPECT_TRUE(count < 60 || fixed < 8) << fixed;
    EXPECT_TRUE(count < 60 || same < 8) << same;
  }
}

TEST_F(PackedBatchesTest, HaveEachTokenOnceInDocumentsOfAnyOrder) {
  const std::vector<int> lengths{5, 1, 30, 2, 9, 14, 3, 3, 40, 7};
  const auto source = stream(lengths);
  const PackedBatches data = packed({source}, {}, {.length = 8});
  // 114 tokens: 1 + 16 * 7 = 113 of them.
  ASSERT_EQ(data.size(), 16);
  EXPECT_EQ(data.left_out_tokens(), 1);
  std::set<Ids> orders;
  for (int64_t epoch = -1; epoch < 6; ++epoch) {
    Ids all = row(data, 0, epoch);
    for (size_t i = 1; i < data.size(); ++i) {
      const Ids next = row(data, i, epoch);
      EXPECT_EQ(next.front(), all.back()) << "neighbors share a token";
      all.insert(all.end(), next.begin() + 1, next.end());
    }
    orders.insert(all);
    // Documents are whole and in a row.
    std::set<int64_t> seen;
    for (size_t i = 1; i < all.size(); ++i) {
      EXPECT_TRUE(
          all[i - 1] == kEnd || all[i] == kEnd || all[i] == all[i - 1] + 1);
      EXPECT_TRUE(all[i] == kEnd || seen.insert(all[i]).second);
    }
    if (epoch == kScoredEpoch) {
      Ids expected(113);
      source->data().file().read_into(0, expected);
      EXPECT_EQ(all, expected) << "scored in the order of the file";
    }
  }
  EXPECT_EQ(orders.size(), 7) << "each epoch has an order of its own";
  // Any access, in any order, and as a batch.
  const PackedBatches again = packed({stream(lengths)}, {}, {.length = 8});
  const at::Tensor batch = again.make({9, 3, 3}, 2, true).input_ids;
  EXPECT_EQ(ids_of(batch[0]), row(data, 9, 2));
  EXPECT_EQ(ids_of(batch[1]), row(data, 3, 2));
  EXPECT_EQ(ids_of(batch[2]), row(data, 3, 2));
  const PackedBatches other = packed({stream(lengths, 8)}, {}, {.length = 8});
  EXPECT_NE(row(other, 3, 2), row(data, 3, 2));
}

TEST_F(PackedBatchesTest, NumberDocumentsAndPlaces) {
  const PackedBatches data = packed(
      {stream({3, 1, 4, 9})}, {}, {.length = 8, .separate_documents = true});
  ASSERT_EQ(data.size(), 2);
  const ModelInput batch = data.make({0, 1}, kScoredEpoch, true);
  EXPECT_EQ(
      ids_of(batch.input_ids),
      (Ids{2, 3, 1, 1, 4, 5, 6, 1, 1, 7, 8, 9, 10, 11, 12, 13}));
  EXPECT_EQ(
      ids_of(batch.others.at("document_ids")),
      (Ids{0, 0, 0, 1, 2, 2, 2, 2, 0, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(
      ids_of(batch.position_ids),
      (Ids{0, 1, 2, 0, 0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(
      ids_of(batch.labels),
      (Ids{-100, 3, 1, -100, -100, 5, 6, 1, -100, -100, 8, 9, 10, 11, 12, 13}));
  const ModelInput joined = packed({stream({3, 1, 4, 9})}, {}, {.length = 8})
                                .make({0, 1}, kScoredEpoch, true);
  EXPECT_EQ(ids_of(joined.labels), ids_of(batch.input_ids));
  EXPECT_EQ(joined.named().count("document_ids"), 0);
  EXPECT_EQ(joined.named().count("position_ids"), 0);
}

TEST_F(PackedBatchesTest, DrawOfSourcesInProportionToTheirWeights) {
  // 20 and 5 samples of 4 tokens.
  const auto sources = [&] {
    return std::vector{stream({31, 30}), stream({8, 8}, 9, 1000)};
  };
  const PackedBatches data =
      packed(sources(), {1, 3}, {.length = 4, .seed = 11});
  ASSERT_EQ(data.size(), 25);
  std::map<std::pair<size_t, int64_t>, std::multiset<int64_t>> drawn;
  std::set<Ids> first_source;
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    std::map<size_t, int> counts;
    for (size_t i = 0; i < 25; ++i) {
      const auto sample = data.sample(i, epoch);
      ++counts[sample.source];
      drawn[{sample.source, sample.epoch}].insert(sample.index);
      const bool is_second =
          row(data, i, epoch)[1] >= 1000 || row(data, i, epoch)[2] >= 1000;
      EXPECT_EQ(is_second, sample.source == 1);
    }
    EXPECT_EQ(counts[0], 6);
    EXPECT_EQ(counts[1], 19);
  }
  // Each epoch of a source has each of its samples once, but for the last.
  for (const auto& [key, samples] : drawn) {
    const auto& [source, epoch] = key;
    const bool is_last = epoch == (source == 0 ? 3 : 38);
    const size_t all = source == 0 ? 20 : 5;
    EXPECT_TRUE(is_last || samples.size() == all);
    EXPECT_EQ(
        std::set<int64_t>(samples.begin(), samples.end()).size(),
        samples.size());
  }
  EXPECT_EQ(drawn.size(), 3 + 38);
  // A function of the seed.
  const PackedBatches same =
      packed(sources(), {1, 3}, {.length = 4, .seed = 11});
  const PackedBatches other =
      packed(sources(), {1, 3}, {.length = 4, .seed = 12});
  int differences = 0;
  for (size_t i = 0; i < 25; ++i) {
    EXPECT_EQ(row(same, i, 4), row(data, i, 4));
    differences += row(other, i, 4) == row(data, i, 4) ? 0 : 1;
  }
  EXPECT_GT(differences, 10);
  // Scored, all of each in its order.
  const PackedBatches all = packed(sources(), {}, {.length = 4});
  for (size_t i = 0; i < 25; ++i) {
    const auto sample = all.sample(i, kScoredEpoch);
    EXPECT_EQ(sample.source, i < 20 ? 0 : 1);
    EXPECT_EQ(sample.index, static_cast<int64_t>(i < 20 ? i : i - 20));
  }
  expect_error(
      [&] {
        packed(sources(), {1, 1000}, {.length = 4});
      },
      {"tokens", "1 of 1001", "none of the 25 samples"});
  expect_error(
      [&] {
        packed({stream({3, 4})}, {}, {.length = 8});
      },
      {"7 tokens in 2 documents", "model.max_length, 8"});
}

/// The loss of each document is that which it has alone, for all families of
/// decoders. In float64: sums are the same but for their order.
TEST_F(PackedBatchesTest, GiveTheLossesOfDocumentsAlone) {
  const std::vector<nlohmann::json> configs{
      {{"model_type", "gpt2"},
       {"architectures", {"GPT2LMHeadModel"}},
       {"vocab_size", 64},
       {"n_embd", 16},
       {"n_layer", 2},
       {"n_head", 2},
       {"n_positions", 24}},
      {{"model_type", "llama"},
       {"architectures", {"LlamaForCausalLM"}},
       {"vocab_size", 64},
       {"hidden_size", 16},
       {"intermediate_size", 24},
       {"num_hidden_layers", 2},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 2},
       {"max_position_embeddings", 24}},
      {{"model_type", "gptj"},
       {"architectures", {"GPTJForCausalLM"}},
       {"vocab_size", 64},
       {"n_embd", 16},
       {"n_layer", 2},
       {"n_head", 2},
       {"rotary_dim", 4},
       {"n_positions", 24}},
      {{"model_type", "opt"},
       {"architectures", {"OPTForCausalLM"}},
       {"vocab_size", 64},
       {"hidden_size", 16},
       {"word_embed_proj_dim", 16},
       {"ffn_dim", 24},
       {"num_hidden_layers", 2},
       {"num_attention_heads", 2},
       {"max_position_embeddings", 24}},
      {{"model_type", "qwen2"},
       {"architectures", {"Qwen2ForCausalLM"}},
       {"vocab_size", 64},
       {"hidden_size", 16},
       {"intermediate_size", 24},
       {"num_hidden_layers", 2},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 2},
       {"max_position_embeddings", 24},
       {"use_sliding_window", true},
       {"sliding_window", 3},
       {"max_window_layers", 1}},
  };
  const std::vector<int> lengths{5, 7, 4, 8}; // one sequence of 24 tokens
  const auto source = stream(lengths);
  const PackedBatches apart =
      packed({source}, {}, {.length = 24, .separate_documents = true});
  const PackedBatches joined = packed({source}, {}, {.length = 24});
  for (const nlohmann::json& config : configs) {
    torch::manual_seed(3);
    const auto model = from_config(config);
    model->to(torch::kDouble);
    model->eval();
    ASSERT_TRUE(model->takes_documents()) << config;
    for (auto& parameter : model->parameters()) { // far from uniform
      const torch::NoGradGuard no_grad;
      parameter.normal_(0, 0.5);
    }
    double sum = 0;
    int64_t predicted = 0;
    ModelInput packed_input = apart.make({0}, kScoredEpoch, false);
    const at::Tensor logits = model->forward(packed_input).logits[0];
    int64_t begin = 0;
    for (int64_t i = 0; i < source->documents(); ++i) {
      ModelInput alone;
      alone.input_ids = source->data().read(i).unsqueeze(0);
      alone.labels = alone.input_ids;
      const ModelOutput output = model->forward(alone);
      const int64_t length = alone.input_ids.size(1);
      const at::Tensor found = logits.narrow(0, begin, length);
      EXPECT_LT((found - output.logits[0]).abs().max().item<double>(), 1e-10)
          << config << " document " << i;
      sum += output.loss.item<double>() * static_cast<double>(length - 1);
      predicted += length - 1;
      begin += length;
    }
    const double expected = sum / static_cast<double>(predicted);
    EXPECT_NEAR(
        model->forward(packed_input).loss.item<double>(), expected, 1e-10)
        << config;
    // Each of the three makes a difference.
    ModelInput without = packed_input;
    without.others.erase("document_ids");
    EXPECT_GT(
        std::abs(model->forward(without).loss.item<double>() - expected), 1e-3)
        << config;
    without = packed_input;
    without.position_ids = at::Tensor();
    const double shifted = model->forward(without).loss.item<double>();
    // Rotary embeddings, float32, know distances alone.
    const bool is_relative =
        config.at("model_type") != "gpt2" && config.at("model_type") != "opt";
    EXPECT_EQ(std::abs(shifted - expected) < 1e-5, is_relative) << config;
    without = packed_input;
    without.labels = without.input_ids;
    EXPECT_GT(
        std::abs(model->forward(without).loss.item<double>() - expected), 1e-3)
        << config;
    EXPECT_GT(
        std::abs(
            model->forward(joined.make({0}, kScoredEpoch, true))
                .loss.item<double>() -
            expected),
        1e-3);
  }
}

} // namespace tessera::zoo::packed_batches_test
