// SPDX-License-Identifier: Apache-2.0
// Checkpoints of Megatron-LM: those that Megatron-Core's own model made, whose
// logits it computed, and those of versions before it.
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/zoo/formats/megatron_weights.h"

#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/sharding/tensors/tensor_io.h"
#include "tessera/zoo/inputs/tensor_files.h"
#include "tessera/zoo/models/pretrained.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>

namespace tessera::zoo::megatron_test {

namespace {

namespace fs = std::filesystem;

fs::path fixture(const std::string& name) {
  return fs::path(tests::source_dir()) / "tests/zoo/fixtures/megatron" / name;
}

} // namespace

TEST(Megatron, HasTheLogitsOfMegatronCore) {
  for (const std::string name : {"core_llama", "core_gpt"}) {
    SCOPED_TRACE(name);
    const auto reference = read_named_tensors(fixture(name + ".safetensors"));
    const auto model = from_pretrained(fixture(name));
    ModelInput input;
    input.input_ids = reference.at("input_ids");
    const at::Tensor logits = model->forward(input).logits;
    const at::Tensor& expected = reference.at("logits");
    ASSERT_EQ(logits.sizes(), expected.sizes());
    // Float32 sums of at most 24 products; a head in another place changes
    // them by more than 0.1.
    EXPECT_TRUE(torch::allclose(logits, expected, 1e-4, 1e-5))
        << (logits - expected).abs().max().item<double>();
  }
}

TEST(Megatron, ReadsAllVersions) {
  for (const std::string name : {"old_v0", "old_v1", "old_parts"}) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    save_pretrained(*from_pretrained(fixture(name)), folder / "hf");
    const auto expected = read_named_tensors(fixture(name + ".safetensors"));
    const auto got = read_named_tensors(folder / "hf/model.safetensors");
    EXPECT_EQ(got.size(), expected.size());
    for (const auto& [tensor, value] : expected) {
      ASSERT_EQ(got.count(tensor), 1u) << tensor;
      EXPECT_TRUE(got.at(tensor).equal(value)) << tensor;
    }
  }
}

TEST(Megatron, TakesTheConfigurationFromTheRun) {
  const auto llama = megatron_config(MegatronCheckpoint(fixture("core_llama")));
  EXPECT_EQ(llama.at("model_type"), "llama");
  EXPECT_EQ(llama.at("num_key_value_heads"), 2);
  EXPECT_EQ(llama.at("vocab_size"), 30); // of 32 rows
  EXPECT_EQ(llama.at("tie_word_embeddings"), false);
  const auto gpt = megatron_config(MegatronCheckpoint(fixture("old_v0")));
  EXPECT_EQ(gpt.at("model_type"), "gpt2");
  EXPECT_EQ(gpt.at("activation_function"), "gelu_fast");
  EXPECT_EQ(gpt.at("n_inner"), 24);
}

TEST(Megatron, NamesWhatIsMissingOrDoesNotFit) {
  const TemporaryFolder folder;
  const fs::path copy = folder / "copy";
  fs::copy(fixture("core_llama"), copy, fs::copy_options::recursive);
  auto config = megatron_config(MegatronCheckpoint(copy));
  config["num_attention_heads"] = 8;
  expect_error(
      [&] { megatron_weights(MegatronCheckpoint(copy), config); },
      {"num_attention_heads = 4", "says 8"});
  runtime::remove_tree(copy / "iter_0000007/mp_rank_01_001");
  expect_error(
      [&] { from_pretrained(copy); },
      {"files of 3 ranks", "2 tensor-parallel ranks in each of 2"});
  runtime::remove_tree(copy / "iter_0000007/mp_rank_01_000");
  expect_error(
      [&] { from_pretrained(copy); },
      {"tensor_model_parallel_size = 2", "files of 1 ranks"});
}

} // namespace tessera::zoo::megatron_test
