// SPDX-License-Identifier: Apache-2.0
// `tessera convert` as a user runs it.
#include "support/launched_job.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/safetensors.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::convert_test {

namespace {

using tests::LaunchedJob;

std::filesystem::path fixtures() {
  return std::filesystem::path(tests::source_dir()) / "tests/zoo/fixtures";
}

LaunchedJob::Result convert(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {tests::program("tessera"), "convert"});
  LaunchedJob job([&arguments] {
    std::vector<char*> argv;
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    ::execv(argv.front(), argv.data());
    return 127;
  });
  return job.wait();
}

std::string model(const char* name) {
  return (fixtures() / "models" / name).string();
}

} // namespace

TEST(Convert, WritesFolders) {
  const TemporaryFolder folder;
  const auto same = folder / "same";
  auto result = convert({"--from", model("gpt2"), "--to", same.string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* file : {"config.json", "model.safetensors"}) {
    EXPECT_EQ(
        runtime::read_text_file(same / file),
        runtime::read_text_file(fixtures() / "models/gpt2" / file))
        << file;
  }
  const auto half = folder / "half";
  result = convert(
      {"--from", model("gpt2"), "--to", half.string(), "--dtype", "bfloat16"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto file = runtime::SafetensorsFile::open(half / "model.safetensors");
  for (const runtime::SafetensorsEntry& entry : file.entries()) {
    EXPECT_EQ(entry.dtype, runtime::SafetensorsDtype::kBF16);
  }
  // It keeps the type that it has.
  const auto again = folder / "again";
  result = convert({"--from", half.string(), "--to", again.string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  // A model is not overwritten.
  result = convert({"--from", model("bert"), "--to", again.string()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.output.find("which contains a model"), std::string::npos)
      << result.output;
  EXPECT_TRUE(
      runtime::read_text_file(half / "model.safetensors") ==
      runtime::read_text_file(again / "model.safetensors"));
}

TEST(Convert, ReadsWeightsOfTorchSave) {
  const TemporaryFolder folder;
  const std::string weights = (fixtures() / "gpt2_bin").string();
  const auto to = folder / "converted";
  auto result = convert(
      {"--from", model("gpt2"), "--weights", weights, "--to", to.string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(
      runtime::read_text_file(to / "model.safetensors") ==
      runtime::read_text_file(fixtures() / "models/gpt2/model.safetensors"));
  // With a config.json beside them, they are a model's folder.
  const auto old = folder / "old";
  std::filesystem::copy(weights, old);
  std::filesystem::copy(fixtures() / "models/gpt2/config.json", old);
  const auto again = folder / "again";
  result = convert({"--from", old.string(), "--to", again.string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(
      runtime::read_text_file(again / "model.safetensors") ==
      runtime::read_text_file(to / "model.safetensors"));
  // The weights are those that are given, not others.
  result = convert(
      {"--from",
       model("gpt2"),
       "--weights",
       (fixtures() / "models/bert/model.safetensors").string(),
       "--to",
       (folder / "wrong").string()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.output.find("do not match the model"), std::string::npos)
      << result.output;
}

TEST(Convert, MergesAdapters) {
  const TemporaryFolder folder;
  const auto to = folder / "merged";
  const auto result = convert(
      {"--from",
       model("gpt2"),
       "--to",
       to.string(),
       "--merge-lora",
       (fixtures() / "lora/gpt2").string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto file = runtime::SafetensorsFile::open(to / "model.safetensors");
  const auto expected = runtime::SafetensorsFile::open(
      fixtures() / "lora/gpt2/expected.safetensors");
  for (const std::string name :
       {"transformer.h.0.attn.c_attn.weight",
        "transformer.h.1.mlp.c_proj.weight"}) {
    const auto& native = file.at(name);
    const auto& foreign = expected.at("merged." + name);
    ASSERT_EQ(native.shape, foreign.shape);
    for (size_t i = 0; i < native.data.size(); i += sizeof(float)) {
      float a = 0;
      float b = 0;
      std::memcpy(&a, native.data.data() + i, sizeof(a));
      std::memcpy(&b, foreign.data.data() + i, sizeof(b));
      ASSERT_NEAR(a, b, 1e-5) << name; // sums of three products, below 2
    }
  }
}

TEST(Convert, WritesGguf) {
  const TemporaryFolder folder;
  for (const char* type : {"f32", "f16", "q8_0"}) {
    const auto path = folder / "new" / type;
    const auto result = convert(
        {"--from",
         model("llama"),
         "--to",
         path.string(),
         "--format",
         "gguf",
         "--gguf-type",
         type,
         "--merge-lora",
         (fixtures() / "lora/llama").string()});
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(runtime::read_text_file(path).substr(0, 4), "GGUF");
  }
  EXPECT_LT(
      std::filesystem::file_size(folder / "new/f16"),
      std::filesystem::file_size(folder / "new/f32"));
}

TEST(Convert, TakesABareNameAndTheFormatOfIt) {
  const TemporaryFolder folder;
  const auto in_folder = [&](const std::string& to) {
    return tests::run_program(
        {tests::program("tessera"),
         "convert",
         "--from",
         model("llama"),
         "--to",
         to},
        folder.path());
  };
  const auto named = in_folder("converted");
  EXPECT_EQ(named.exit_code, 0) << named.output;
  EXPECT_TRUE(std::filesystem::exists(folder / "converted/config.json"));
  const auto gguf = in_folder("x.gguf");
  EXPECT_EQ(gguf.exit_code, 0) << gguf.output;
  EXPECT_TRUE(std::filesystem::is_regular_file(folder / "x.gguf"));
}

TEST(Convert, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const auto fails = [&](const std::vector<std::string>& arguments,
                         int code,
                         const std::string& expected) {
    const auto result = convert(arguments);
    EXPECT_EQ(result.exit_code, code) << result.output;
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << result.output;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  };
  const std::string to = (folder / "out").string();
  const std::string from = model("llama");
  fails({"--from", from}, 2, "--to");
  fails({"--from", from, "--to", to, "--dtype", "int4"}, 2, "int4");
  fails({"--from", from, "--to", to, "--format", "onnx"}, 2, "onnx");
  fails(
      {"--from", "/nowhere", "--to", to},
      1,
      "'/nowhere', which is not a folder");
  fails(
      {"--from", from, "--to", to, "--format", "gguf", "--gguf-type", "q9"},
      2,
      "--gguf-type: 'q9' is not one of f16, f32, q8_0");
  fails({"--from", from, "--to", from}, 1, "the same folder as --from");
  fails(
      {"--from", from, "--to", from + "/config.json", "--format", "gguf"},
      1,
      "a file in the folder --from");
  fails(
      {"--from", from, "--to", to, "--gguf-type", "f16"},
      1,
      "is only for --format gguf");
  fails(
      {"--from", from, "--to", to, "--format", "gguf", "--dtype", "float16"},
      1,
      "--gguf-type");
  fails(
      {"--from", from, "--to", folder.path().string(), "--format", "gguf"},
      1,
      "a single file");
  fails(
      {"--from", model("bert"), "--to", to, "--format", "gguf"},
      1,
      "model_type 'bert'");
  fails(
      {"--from", from, "--to", to, "--merge-lora", model("gpt2")},
      1,
      "adapter_config.json");
}

} // namespace tessera::convert_test
