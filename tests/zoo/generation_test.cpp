// SPDX-License-Identifier: Apache-2.0
// Texts that models go on with, against transformers; and against themselves
// where ranks divide them.
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/zoo/generation/generate.h"
#include "tessera/zoo/generation/next_token.h"
#include "tessera/zoo/generation/prompt_batch.h"
#include "tessera/zoo/generation/prompt_cache.h"
#include "tessera/zoo/models/pretrained.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::zoo::generation_test {
namespace {

std::filesystem::path fixtures() {
  return std::filesystem::path(tests::source_dir()) / "tests/zoo/fixtures";
}

at::Tensor tensor_of(const nlohmann::json& rows) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : rows) {
    tensors.push_back(
        torch::tensor(row.get<std::vector<int64_t>>(), torch::kLong));
  }
  return torch::stack(tensors);
}

struct Case {
  std::string model;
  std::string way;
  GenerateOptions options;
  ModelInput prompt;
  at::Tensor sequences;

  std::string name() const {
    return model + " " + way;
  }
};

std::vector<Case> cases() {
  std::ifstream file(fixtures() / "generation.json");
  std::vector<Case> all;
  for (const auto& json : nlohmann::json::parse(file)) {
    Case one;
    one.model = json.at("model");
    one.way = json.at("way");
    const auto& options = json.at("options");
    one.options.max_new_tokens = options.value("max_new_tokens", 20);
    one.options.pad_token_id = options.at("pad_token_id");
    if (!options.at("eos_token_id").is_null()) {
      one.options.eos_token_id = {options.at("eos_token_id")};
    }
    one.options.repetition_penalty = options.value("repetition_penalty", 1.0);
    one.options.no_repeat_ngram_size = options.value("no_repeat_ngram_size", 0);
    one.options.min_new_tokens = options.value("min_new_tokens", 0);
    one.options.num_beams = options.value("num_beams", 1);
    one.options.num_return_sequences = options.value("num_return_sequences", 1);
    one.options.length_penalty = options.value("length_penalty", 1.0);
    one.options.do_sample = options.at("do_sample");
    one.options.temperature = options.value("temperature", 1.0);
    one.options.top_k = options.value("top_k", 50);
    one.options.top_p = options.value("top_p", 1.0);
    one.options.min_p = options.value("min_p", 0.0);
    one.options.seed = json.at("seed");
    if (options.contains("max_length")) {
      one.options.max_length = options.at("max_length").get<int64_t>();
    }
    one.options.min_length = options.value("min_length", 0);
    using Tokens = std::vector<int64_t>;
    one.options.sequence_bias = options.value(
        "sequence_bias", std::vector<std::pair<Tokens, double>>());
    one.options.bad_words_ids =
        options.value("bad_words_ids", std::vector<Tokens>());
    one.options.suppress_tokens = options.value("suppress_tokens", Tokens());
    one.options.begin_suppress_tokens =
        options.value("begin_suppress_tokens", Tokens());
    one.options.forced_eos_token_id =
        options.value("forced_eos_token_id", Tokens());
    if (options.contains("forced_bos_token_id")) {
      one.options.forced_bos_token_id =
          options.at("forced_bos_token_id").get<int64_t>();
    }
    if (options.contains("early_stopping")) {
      one.options.early_stopping = options.at("early_stopping") == "never"
                                       ? EarlyStopping::kNever
                                       : EarlyStopping::kYes;
    }
    one.prompt.input_ids = tensor_of(json.at("input_ids"));
    one.prompt.attention_mask = tensor_of(json.at("attention_mask"));
    one.sequences = tensor_of(json.at("sequences"));
    all.push_back(one);
  }
  return all;
}

std::shared_ptr<Model> load(
    const std::string& name,
    const LayerContext& context = {}) {
  return from_pretrained(fixtures() / "models" / name, {.context = context});
}

} // namespace

TEST(Generation, ScoresThatAreNoNumbersAreRefused) {
  const auto model = from_pretrained(fixtures() / "models/gpt2");
  {
    const at::NoGradGuard no_grad;
    model->parameters().back().flatten()[0] = NAN;
  }
  ModelInput prompt;
  prompt.input_ids = torch::ones({1, 2}, torch::kLong);
  expect_error([&] { generate(*model, prompt, {}); }, {"next token are NaN"});
}

TEST(Generation, IsThatOfTransformers) {
  const auto all = cases();
  ASSERT_GT(all.size(), 100U);
  for (const Case& one : all) {
    const auto model = load(one.model);
    const at::Tensor tokens = generate(*model, one.prompt, one.options);
    EXPECT_TRUE(tokens.equal(one.sequences)) << one.name() << "\n"
                                             << tokens << one.sequences;
  }
}

TEST(Generation, DecodersBeginWithTheTokenOfTheOptions) {
  const auto model = load("t5");
  ModelInput prompt;
  prompt.input_ids = torch::tensor({{5, 6, 7}}, torch::kLong);
  GenerateOptions options;
  options.max_new_tokens = 3;
  const at::Tensor usual = generate(*model, prompt, options);
  EXPECT_EQ(usual[0][0].item<int64_t>(), model->first_token());
  options.decoder_start_token_id = *model->first_token() + 4;
  const at::Tensor tokens = generate(*model, prompt, options);
  EXPECT_EQ(tokens[0][0].item<int64_t>(), options.decoder_start_token_id);
  EXPECT_FALSE(tokens.equal(usual));
}

TEST(Generation, ReadsWhatIsThereOnce) {
  // The logits of each step are those of the whole text read at once.
  for (const std::string name : {"llama", "gpt2", "t5"}) {
    const auto model = load(name);
    const at::NoGradGuard no_grad;
    torch::manual_seed(2);
    const at::Tensor ids = torch::randint(3, 29, {2, 9}, torch::kLong);
    const auto input_of = [&](const at::Tensor& tokens) {
      ModelInput input;
      (model->first_token() ? input.decoder_input_ids : input.input_ids) =
          tokens;
      if (model->first_token()) {
        input.input_ids = ids;
      }
      return input;
    };
    const at::Tensor full = model->forward(input_of(ids)).logits;
    KeyValueCache cache(9);
    std::vector<at::Tensor> parts;
    for (const auto& [begin, end] :
         {std::pair(0, 4), std::pair(4, 5), std::pair(5, 9)}) {
      ModelInput input = input_of(ids.narrow(1, begin, end - begin));
      input.cache = &cache;
      parts.push_back(model->forward(input).logits);
      cache.advance(end - begin);
    }
    // Float32 sums in another order.
    EXPECT_TRUE(at::cat(parts, 1).allclose(full, 1e-5, 1e-5)) << name;
  }
}

TEST(Generation, DividedByRanksIsTheSame) {
  struct Layout {
    const char* name;
    int ranks;
    ParallelSizes sizes;
    PipelineScheduleKind schedule = PipelineScheduleKind::kGPipe;
  };
  const std::vector<Layout> layouts{
      {"tensor 2", 2, {.shard = 1, .tensor = 2}},
      {"pipeline 2", 2, {.shard = 1, .pipeline = 2}},
      {"tensor 2 x pipeline 2", 4, {.shard = 1, .tensor = 2, .pipeline = 2}},
      {"pipeline 2 x shard 2", 4, {.shard = 2, .pipeline = 2}},
      {"shard 3", 3, {}}};
  for (const Layout& layout : layouts) {
    tests::run_ranks(layout.ranks, [&](World& world) {
      ParallelOptions options;
      options.sizes = layout.sizes;
      options.schedule = layout.schedule;
      for (const Case& one : cases()) {
        if ((one.way != "penalty" && one.way != "beams" &&
             one.way != "drawn_beams") ||
            (one.model != "llama" && one.model != "t5" &&
             one.model != "opt_350m" && one.model != "qwen3")) {
          continue;
        }
        if (layout.sizes.tensor > 1 && one.model == "opt_350m") {
          continue; // 3 heads
        }
        ParallelRun parallel(world, options, 2);
        const auto model = load(one.model, layer_context(parallel));
        EngineOptions engine_options;
        engine_options.log_memory = false;
        engine_options.sharding.groups.min_group_numel = 0;
        engine_options.parallel = parallel.mesh_or_null();
        const Engine engine(world, model, engine_options);
        EXPECT_TRUE(generate(*model, one.prompt, one.options, &parallel)
                        .equal(one.sequences))
            << one.name() << ", " << layout.name;
      }
    });
  }
}

namespace {

/// A conversation of three turns: each prompt is the text before it and two
/// tokens more.
std::vector<at::Tensor> conversation(
    Model& model,
    const GenerateOptions& options,
    ParallelRun* parallel,
    PromptCache* kept) {
  std::vector<at::Tensor> texts;
  at::Tensor prompt = torch::tensor({{5, 7, 11}}, torch::kLong);
  for (int turn = 0; turn < 3; ++turn) {
    ModelInput input;
    input.input_ids = prompt;
    const at::Tensor text =
        generate(model, input, options, parallel, {}, kept).narrow(0, 0, 1);
    texts.push_back(text);
    prompt = at::cat({text, torch::tensor({{8, 9}}, torch::kLong)}, 1);
  }
  return texts;
}

} // namespace

// What ranks keep of their layers and heads is what the next turn begins with:
// the texts are those of one rank that reads every prompt whole.
TEST(Generation, AConversationDividedByRanksIsTheSame) {
  GenerateOptions greedy;
  greedy.max_new_tokens = 4;
  GenerateOptions drawn_beams = greedy;
  drawn_beams.do_sample = true;
  drawn_beams.num_beams = 3;
  drawn_beams.seed = 4;
  tests::run_ranks(4, [&](World& world) {
    ParallelOptions sizes;
    sizes.sizes = {.shard = 1, .tensor = 2, .pipeline = 2};
    sizes.schedule = PipelineScheduleKind::kGPipe;
    for (const std::string name : {"llama", "gpt2"}) {
      const auto full = load(name);
      ParallelRun parallel(world, sizes, 2);
      const auto model = load(name, layer_context(parallel));
      EngineOptions engine_options;
      engine_options.log_memory = false;
      engine_options.parallel = parallel.mesh_or_null();
      const Engine engine(world, model, engine_options);
      for (const GenerateOptions& options : {greedy, drawn_beams}) {
        const auto expected = conversation(*full, options, nullptr, nullptr);
        PromptCache kept;
        PromptCache kept_full;
        const auto found = conversation(*model, options, &parallel, &kept);
        conversation(*full, options, nullptr, &kept_full);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(found[i].equal(expected[i]))
              << name << ", beams " << options.num_beams << ", turn " << i
              << "\n"
              << found[i] << expected[i];
        }
        EXPECT_EQ(kept.read_tokens(), kept_full.read_tokens());
        if (options.num_beams == 1) {
          // Prompts of 3, 9 and 15 tokens and 3 times 3 written ones that are
          // read: without what is kept, 36.
          EXPECT_EQ(kept.read_tokens(), 18);
        }
      }
    }
  });
}

TEST(Generation, DrawsWithTheSeedAlone) {
  const auto model = load("llama");
  GenerateOptions options;
  options.do_sample = true;
  options.temperature = 3;
  options.seed = 7;
  ModelInput prompt;
  prompt.input_ids = torch::tensor({{5, 6, 7}}, torch::kLong);
  torch::manual_seed(1);
  const at::Tensor first = generate(*model, prompt, options);
  torch::manual_seed(2);
  EXPECT_TRUE(generate(*model, prompt, options).equal(first));
  options.seed = 8;
  EXPECT_FALSE(generate(*model, prompt, options).equal(first));
  options.num_return_sequences = 3;
  const at::Tensor several = generate(*model, prompt, options);
  ASSERT_EQ(several.size(0), 3);
  EXPECT_FALSE(several[0].equal(several[1]));
}

namespace {

constexpr int64_t kMixedPadding = 7;

/// Prompts of different lengths, in which the token that pads is one of others.
const std::vector<std::vector<int64_t>>& mixed_prompts() {
  static const std::vector<std::vector<int64_t>> all{
      {5, 7, 11, 7, 9, 5, 7, 7}, {3}, {10, 7, 7}, {7}, {4, 8, 4, 8, 2}};
  return all;
}

/// Ways to continue them, by name.
std::vector<std::pair<std::string, GenerateOptions>> ways_of_mixed() {
  std::vector<std::pair<std::string, GenerateOptions>> ways;
  const auto add = [&](const std::string& name, const auto& change) {
    GenerateOptions options;
    options.max_new_tokens = 7;
    options.pad_token_id = kMixedPadding;
    change(options);
    ways.emplace_back(name, options);
  };
  using Tokens = std::vector<int64_t>;
  const Tokens third{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 18, 22, 25, 28, 33};
  add("greedy", [](GenerateOptions&) {});
  add("ends", [&](GenerateOptions& one) { one.eos_token_id = third; });
  add("repetition_penalty",
      [](GenerateOptions& one) { one.repetition_penalty = 1.9; });
  for (const int64_t size : {1, 2, 3}) {
    add("no_repeat_ngram_size " + std::to_string(size),
        [size](GenerateOptions& one) { one.no_repeat_ngram_size = size; });
  }
  add("sequence_bias", [](GenerateOptions& one) {
    for (int64_t token = 0; token < 60; ++token) {
      one.sequence_bias.push_back(
          {{kMixedPadding, 3, token}, token % 2 == 0 ? -30. : 3.});
      one.sequence_bias.push_back(
          {{kMixedPadding, kMixedPadding, kMixedPadding, token},
           token % 3 == 0 ? -30. : 3.});
    }
  });
  add("bad_words_ids", [](GenerateOptions& one) {
    for (int64_t token = 0; token < 60; token += 2) {
      one.bad_words_ids.push_back({kMixedPadding, 3, token});
      one.bad_words_ids.push_back(
          {kMixedPadding, kMixedPadding, kMixedPadding, token + 1});
    }
  });
  add("forced first and last tokens", [](GenerateOptions& one) {
    one.forced_bos_token_id = 41;
    one.forced_eos_token_id = {33};
    for (int64_t token = 0; token < 40; ++token) {
      one.begin_suppress_tokens.push_back(token);
    }
  });
  add("suppressed tokens", [&](GenerateOptions& one) {
    one.suppress_tokens = {2, 20, 40};
    one.begin_suppress_tokens = third;
  });
  add("min_new_tokens", [&](GenerateOptions& one) {
    one.eos_token_id = third;
    one.min_new_tokens = 4;
  });
  add("max_length and min_length", [&](GenerateOptions& one) {
    one.eos_token_id = third;
    one.max_length = 12;
    one.min_length = 6;
    one.forced_eos_token_id = {33};
  });
  const auto sample = [&](GenerateOptions& one) {
    one.do_sample = true;
    one.temperature = 2;
    one.seed = 11;
    one.eos_token_id = {third.begin(), third.begin() + 5};
  };
  add("samples", [&](GenerateOptions& one) {
    sample(one);
    one.top_k = 0;
    one.num_return_sequences = 3;
  });
  add("the likeliest samples", [&](GenerateOptions& one) {
    sample(one);
    one.top_k = 12;
    one.top_p = 0.9;
    one.min_p = 0.05;
    one.repetition_penalty = 1.4;
    one.max_length = 12;
  });
  for (const auto early :
       {EarlyStopping::kNo, EarlyStopping::kYes, EarlyStopping::kNever}) {
    for (const bool is_drawn : {false, true}) {
      add("beams " + std::to_string(static_cast<int>(early)) +
              (is_drawn ? ", drawn" : ""),
          [&](GenerateOptions& one) {
            sample(one);
            one.do_sample = is_drawn;
            one.num_beams = 3;
            one.num_return_sequences = 2;
            one.early_stopping = early;
            one.length_penalty = early == EarlyStopping::kNo ? 1 : -0.5;
            one.no_repeat_ngram_size = 2;
            one.min_length = 4;
          });
    }
  }
  return ways;
}

/// The new tokens of each result, followed by padding.
/// @param first the number of the first prompt.
/// @param stops whether texts end by another reason, too.
std::vector<at::Tensor> continued(
    Model& model,
    size_t first,
    size_t count,
    GenerateOptions options,
    bool stops,
    ParallelRun* parallel) {
  const auto begin =
      mixed_prompts().begin() + static_cast<std::ptrdiff_t>(first);
  const std::vector<std::vector<int64_t>> own(
      begin, begin + static_cast<std::ptrdiff_t>(count));
  for (size_t i = 0; i < count; ++i) {
    options.prompt_numbers.push_back(static_cast<int64_t>(first + i));
  }
  EndsSequence ends;
  if (stops) {
    // Of each row its own tokens, and what prompt it is.
    ends = [&](int64_t row, std::span<const int64_t> written) {
      const auto copies =
          std::max(options.num_beams, options.num_return_sequences);
      const auto prompt = first + static_cast<size_t>(row / copies);
      int64_t sum = mixed_prompts()[prompt].back();
      for (const int64_t token : written) {
        sum += token;
      }
      return sum % 3 == 0;
    };
  }
  const ModelInput batch = prompt_batch(own, kMixedPadding, at::kCPU);
  const at::Tensor sequences = generate(model, batch, options, parallel, ends);
  const int64_t given = model.first_token() ? 1 : batch.input_ids.size(1);
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < sequences.size(0); ++row) {
    const at::Tensor added = sequences[row].slice(0, given);
    rows.push_back(
        at::constant_pad_nd(added, {0, 24 - added.size(0)}, kMixedPadding));
  }
  return rows;
}

/// Whatever is beside a prompt, it is continued as alone.
void expect_no_difference(
    Model& model,
    const std::string& label,
    const GenerateOptions& options,
    bool stops,
    ParallelRun* parallel = nullptr) {
  const size_t all = mixed_prompts().size();
  const auto results = static_cast<size_t>(options.num_return_sequences);
  std::vector<at::Tensor> alone;
  for (size_t i = 0; i < all; ++i) {
    const auto own = continued(model, i, 1, options, stops, parallel);
    ASSERT_EQ(own.size(), results);
    alone.insert(alone.end(), own.begin(), own.end());
  }
  for (const size_t size : {2U, 3U, 5U}) {
    for (size_t first = 0; first < all; first += size) {
      const size_t count = std::min(size, all - first);
      const auto found =
          continued(model, first, count, options, stops, parallel);
      ASSERT_EQ(found.size(), count * results);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(found[i].equal(alone[first * results + i]))
            << label << (stops ? ", with stops" : "") << ", batches of " << size
            << ", result " << i % results << " of prompt "
            << first + i / results << "\n"
            << found[i].view({1, -1}) << "alone"
            << alone[first * results + i].view({1, -1});
      }
    }
  }
}

} // namespace

// Rules, lengths, draws and beams of a prompt know its own tokens, and neither
// its padding nor other prompts.
TEST(Generation, OfAPromptDoesNotDependOnItsBatch) {
  for (const std::string name : {"gpt2", "llama", "t5"}) {
    const auto model = load(name);
    bool stops = name == "llama";
    for (const auto& [way, options] : ways_of_mixed()) {
      expect_no_difference(*model, name + " " + way, options, stops);
      stops = !stops;
    }
  }
}

// Positions, masks and distances too. (Prompts of CPM-3 have more tokens than
// some of these.)
TEST(Generation, OfAPromptDoesNotDependOnItsBatchInAnyFamily) {
  for (const std::string name : {"arcee",
                                 "cohere",
                                 "cohere2",
                                 "cpm1",
                                 "cpm2",
                                 "ernie4_5",
                                 "exaone4",
                                 "falcon",
                                 "gemma",
                                 "gemma3_text",
                                 "glm",
                                 "glm4",
                                 "gpt_neo",
                                 "gptj",
                                 "granite",
                                 "helium",
                                 "llama3",
                                 "llama_dynamic",
                                 "llama_linear",
                                 "llama_yarn",
                                 "ministral",
                                 "mistral",
                                 "mpt",
                                 "mt5",
                                 "nemotron",
                                 "olmo",
                                 "olmo2",
                                 "olmo3",
                                 "opt",
                                 "opt_350m",
                                 "phi",
                                 "phi3",
                                 "qwen2",
                                 "qwen2_moe",
                                 "qwen2_moe_window",
                                 "qwen3",
                                 "qwen3_moe",
                                 "seed_oss",
                                 "smollm3",
                                 "stablelm",
                                 "starcoder2",
                                 "t5_v1_1"}) {
    GenerateOptions options;
    options.max_new_tokens = 9;
    options.pad_token_id = kMixedPadding;
    const auto model = load(name);
    if (name == "llama_dynamic") { // of 8 positions, which matter little
      const torch::NoGradGuard no_grad;
      for (auto& item : model->named_parameters()) {
        if (item.key().ends_with("attention.query.weight") ||
            item.key().ends_with("attention.key.weight")) {
          item.value().mul_(40);
        }
      }
      options.max_new_tokens = 20;
      options.do_sample = true;
      options.temperature = 2;
      options.top_k = 0;
      options.num_return_sequences = 16;
    }
    expect_no_difference(*model, name, options, false);
  }
}

TEST(Generation, OfAPromptDoesNotDependOnItsBatchOnRanks) {
  struct Layout {
    const char* name;
    ParallelSizes sizes;
  };
  for (const Layout& layout : std::vector<Layout>{
           {"shard 2", {}},
           {"tensor 2", {.shard = 1, .tensor = 2}},
           {"pipeline 2", {.shard = 1, .pipeline = 2}}}) {
    tests::run_ranks(2, [&](World& world) {
      ParallelOptions sizes;
      sizes.sizes = layout.sizes;
      sizes.schedule = PipelineScheduleKind::kGPipe;
      ParallelRun parallel(world, sizes, 2);
      const auto model = load("llama", layer_context(parallel));
      EngineOptions engine_options;
      engine_options.log_memory = false;
      engine_options.parallel = parallel.mesh_or_null();
      const Engine engine(world, model, engine_options);
      for (const auto& [way, options] : ways_of_mixed()) {
        if (way == "max_length and min_length" || way == "samples" ||
            way == "beams 0, drawn") {
          expect_no_difference(
              *model, layout.name + (" " + way), options, true, &parallel);
        }
      }
    });
  }
}

// A prompt's draws follow from its number: the same prompt under another one,
// or under another result, draws something else.
TEST(Generation, DrawsByTheNumberOfThePrompt) {
  const auto model = load("llama");
  GenerateOptions options;
  options.do_sample = true;
  options.temperature = 3;
  options.seed = 7;
  ModelInput prompt;
  prompt.input_ids = torch::tensor({{5, 6, 7}, {5, 6, 7}}, torch::kLong);
  const at::Tensor both = generate(*model, prompt, options);
  EXPECT_FALSE(both[0].equal(both[1]));
  prompt.input_ids = prompt.input_ids.narrow(0, 0, 1);
  options.prompt_numbers = {1};
  EXPECT_TRUE(generate(*model, prompt, options)[0].equal(both[1]));
  options.prompt_numbers = {1, 2};
  expect_error(
      [&] { generate(*model, prompt, options); },
      {"prompt_numbers has 2 numbers", "1 prompts"});
  options.prompt_numbers = {-1};
  expect_error(
      [&] { generate(*model, prompt, options); },
      {"prompt_numbers has -1", "between 0 and 2^32 - 1"});
}

// Per prompt as far as the model has positions.
TEST(Generation, FitsThePositionsOfEachPrompt) {
  const auto model = load("gpt2"); // 23 positions
  GenerateOptions options;
  options.max_new_tokens = 19;
  options.pad_token_id = kMixedPadding;
  const ModelInput batch =
      prompt_batch(mixed_prompts(), kMixedPadding, at::kCPU);
  expect_error(
      [&] { generate(*model, batch, options); }, {"8 tokens", "23 positions"});
  options.fit_to_model = true;
  const at::Tensor sequences = generate(*model, batch, options);
  ASSERT_EQ(sequences.size(1), 8 + 19);
  for (int64_t row = 0; row < 5; ++row) {
    EXPECT_EQ(
        new_tokens_of(*model, options, batch, sequences, row).size(),
        row == 0 ? 16U : 19U);
  }
  expect_no_difference(*model, "gpt2", options, false);
  ModelInput longer;
  longer.input_ids = torch::full({1, 24}, 5, torch::kLong);
  expect_error(
      [&] { generate(*model, longer, options); },
      {"24 tokens", "23 positions", "shorten"});
}

TEST(Generation, NamesWhatItCannotDo) {
  const auto model = load("llama");
  ModelInput prompt;
  prompt.input_ids = torch::tensor({{5, 6, 7}}, torch::kLong);
  const GenerateOptions options;
  prompt.attention_mask = torch::tensor({{1, 1, 0}}, torch::kLong);
  expect_error(
      [&] { generate(*model, prompt, options); },
      {"pad sequences on the left"});
  prompt.attention_mask = torch::ones({1, 2}, torch::kLong);
  expect_error(
      [&] { generate(*model, prompt, options); }, {"[1, 2]", "[1, 3]"});
  prompt.attention_mask = at::Tensor();
  prompt.labels = prompt.input_ids;
  expect_error([&] { generate(*model, prompt, options); }, {"'labels'"});
  prompt.labels = at::Tensor();
  expect_error(
      [&] { generate(*load("bert"), prompt, options); },
      {"use a causal model"});
  model->train();
  expect_error([&] { generate(*model, prompt, options); }, {"call eval()"});
  model->eval();
  GenerateOptions bad = options;
  bad.do_sample = true;
  bad.top_p = 0;
  expect_error(
      [&] { generate(*model, prompt, bad); }, {"top_p is 0", "at most 1"});
  bad = options;
  bad.max_length = 3;
  expect_error(
      [&] { generate(*model, prompt, bad); },
      {"max_length is 3", "prompt has 3 tokens"});
  bad = options;
  bad.suppress_tokens = {61};
  expect_error(
      [&] { generate(*model, prompt, bad); },
      {"suppress_tokens is 61", "61 tokens"});
  bad = options;
  bad.num_beams = 2;
  bad.num_return_sequences = 3;
  for (const bool is_drawn : {false, true}) {
    bad.do_sample = is_drawn;
    expect_error(
        [&] { generate(*model, prompt, bad); },
        {"num_return_sequences is 3", "not be greater than num_beams, 2"});
  }
  bad.do_sample = false;
  bad.num_return_sequences = 1;
  bad.num_beams = 40;
  expect_error(
      [&] { generate(*model, prompt, bad); },
      {"num_beams is 40", "80 candidate tokens", "vocabulary has 61"});
  bad = options;
  bad.max_new_tokens = 1000;
  const auto positions = load("gpt2");
  expect_error(
      [&] { generate(*positions, prompt, bad); }, {"positions", "tokens"});
  expect_error(
      [&] { generate(*load("gpt2_base"), prompt, options); },
      {"no language modeling head"});
}

TEST(NextToken, KeepsTheLikeliest) {
  // Chances 0.5, 0.25, 0.15, 0.1.
  const at::Tensor logits =
      torch::tensor({0.5, 0.25, 0.15, 0.1}).log().expand({2000, 4});
  const auto counts = [&](const GenerateOptions& options) {
    return NextToken(options, 2000)
        .choose(logits.clone(), 0)
        .bincount({}, 4)
        .to(torch::kFloat)
        .div(2000);
  };
  GenerateOptions options;
  options.do_sample = true;
  // 2000 draws: deviations of 0.011 and less.
  const auto expect = [&](const std::vector<float>& chances) {
    const at::Tensor found = counts(options);
    EXPECT_TRUE(found.allclose(torch::tensor(chances), 0, 0.05)) << found;
    for (size_t i = 0; i < chances.size(); ++i) {
      EXPECT_EQ(
          chances[i] == 0, found[static_cast<int64_t>(i)].item<float>() == 0);
    }
  };
  expect({0.5, 0.25, 0.15, 0.1});
  options.top_k = 2;
  expect({0.667, 0.333, 0, 0});
  options.top_k = 0;
  options.top_p = 0.8;
  expect({0.556, 0.278, 0.167, 0});
  options.top_p = 1;
  options.min_p = 0.4;
  expect({0.667, 0.333, 0, 0});
  options.min_p = 0;
  options.temperature = 0.5;
  expect({0.725, 0.181, 0.065, 0.029});
}

TEST(GenerateOptions, AreReadFromAFolder) {
  const auto folder =
      std::filesystem::temp_directory_path() / "tessera-generation-test";
  std::filesystem::create_directories(folder);
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder / name) << text;
  };
  write("config.json", R"({"eos_token_id": 2, "vocab_size": 9})");
  write(
      "generation_config.json",
      R"({"eos_token_id": [3, 4], "temperature": 0.7, "do_sample": true,
          "num_beams": 4, "early_stopping": "never"})");
  const GenerateOptions options = generate_options(folder);
  EXPECT_EQ(options.eos_token_id, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(options.pad_token_id, 3);
  EXPECT_EQ(options.temperature, 0.7);
  EXPECT_TRUE(options.do_sample);
  EXPECT_EQ(options.top_k, 50);
  EXPECT_EQ(options.num_beams, 4);
  EXPECT_EQ(options.early_stopping, EarlyStopping::kNever);
  write(
      "generation_config.json",
      R"({"do_sample": false, "temperature": 0.0, "top_k": -1, "max_length": 30,
          "min_length": 12, "bad_words_ids": [[5], [6, 7]],
          "suppress_tokens": [1], "begin_suppress_tokens": [8],
          "forced_bos_token_id": 4, "forced_eos_token_id": 2,
          "decoder_start_token_id": 9,
          "sequence_bias": [[[5, 6], -3.5]], "guidance_scale": 1.5,
          "typical_p": 1.0, "use_cache": true, "mistyped": 3})");
  testing::internal::CaptureStderr();
  GenerateOptions more = generate_options(folder);
  generate_options(folder); // logs it once
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(more.max_length, 30);
  EXPECT_EQ(more.after(10).max_new_tokens, 20);
  EXPECT_EQ(more.after(10).min_new_tokens, 2);
  EXPECT_EQ(more.bad_words_ids.at(1), (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(more.suppress_tokens, (std::vector<int64_t>{1}));
  EXPECT_EQ(more.begin_suppress_tokens, (std::vector<int64_t>{8}));
  EXPECT_EQ(more.forced_bos_token_id, 4);
  EXPECT_EQ(more.decoder_start_token_id, 9);
  EXPECT_EQ(more.forced_eos_token_id, (std::vector<int64_t>{2}));
  EXPECT_EQ(more.sequence_bias.at(0).second, -3.5);
  more.check();
  more.do_sample = true;
  expect_error([&] { more.check(); }, {"temperature is 0"});
  EXPECT_NE(log.find("guidance_scale=1.5"), std::string::npos) << log;
  EXPECT_NE(log.find("mistyped=3"), std::string::npos) << log;
  EXPECT_EQ(log.find("typical_p"), std::string::npos) << log;
  EXPECT_EQ(log.find("use_cache"), std::string::npos) << log;
  EXPECT_EQ(log.find("mistyped"), log.rfind("mistyped")) << log;
  write("generation_config.json", R"({"eos_token_id": "two"})");
  expect_error(
      [&] { generate_options(folder); },
      {"generation_config.json", "eos_token_id", "\"two\""});
  runtime::remove_tree(folder);
}

} // namespace tessera::zoo::generation_test
