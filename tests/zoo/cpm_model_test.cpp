// SPDX-License-Identifier: Apache-2.0
// CPM-1 and CPM-3 beyond their fixtures: texts that are read in parts, prompts,
// and what is refused.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/generation/generate.h"
#include "tessera/zoo/heads/head.h"
#include "zoo/model_fixture.h"

namespace tessera::zoo::cpm_model_test {
namespace {

constexpr int64_t kPrompts = 3; // of the fixtures

std::shared_ptr<Model> load(const char* name) {
  return from_pretrained(fixture("models") / name);
}

/// Two texts of 12 tokens; in CPM-3's, three numbers of prompts are in front.
/// Five or six tokens are given, and the texts have several segments.
ModelInput texts(const std::string& name) {
  torch::manual_seed(3);
  ModelInput input;
  input.input_ids = torch::randint(4, 61, {2, 12}, torch::kLong);
  input.others["context"] = torch::zeros({2, 12}, torch::kLong);
  input.others["context"][0].narrow(0, 0, 5).fill_(1);
  input.others["context"][1].narrow(0, 0, 6).fill_(1);
  input.others["span"] = torch::zeros({2, 12}, torch::kLong);
  input.others["span"][0].narrow(0, 8, 4).fill_(1);
  if (name.starts_with("cpm3")) {
    input.input_ids.narrow(1, 0, kPrompts)
        .copy_(torch::randint(0, 12, {2, kPrompts}, torch::kLong));
    input.token_type_ids = torch::randint(0, 5, {2, 12}, torch::kLong);
  }
  return input;
}

/// Its tokens [begin, end).
ModelInput part_of(const ModelInput& input, int64_t begin, int64_t end) {
  NamedTensors parts = input.named();
  for (auto& [name, tensor] : parts) {
    tensor = tensor.narrow(1, begin, end - begin);
  }
  return ModelInput::from_named(parts);
}

class CpmModels : public ::testing::TestWithParam<const char*> {};

} // namespace

TEST_P(CpmModels, ReadTextsInParts) {
  const auto model = load(GetParam());
  const at::NoGradGuard no_grad;
  for (const bool is_causal : {false, true}) {
    ModelInput input = texts(GetParam());
    std::vector<std::pair<int64_t, int64_t>> parts = {{0, 6}, {6, 7}, {7, 12}};
    if (is_causal) {
      input.others.erase("context");
      parts = {{0, 2}, {2, 3}, {3, 5}, {5, 12}}; // prompts in several
    }
    const at::Tensor full = model->forward(input).logits;
    KeyValueCache cache(12);
    std::vector<at::Tensor> logits;
    for (const auto& [begin, end] : parts) {
      ModelInput part = part_of(input, begin, end);
      part.cache = &cache;
      logits.push_back(model->forward(part).logits);
      cache.advance(end - begin);
    }
    // Float32 sums in another order.
    EXPECT_TRUE(at::cat(logits, 1).allclose(full, 1e-4, 1e-4)) << is_causal;
  }
}

// Inputs continue as if the whole text had been given again.
TEST_P(CpmModels, Generate) {
  const auto model = load(GetParam());
  const at::NoGradGuard no_grad;
  const int64_t given = 7;
  const int64_t more = 5;
  ModelInput prompt = part_of(texts(GetParam()), 0, given);
  // The last token is given, and sees less than what follows it.
  prompt.others["context"][0].narrow(0, 4, 3).copy_(
      torch::tensor({0, 0, 1}, torch::kLong));
  prompt.others["span"].zero_();
  prompt.others["span"][0].narrow(0, 4, 3).fill_(1);
  prompt.attention_mask = torch::ones({2, given}, torch::kLong);
  prompt.attention_mask[1].narrow(0, kPrompts, 2).zero_(); // after the prompts
  GenerateOptions options;
  options.max_new_tokens = more;
  const at::Tensor found = generate(*model, prompt, options);

  ModelInput full = prompt;
  const auto add = [](const at::Tensor& tensor, int64_t value) {
    return torch::cat({tensor, torch::full({2, 1}, value, torch::kLong)}, 1);
  };
  const auto repeat_last = [](const at::Tensor& tensor) {
    return torch::cat({tensor, tensor.narrow(1, tensor.size(1) - 1, 1)}, 1);
  };
  for (int64_t i = 0; i < more; ++i) {
    full.position_ids =
        ((full.attention_mask.cumsum(1) - 1) * full.attention_mask);
    const at::Tensor next =
        model->forward(full).logits.select(1, -1).argmax(-1, true);
    full.input_ids = torch::cat({full.input_ids, next}, 1);
    full.attention_mask = add(full.attention_mask, 1);
    full.others["context"] = add(full.others["context"], 0);
    full.others["span"] = repeat_last(full.others["span"]);
    if (full.token_type_ids.defined()) {
      full.token_type_ids = repeat_last(full.token_type_ids);
    }
  }
  EXPECT_TRUE(found.equal(full.input_ids)) << found << full.input_ids;
  // Inputs are repeated for each beam.
  options.num_beams = 3;
  EXPECT_EQ(
      generate(*model, prompt, options).sizes(),
      (at::IntArrayRef{2, given + more}));
}

// Every pipeline stage keeps the inputs of the tokens so far.
TEST_P(CpmModels, GenerateDivided) {
  ModelInput prompt = part_of(texts(GetParam()), 0, 7);
  GenerateOptions options;
  options.max_new_tokens = 4;
  options.num_beams = 2;
  const auto full = load(GetParam());
  const at::Tensor expected = generate(*full, prompt, options);
  tests::run_ranks(4, [&](World& world) {
    ParallelOptions layout;
    layout.sizes = {.shard = 1, .tensor = 2, .pipeline = 2};
    ParallelRun parallel(world, layout, 2);
    const auto model = from_pretrained(
        fixture("models") / GetParam(), {.context = layer_context(parallel)});
    EngineOptions engine_options;
    engine_options.log_memory = false;
    engine_options.parallel = parallel.mesh_or_null();
    const Engine engine(world, model, engine_options);
    EXPECT_TRUE(generate(*model, prompt, options, &parallel).equal(expected));
  });
}

// y = (x W + x A B) / sqrt(in), before and after.
TEST_P(CpmModels, MergeAdapters) {
  const auto model = load(GetParam());
  const at::NoGradGuard no_grad;
  const ModelInput input = texts(GetParam());
  const at::Tensor before = model->forward(input).logits;
  apply_lora(
      *model,
      {.r = 4,
       .alpha = 8,
       .target_modules = {.pattern = "all-linear"},
       .init = LoraInit::kRandom});
  model->eval();
  const at::Tensor with = model->forward(input).logits;
  EXPECT_FALSE(with.allclose(before, 1e-2, 1e-2));
  merge_lora(*model);
  EXPECT_TRUE(model->forward(input).logits.allclose(with, 1e-4, 1e-4));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    CpmModels,
    ::testing::Values("cpm1", "cpm1_tied", "cpm3", "cpm3_untied"),
    [](const auto& one) { return std::string(one.param); });

TEST(CpmModel, PredictsNoNumbersOfPrompts) {
  const auto model = load("cpm3");
  NamedTensors batch = {{"input_ids", texts("cpm3").input_ids}};
  model->head()->complete(batch);
  at::Tensor expected = batch.at("input_ids").clone();
  expected.narrow(1, 0, kPrompts).fill_(-100);
  EXPECT_TRUE(batch.at("labels").equal(expected));
  EXPECT_TRUE(batch.at("input_ids").equal(texts("cpm3").input_ids));
  // Labels of a file are kept.
  batch["labels"] = batch.at("input_ids");
  model->head()->complete(batch);
  EXPECT_TRUE(batch.at("labels").equal(batch.at("input_ids")));
}

TEST(CpmModel, IsShorterThanItsPrompts) {
  const auto model = load("cpm3");
  const at::NoGradGuard no_grad;
  ModelInput input;
  input.input_ids = torch::tensor({{1, 11, 2, 40}}, torch::kLong);
  const at::Tensor full = model->forward(input).logits;
  input.input_ids = input.input_ids.narrow(1, 0, 2);
  EXPECT_TRUE(
      model->forward(input).logits.allclose(full.narrow(1, 0, 2), 1e-4, 1e-4));
}

TEST(CpmModel, NamesWhatIsWrongWithABatch) {
  const auto model = load("cpm3");
  const auto run = [&](const ModelInput& input) {
    return [&model, input] { model->forward(input); };
  };
  ModelInput input = texts("cpm3");
  input.input_ids[1][2] = 12;
  expect_error(run(input), {"prompts", "holds 12", "0 .. 11"});
  input = texts("cpm3");
  input.input_ids[1][3] = 61;
  expect_error(run(input), {"holds 61", "0 .. 60"});
  input = texts("cpm3");
  input.token_type_ids[0][0] = 5;
  expect_error(run(input), {"token_type_ids holds 5", "0 .. 4"});
  input = texts("cpm3");
  input.others["span"] = input.others["span"].narrow(1, 0, 11);
  expect_error(run(input), {"span is [2, 11]", "[2, 12]"});
  input = texts("cpm3");
  input.position_ids = torch::zeros({3, 12}, torch::kLong);
  expect_error(run(input), {"position_ids is [3, 12]"});
  input.position_ids = torch::arange(12).unsqueeze(0);
  EXPECT_TRUE(model->forward(input).logits.defined());
  const auto first = load("cpm1");
  input = texts("cpm1");
  input.token_type_ids = torch::zeros({2, 12}, torch::kLong);
  expect_error(
      [&] { first->forward(input); }, {"does not take 'token_type_ids'"});

  // Earlier tokens had segments.
  const at::NoGradGuard no_grad;
  KeyValueCache cache(12);
  input = part_of(texts("cpm3"), 0, 6);
  input.cache = &cache;
  model->forward(input);
  cache.advance(6);
  input = part_of(texts("cpm3"), 6, 12);
  input.cache = &cache;
  input.token_type_ids = torch::Tensor();
  expect_error(run(input), {"token_type_ids is missing", "6 tokens before"});
  ModelInput prompt = texts("cpm1");
  prompt.token_type_ids = torch::zeros({2, 12}, torch::kLong);
  expect_error(
      [&] { generate(*first, prompt, {}); },
      {"'token_type_ids'", "attention_mask, context, span"});
}

} // namespace tessera::zoo::cpm_model_test
