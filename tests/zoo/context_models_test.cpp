// SPDX-License-Identifier: Apache-2.0
// Models whose sequences are divided over context-parallel ranks, alone and
// together with divided layers: against transformers, and against one rank.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "zoo/context_ranks.h"
#include "zoo/divided_models.h"

namespace tessera::zoo::context_models_test {
namespace {

using tests::run_ranks;

constexpr int64_t kRows = 2;
constexpr int64_t kLength = 16; // 4 ranks in zigzag want 8 parts

void expect_plain(
    ContextRanks& ranks,
    const LayerContext& layers,
    const std::filesystem::path& folder,
    const ModelInput& input) {
  const auto plain = from_pretrained(folder);
  const ModelOutput expected = plain->forward(input);
  expected.loss.backward();
  const auto model = from_pretrained(folder, {.context = layers});
  const ModelOutput output = model->forward(input);
  // Without the logits of the whole vocabulary, too; gradients add up.
  ModelInput loss_only = input;
  loss_only.loss_only = true;
  const at::Tensor loss = model->forward(loss_only).loss;
  expect_near(output.loss.detach(), expected.loss.detach());
  expect_near(loss.detach(), expected.loss.detach());
  expect_near(
      without_padding(output.logits.detach(), input.attention_mask),
      without_padding(expected.logits.detach(), input.attention_mask));
  ((output.loss + loss) / 2).backward();
  expect_plain_gradients(
      *model,
      *plain,
      [&](const std::string&) -> Communicator& { return ranks.context(); },
      ranks.tensor());
}

/// Of what the tests need: heads for Ulysses over 4 ranks; GPT-2 with learned
/// positions, LLaMA with rotary ones and 2 kv heads.
const nlohmann::json kFourHeads = {{"n_head", 4}};

void check_way(World& world, int tensor, const Way& way, bool sequence) {
  SCOPED_TRACE(
      ::testing::Message() << "kind " << static_cast<int>(way.kind)
                           << ", layout " << static_cast<int>(way.layout));
  ContextRanks ranks(world, tensor);
  const LayerContext layers = ranks.layers(way, sequence);
  const ChangedModel gpt2("gpt2", kFourHeads);
  const ChangedModel llama("llama3", nlohmann::json::object());
  ModelInput input = labelled_input(kRows, kLength);
  for (const ChangedModel* model : {&gpt2, &llama}) {
    expect_plain(ranks, layers, model->folder(), input);
    // Ranks with different numbers of labels, and with none.
    ModelInput uneven = input;
    uneven.labels = input.labels.clone();
    uneven.labels.narrow(1, 0, 13).fill_(-100);
    expect_plain(ranks, layers, model->folder(), uneven);
    ModelInput placed = input;
    placed.position_ids =
        torch::arange(3, 3 + kLength).unsqueeze(0).expand({kRows, -1});
    expect_plain(ranks, layers, model->folder(), placed);
    ModelInput padded = input;
    padded.attention_mask = torch::ones({kRows, kLength}, torch::kLong);
    padded.attention_mask[0].narrow(0, 0, 5).fill_(0);
    padded.attention_mask[1].narrow(0, 11, 5).fill_(0);
    padded.labels = input.labels.masked_fill(
        padded.attention_mask.eq(0) | padded.attention_mask.roll(1, 1).eq(0),
        -100);
    expect_plain(ranks, layers, model->folder(), padded);
    // Documents of 7, 4 and 5 tokens, over the bounds of ranks.
    ModelInput packed = input;
    const at::Tensor places = torch::arange(kLength).repeat({kRows, 1});
    packed.others["document_ids"] =
        places.ge(7).to(torch::kLong) + places.ge(11);
    expect_plain(ranks, layers, model->folder(), packed);
  }
}

} // namespace

TEST(ContextModels, EqualOneRankOverTwo) {
  run_ranks(2, [](World& world) {
    for (const Way& way : kWays) {
      check_way(world, 1, way, false);
    }
  });
}

// kv heads are fewer than ranks: Ulysses repeats them.
TEST(ContextModels, EqualOneRankOverFour) {
  run_ranks(4, [](World& world) {
    for (const Way& way : kWays) {
      check_way(world, 1, way, false);
    }
  });
}

TEST(ContextModels, EqualOneRankTogetherWithDividedLayers) {
  run_ranks(4, [](World& world) {
    for (const Way& way : kWays) {
      for (const bool sequence : {false, true}) {
        check_way(world, 2, way, sequence);
      }
    }
  });
}

// Encoders, and those that another text is read beside: with padding.
TEST(ContextModels, EncodersEqualOneRankWithUlysses) {
  run_ranks(4, [](World& world) {
    for (const int tensor : {1, 2}) {
      ContextRanks ranks(world, tensor);
      const nlohmann::json bert_heads = {{"num_attention_heads", 4}};
      const nlohmann::json t5_heads = {{"num_heads", 4}, {"d_kv", 5}};
      for (const auto& [name, changes] :
           {std::pair("bert", bert_heads),
            std::pair("roberta", bert_heads),
            std::pair("t5", t5_heads),
            std::pair("t5_v1_1", t5_heads)}) {
        SCOPED_TRACE(name);
        const ChangedModel changed(name, changes);
        ModelInput input = labelled_input(kRows, kLength);
        input.attention_mask = torch::ones({kRows, kLength}, torch::kLong);
        input.attention_mask[1].narrow(0, 11, 5).zero_();
        input.labels = input.labels.clone();
        input.labels[1].narrow(0, 11, 5).fill_(-100);
        for (const auto layout :
             {ContextLayout::kContiguous, ContextLayout::kZigzag}) {
          expect_plain(
              ranks,
              ranks.layers({ContextKind::kUlysses, layout}, tensor > 1),
              changed.folder(),
              input);
        }
      }
    }
  });
}

// Ranks have different tokens: the same elements must not be dropped.
TEST(ContextModels, DropoutDiffersBetweenRanks) {
  run_ranks(2, [](World& world) {
    ContextRanks ranks(world, 1);
    const LayerContext layers = ranks.layers(kWays[0]);
    torch::manual_seed(3);
    const at::Tensor dropped =
        layers.dropout(torch::ones({1, 64, 4}), 0.5, /*train=*/true);
    const at::Tensor all = torch::empty({2, 64, 4});
    ranks.context().all_gather(all, dropped, "a test's gather").wait();
    EXPECT_FALSE(all[0].equal(all[1]));
  });
}

TEST(ContextModels, RefuseWhatIsNotThere) {
  run_ranks(2, [](World& world) {
    ContextRanks ranks(world, 1);
    const ChangedModel gpt2("gpt2", kFourHeads);
    const ModelInput input = labelled_input(kRows, kLength);
    const auto ring =
        from_pretrained(gpt2.folder(), {.context = ranks.layers(kWays[2])});
    ring->train();
    expect_error([&] { ring->forward(input); }, {"dropout", "Ulysses"});
    const ModelFixture three("gpt2");
    const auto heads =
        from_pretrained(three.folder(), {.context = ranks.layers(kWays[0])});
    expect_error(
        [&] { heads->forward(input); }, {"3 heads", "context size of 1, 3"});
    ModelInput odd = labelled_input(kRows, 15);
    expect_error([&] { heads->forward(odd); }, {"15 tokens", "pad"});
    expect_error(
        [&] {
          LayerContext().over_context({&ranks.context(), ContextKind::kRing});
        },
        {"channels"});
  });
}

} // namespace tessera::zoo::context_models_test
