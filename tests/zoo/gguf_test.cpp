// SPDX-License-Identifier: Apache-2.0
// GGUF files, read back by a parser of the test's own, against the checkpoint
// that they were made from. tests/fixture_makers/check_gguf.py does the same
// with the `gguf` package.

#include "support/expect_error.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/gguf/gguf_encode.h"
#include "tessera/zoo/gguf/gguf_export.h"
#include "tessera/zoo/gguf/gguf_names.h"
#include "tessera/zoo/gguf/gguf_tokenizer.h"
#include "zoo/divided_models.h"
#include "zoo/gguf_reader.h"

#include <fstream>
#include <set>

namespace tessera::zoo::gguf_test {
namespace {

class Gguf : public ::testing::TestWithParam<const char*> {};

/// What a GGUF file must have for a tensor of transformers.
torch::Tensor as_gguf(
    const std::string& architecture,
    const std::string& foreign,
    const torch::Tensor& tensor,
    const nlohmann::json& config) {
  if (architecture == "gpt2" && tensor.dim() == 2 &&
      foreign.find(".h.") != std::string::npos) {
    return tensor.t(); // Conv1D
  }
  const bool is_query = foreign.find("q_proj") != std::string::npos;
  if (architecture != "llama" ||
      (!is_query && foreign.find("k_proj") == std::string::npos)) {
    return tensor;
  }
  // Row by row: rotated together are i and i + n / 2 there, 2i and 2i + 1 here.
  const int64_t heads =
      config.at(is_query ? "num_attention_heads" : "num_key_value_heads")
          .get<int64_t>();
  const int64_t head = tensor.size(0) / heads;
  torch::Tensor result = torch::empty_like(tensor);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < head / 2; ++i) {
      result[h * head + 2 * i] = tensor[h * head + i];
      result[h * head + 2 * i + 1] = tensor[h * head + i + head / 2];
    }
  }
  return result;
}

/// Every tensor of the checkpoint is in the file, and no other.
void expect_tensors(
    const std::filesystem::path& folder,
    const GgufReader& file,
    size_t more = 0) {
  const nlohmann::json config = read_json(folder / "config.json");
  const auto architecture =
      file.metadata().at("general.architecture").get<std::string>();
  const auto weights =
      runtime::SafetensorsFile::open(folder / "model.safetensors");
  std::set<std::string> used;
  for (const runtime::SafetensorsEntry& entry : weights.entries()) {
    SCOPED_TRACE(entry.name);
    const auto [name, expert] = gguf_matrix(architecture, entry.name);
    ASSERT_TRUE(file.tensors().contains(name)) << name;
    used.insert(name);
    const torch::Tensor expected = as_gguf(
        architecture, entry.name, fixture_tensor(weights, entry.name), config);
    const auto part = [&](const torch::Tensor& full) {
      return expert ? full[*expert] : full;
    };
    const torch::Tensor found = part(file.read(name));
    ASSERT_EQ(found.sizes(), expected.sizes());
    switch (file.tensors().at(name).type) {
      case 0:
        EXPECT_TRUE(found.equal(expected));
        break;
      case 1:
        EXPECT_TRUE(found.equal(expected.to(torch::kHalf).to(torch::kFloat)));
        break;
      default: { // the scale itself is rounded to float16: 2^-11 of 127 steps
        const torch::Tensor steps = part(file.half_steps(name));
        EXPECT_TRUE(((found - expected).abs() <= steps * (1 + 2 * 127 / 2048.0))
                        .all()
                        .item<bool>());
      }
    }
  }
  EXPECT_EQ(file.tensors().size(), used.size() + more);
}

/// A model whose rows are whole blocks of Q8_0.
ChangedModel in_blocks(const std::string& name) {
  return name == "gpt2" ? ChangedModel(name, {{"n_embd", 96}})
                        : ChangedModel(
                              name,
                              {{"hidden_size", 64},
                               {"intermediate_size", 96},
                               {"ffn_hidden_size", 96},
                               {"moe_intermediate_size", 32},
                               {"shared_expert_intermediate_size", 64},
                               {"mlp_only_layers", nlohmann::json::array()},
                               {"use_sliding_window", false}});
}

} // namespace

TEST_P(Gguf, HoldsTheCheckpoint) {
  const ChangedModel made = in_blocks(GetParam());
  const auto model = from_pretrained(made.folder());
  const TemporaryFolder folder;
  const size_t more = std::string(GetParam()) == "llama3" ? 1 : 0;
  for (const GgufType type :
       {GgufType::kF32, GgufType::kF16, GgufType::kQ8_0}) {
    SCOPED_TRACE(name_of(type));
    const auto path = folder / "new" / name_of(type);
    export_gguf(*model, path, {.type = type});
    const GgufReader file(path);
    expect_tensors(made.folder(), file, more);
    const auto& embeddings = file.tensors().at("token_embd.weight");
    EXPECT_EQ(embeddings.type, static_cast<uint32_t>(type));
    EXPECT_EQ(file.tensors().at("output_norm.weight").type, 0U);
    EXPECT_EQ(
        file.metadata().at("general.file_type"),
        type == GgufType::kQ8_0 ? 7 : static_cast<int>(type));
    EXPECT_EQ(file.metadata().at("tokenizer.ggml.model"), "none");
  }
  // Of a model without memory, the same bytes.
  const auto lazy_model = from_pretrained(made.folder(), {.lazy = true});
  export_gguf(*lazy_model, folder / "lazy", {.type = GgufType::kQ8_0});
  EXPECT_EQ(
      runtime::read_text_file(folder / "lazy"),
      runtime::read_text_file(folder / "new/Q8_0"));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Gguf,
    ::testing::Values(
        "chatglm",
        "glm4",
        "gpt2",
        "llama",
        "llama3",
        "llama_yarn",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe"),
    [](const auto& one) { return std::string(one.param); });

TEST(GgufModel, SaysWhatLlamaCppNeeds) {
  const auto metadata = [](const char* name) {
    const TemporaryFolder folder;
    export_gguf(
        *from_pretrained(fixture("models") / name),
        folder / "x.gguf",
        {.name = "mine"});
    return GgufReader(folder / "x.gguf").metadata();
  };
  const nlohmann::json llama = metadata("llama_yarn");
  EXPECT_EQ(llama.at("general.name"), "mine");
  EXPECT_EQ(llama.at("llama.block_count"), 2);
  EXPECT_EQ(llama.at("llama.context_length"), 64);
  EXPECT_EQ(llama.at("llama.attention.head_count"), 4);
  EXPECT_EQ(llama.at("llama.attention.head_count_kv"), 2);
  EXPECT_EQ(llama.at("llama.attention.key_length"), 16);
  EXPECT_EQ(llama.at("llama.rope.dimension_count"), 16);
  EXPECT_FLOAT_EQ(
      llama.at("llama.attention.layer_norm_rms_epsilon").get<float>(), 1e-5F);
  EXPECT_EQ(llama.at("llama.rope.scaling.type"), "yarn");
  EXPECT_EQ(llama.at("llama.rope.scaling.factor"), 4);
  EXPECT_EQ(llama.at("llama.rope.scaling.original_context_length"), 16);
  const nlohmann::json gpt2 = metadata("gpt2");
  EXPECT_EQ(gpt2.at("gpt2.feed_forward_length"), 96);
  EXPECT_EQ(gpt2.at("gpt2.context_length"), 23);
  EXPECT_EQ(gpt2.at("gpt2.attention.head_count"), 3);
  EXPECT_EQ(metadata("qwen3").at("qwen3.attention.key_length"), 10);
}

// LLaMA 3 keeps high frequencies and divides low ones by its factor.
TEST(GgufModel, HasFrequencyFactorsOfLlama3) {
  const TemporaryFolder folder;
  export_gguf(
      *from_pretrained(fixture("models") / "llama3"), folder / "x.gguf");
  const torch::Tensor factors =
      GgufReader(folder / "x.gguf").read("rope_freqs.weight");
  ASSERT_EQ(factors.numel(), 3); // heads of 6
  EXPECT_NEAR(factors[2].item<double>(), 8, 1e-4);
  EXPECT_GE(factors.min().item<double>(), 1 - 1e-6);
}

TEST(GgufModel, IsExportedWithItsAdapter) {
  const auto base = fixture("models") / "llama";
  const auto model = from_pretrained(base);
  load_lora(*model, fixture("lora") / "llama");
  const TemporaryFolder folder;
  expect_error(
      [&] { export_gguf(*model, folder / "x"); }, {"adapters", "merge_lora()"});
  const GgufOptions options{.type = GgufType::kF32};
  export_gguf(*model, folder / "merging", options, merged_values(*model));
  merge_lora(*model);
  export_gguf(*model, folder / "merged", options);
  EXPECT_EQ(
      runtime::read_text_file(folder / "merging"),
      runtime::read_text_file(folder / "merged"));
}

TEST(GgufModel, RefusesWhatLlamaCppDoesNotCompute) {
  const TemporaryFolder folder;
  const auto refuses = [&](const char* name,
                           const nlohmann::json& changes,
                           const char* part) {
    nlohmann::json config = read_json(fixture("models") / name / "config.json");
    config.update(changes);
    const auto model = from_config(config);
    expect_error([&] { export_gguf(*model, folder / "x.gguf"); }, {part});
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  };
  const nlohmann::json none = nlohmann::json::object();
  refuses(
      "bert",
      none,
      "'bert' is not implemented; the supported ones are chatglm, glm");
  refuses("llama_classifier", none, "LlamaForSequenceClassification");
  refuses("qwen2", none, "use_sliding_window");
  refuses("llama_dynamic", none, "dynamic");
  refuses("qwen2_moe", none, "mlp_only_layers");
  refuses("qwen3_moe", {{"norm_topk_prob", false}}, "norm_topk_prob");
  refuses("glm_2021", none, "attention over a prefix");
  refuses("llama", {{"hidden_act", "gelu"}}, "hidden_act");
  refuses("qwen3", {{"attention_bias", true}}, "attention_bias");
  refuses(
      "gpt2",
      {{"scale_attn_by_inverse_layer_idx", true}},
      "scale_attn_by_inverse_layer_idx");
}

TEST(GgufEncode, RoundsToTheNearestStepOfABlock) {
  torch::manual_seed(2);
  torch::Tensor rows = torch::randn({3, 64}) * 5;
  rows[1].narrow(0, 32, 32).zero_();
  rows[2][0] = 100;
  const auto bytes = gguf_bytes(rows, GgufType::kQ8_0);
  ASSERT_EQ(bytes.size(), 6U * 34);
  for (int64_t block = 0; block < 6; ++block) {
    c10::Half scale;
    std::memcpy(&scale, bytes.data() + block * 34, 2);
    const torch::Tensor values = rows.view({6, 32})[block];
    const float largest = values.abs().max().item<float>();
    EXPECT_EQ(scale.x, c10::Half(largest / 127).x);
    for (int64_t i = 0; i < 32; ++i) {
      const auto step = static_cast<int8_t>(bytes[block * 34 + 2 + i]);
      const float exact =
          largest == 0 ? 0 : values[i].item<float>() / (largest / 127);
      EXPECT_NEAR(step, exact, 0.5 + 1e-4);
    }
  }
  expect_error(
      [&] {
        gguf_bytes(torch::ones({2, 33}), GgufType::kQ8_0);
      },
      {"32"});
  EXPECT_EQ(
      gguf_type_of({"blk.0.ffn_up.weight", {}, {4, 48}}, GgufType::kQ8_0),
      GgufType::kF16);
}

namespace {

void write_json(
    const std::filesystem::path& path,
    const nlohmann::json& content) {
  std::ofstream(path) << content;
}

nlohmann::json entries_of(const GgufMetadata& metadata) {
  nlohmann::json entries;
  for (const auto& [key, value] : metadata) {
    std::visit(
        [&, name = key](const auto& one) { entries[name] = one; }, value);
  }
  return entries;
}

} // namespace

TEST(GgufTokenizer, KeepsByteLevelBpe) {
  const TemporaryFolder folder;
  nlohmann::json tokenizer = {
      {"added_tokens",
       {{{"id", 4}, {"content", "<|end|>"}, {"special", true}},
        {{"id", 5}, {"content", "<x>"}, {"special", false}}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"abab", 3}}},
        {"merges", {"a b", {"ab", "ab"}}}}}};
  write_json(folder / "tokenizer.json", tokenizer);
  write_json(
      folder / "tokenizer_config.json",
      {{"eos_token", {{"content", "<|end|>"}}},
       {"add_bos_token", false},
       {"chat_template", "{{ x }}"}});
  const nlohmann::json entries =
      entries_of(gguf_tokenizer(folder.path(), {{"bos_token_id", {2, 3}}}, 8));
  EXPECT_EQ(entries.at("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(entries.at("tokenizer.ggml.pre"), "gpt-2");
  EXPECT_EQ(
      entries.at("tokenizer.ggml.tokens"),
      nlohmann::json(
          {"a", "b", "ab", "abab", "<|end|>", "<x>", "[PAD6]", "[PAD7]"}));
  EXPECT_EQ(
      entries.at("tokenizer.ggml.token_type"),
      nlohmann::json({1, 1, 1, 1, 3, 4, 5, 5}));
  EXPECT_EQ(
      entries.at("tokenizer.ggml.merges"), nlohmann::json({"a b", "ab ab"}));
  EXPECT_EQ(entries.at("tokenizer.ggml.eos_token_id"), 4);
  EXPECT_EQ(entries.at("tokenizer.ggml.bos_token_id"), 2);
  EXPECT_EQ(entries.at("tokenizer.ggml.add_bos_token"), false);
  EXPECT_EQ(entries.at("tokenizer.chat_template"), "{{ x }}");
  expect_error(
      [&] { gguf_tokenizer(folder.path(), nlohmann::json::object(), 5); },
      {"'<x>'", "id 5", "0 to 4"});
  tokenizer["pre_tokenizer"] = {{"type", 7}};
  write_json(folder / "tokenizer.json", tokenizer);
  expect_error(
      [&] { gguf_tokenizer(folder.path(), nlohmann::json::object(), 8); },
      {"tokenizer.json", "is not a tokenizer"});
  tokenizer["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "\\w+"}}}},
        {{"type", "ByteLevel"}, {"use_regex", false}}}}};
  write_json(folder / "tokenizer.json", tokenizer);
  expect_error(
      [&] { gguf_tokenizer(folder.path(), nlohmann::json::object(), 8); },
      {"'\\w+'", "without the tokenizer"});
}

TEST(GgufTokenizer, KeepsBpeWithByteFallback) {
  const TemporaryFolder folder;
  write_json(
      folder / "tokenizer.json",
      {{"added_tokens",
        {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
         {{"id", 1}, {"content", "<s>"}, {"special", true}}}},
       {"model",
        {{"type", "BPE"},
         {"unk_token", "<unk>"},
         {"byte_fallback", true},
         {"vocab",
          {{"<unk>", 0},
           {"<s>", 1},
           {"<0x0A>", 2},
           {"a", 3},
           {"b", 4},
           {"ab", 5},
           {"ba", 6}}},
         {"merges", {"b a", "a b"}}}}});
  const nlohmann::json entries =
      entries_of(gguf_tokenizer(folder.path(), {{"bos_token_id", 1}}, 7));
  EXPECT_EQ(entries.at("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(
      entries.at("tokenizer.ggml.token_type"),
      nlohmann::json({2, 3, 6, 1, 1, 1, 1}));
  // The first merge has the highest score; what no merge makes, the lowest.
  EXPECT_EQ(
      entries.at("tokenizer.ggml.scores"),
      nlohmann::json({0.F, 0.F, 0.F, -2.F, -2.F, -1.F, 0.F}));
  EXPECT_EQ(entries.at("tokenizer.ggml.bos_token_id"), 1);
  // llama.cpp's defaults are true for this kind.
  EXPECT_EQ(entries.at("tokenizer.ggml.add_space_prefix"), false);
  EXPECT_EQ(entries.at("tokenizer.ggml.add_bos_token"), false);
  write_json(folder / "tokenizer.json", {{"model", {{"type", "WordPiece"}}}});
  expect_error(
      [&] { gguf_tokenizer(folder.path(), nlohmann::json::object(), 7); },
      {"WordPiece", "only BPE"});
}

TEST(GgufTokenizer, SaysWhatIsPutAroundATextAndBeforeIt) {
  const TemporaryFolder folder;
  const auto entries = [&](const nlohmann::json& changes) {
    nlohmann::json tokenizer{
        {"added_tokens",
         {{{"id", 0}, {"content", "<s>"}, {"special", true}},
          {{"id", 1}, {"content", "</s>"}, {"special", true}}}},
        {"post_processor",
         {{"type", "TemplateProcessing"},
          {"single",
           {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
            {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}}},
        {"model",
         {{"type", "BPE"},
          {"byte_fallback", true},
          {"vocab", {{"<s>", 0}, {"</s>", 1}, {"a", 2}}},
          {"merges", nlohmann::json::array()}}}};
    tokenizer.update(changes);
    write_json(folder / "tokenizer.json", tokenizer);
    return nlohmann::json(entries_of(gguf_tokenizer(
        folder.path(), {{"bos_token_id", 0}, {"eos_token_id", 1}}, 3)));
  };
  const std::string space = "tokenizer.ggml.add_space_prefix";
  const nlohmann::json replace{
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "_"}};
  auto found = entries({{"normalizer", replace}});
  EXPECT_EQ(found.at(space), false);
  EXPECT_EQ(found.at("tokenizer.ggml.add_bos_token"), true);
  EXPECT_EQ(found.at("tokenizer.ggml.add_eos_token"), false);
  found = entries(
      {{"normalizer",
        {{"type", "Sequence"},
         {"normalizers",
          {{{"type", "Prepend"}, {"prepend", "_"}}, replace}}}}});
  EXPECT_EQ(found.at(space), true);
  for (const auto& [scheme, adds] :
       {std::pair("always", true), std::pair("never", false)}) {
    EXPECT_EQ(
        entries({{"pre_tokenizer",
                  {{"type", "Metaspace"}, {"prepend_scheme", scheme}}}})
            .at(space),
        adds);
  }
  // The tokenizer's configuration comes first.
  write_json(folder / "tokenizer_config.json", {{"add_bos_token", false}});
  EXPECT_EQ(
      entries(nlohmann::json::object()).at("tokenizer.ggml.add_bos_token"),
      false);
  testing::internal::CaptureStderr();
  entries({{"normalizer", {{"type", "NFKC"}}}});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("normalized by NFKC"), std::string::npos) << log;
}

TEST(GgufTokenizer, KeepsAllChatTemplates) {
  const TemporaryFolder folder;
  write_json(
      folder / "tokenizer.json",
      {{"model",
        {{"type", "BPE"},
         {"byte_fallback", true},
         {"vocab", {{"a", 0}}},
         {"merges", nlohmann::json::array()}}}});
  write_json(
      folder / "tokenizer_config.json",
      {{"chat_template",
        {{{"name", "default"}, {"template", "D"}},
         {{"name", "tool_use"}, {"template", "T"}}}}});
  const nlohmann::json entries =
      entries_of(gguf_tokenizer(folder.path(), nlohmann::json::object(), 1));
  EXPECT_EQ(entries.at("tokenizer.chat_template"), "D");
  EXPECT_EQ(entries.at("tokenizer.chat_template.tool_use"), "T");
  EXPECT_EQ(
      entries.at("tokenizer.chat_templates"), nlohmann::json({"tool_use"}));
}

TEST(GgufWriter, LeavesNothingUntilItIsWhole) {
  const TemporaryFolder folder;
  const std::vector<GgufTensor> tensors{
      {"a", GgufType::kF32, {3}}, {"b", GgufType::kF32, {2}}};
  const std::vector<float> values{1, 2, 3};
  const auto bytes = std::as_bytes(std::span(values));
  {
    GgufWriter writer(folder / "x.gguf", {}, tensors);
    writer.write("a", bytes);
    expect_error(
        [&] { writer.write("a", bytes); }, {"'a'", "already been written"});
    expect_error([&] { writer.write("b", bytes); }, {"12 bytes", "says 8"});
    expect_error([&] { writer.commit(); }, {"'b'", "not been written"});
    EXPECT_FALSE(std::filesystem::exists(folder / "x.gguf"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

} // namespace tessera::zoo::gguf_test
