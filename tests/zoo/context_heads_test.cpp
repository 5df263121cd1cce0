// SPDX-License-Identifier: Apache-2.0
// All models with sequences divided over two context-parallel ranks: with
// padding, windows, experts, every head, and hidden states.

#include "support/ranks.h"
#include "zoo/context_ranks.h"
#include "zoo/divided_models.h"
#include "zoo/model_layouts.h"

#include <array>

namespace tessera::zoo::context_heads_test {
namespace {

using tests::run_ranks;

constexpr std::array<ContextLayout, 2> kLayouts = {
    ContextLayout::kContiguous,
    ContextLayout::kZigzag};

/// Ulysses divides heads: what a fixture with three of them has to change.
nlohmann::json four_heads(const ModelFixture& reference) {
  const nlohmann::json config = read_json(reference.folder() / "config.json");
  nlohmann::json changes = nlohmann::json::object();
  for (const char* key : {"num_attention_heads", "n_head"}) {
    if (config.contains(key) && config[key] == 3) {
      changes[key] = 4;
    }
  }
  return changes;
}

/// Each rank has the gradients of its tokens.
void expect_gradients_as(
    const Model& model,
    const Model& plain,
    ContextRanks& ranks) {
  expect_plain_gradients(
      model,
      plain,
      [&](const std::string&) -> Communicator& { return ranks.context(); },
      nullptr);
}

void expect_as_plain(
    ContextRanks& ranks,
    const std::filesystem::path& folder,
    const ModelInput& input,
    const LayerContext& layers) {
  const auto plain = from_pretrained(folder);
  const ModelOutput expected = plain->forward(input);
  loss_of(expected, input).backward();
  const auto model = from_pretrained(folder, {.context = layers});
  const ModelOutput output = model->forward(input);
  const NamedTensors found = output.named();
  for (const auto& [name, tensor] : expected.named()) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(found.contains(name));
    expect_near(
        without_padding(found.at(name), input.attention_mask),
        without_padding(tensor, input.attention_mask));
  }
  EXPECT_EQ(found.size(), expected.named().size());
  loss_of(output, input).backward();
  expect_gradients_as(*model, *plain, ranks);
}

void expect_as_transformers(
    ContextRanks& ranks,
    const ModelFixture& reference,
    const LayerContext& layers) {
  const auto model = from_pretrained(reference.folder(), {.context = layers});
  const ModelInput input = reference.input();
  const ModelOutput output = model->forward(input);
  expect_outputs(reference, output);
  loss_of(output, input).backward();
  expect_gradients(reference, *model, [&](const torch::Tensor& parameter) {
    return averaged_gradient(parameter, ranks.context());
  });
}

} // namespace

TEST(ContextHeads, EqualTransformersWithUlysses) {
  run_ranks(2, [](World& world) {
    ContextRanks ranks(world, 1);
    for_every_model(ModelLayout::kUlysses, [&](const std::string& name) {
      const ModelFixture reference(name);
      const nlohmann::json changes = four_heads(reference);
      for (const ContextLayout layout : kLayouts) {
        const LayerContext layers =
            ranks.layers({ContextKind::kUlysses, layout});
        if (changes.empty()) {
          expect_as_transformers(ranks, reference, layers);
        } else {
          const ChangedModel changed(name, changes);
          expect_as_plain(ranks, changed.folder(), reference.input(), layers);
        }
      }
    });
  });
}

// Without padding, whose results, which count here, have no meaning.
TEST(ContextHeads, EqualOneRankWithARing) {
  run_ranks(2, [](World& world) {
    ContextRanks ranks(world, 1);
    for_every_model(ModelLayout::kRing, [&](const std::string& name) {
      const ModelFixture reference(name);
      ModelInput input = reference.input();
      input.attention_mask = torch::Tensor();
      input.decoder_attention_mask = torch::Tensor();
      for (const ContextLayout layout : kLayouts) {
        expect_as_plain(
            ranks,
            reference.folder(),
            input,
            ranks.layers({ContextKind::kRing, layout}));
      }
    });
  });
}

} // namespace tessera::zoo::context_heads_test
