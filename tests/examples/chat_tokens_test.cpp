// SPDX-License-Identifier: Apache-2.0
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tools/run_program.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>

namespace tessera::chat_tokens_test {
namespace {

/// A tokenizer with a chat template.
class ModelFolder {
 public:
  ModelFolder() {
    std::filesystem::copy_file(
        fixture("tokenizers/qwen2.json"), folder_.path() / "tokenizer.json");
    runtime::write_file_atomically(
        folder_.path() / "tokenizer_config.json",
        R"({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template":)"
        R"( "{% for m in messages %}{{ m.role }}: {{ m.content }};)"
        R"({% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"})");
  }
  std::string path() const {
    return folder_.path().string();
  }

 private:
  TemporaryFolder folder_;
};

TEST(ChatTokens, PrintsThePromptAndItsTokens) {
  const ModelFolder folder;
  const auto run = tests::run_program(
      {tests::program("chat_tokens"), folder.path(), "What is a tensor?"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  const std::string prompt = "user: What is a tensor?;assistant:";
  std::ostringstream expected;
  expected << prompt << "\n";
  const auto tokenizer = text::Tokenizer::from_folder(folder.path());
  for (const int64_t id : tokenizer.ids(prompt)) {
    expected << id << " ";
  }
  expected << "\n";
  EXPECT_EQ(run.output, expected.str());
}

TEST(ChatTokens, NamesWhatIsMissing) {
  const auto run =
      tests::run_program({tests::program("chat_tokens"), "/nowhere", "a"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.output.find("/nowhere"), std::string::npos) << run.output;
}

} // namespace
} // namespace tessera::chat_tokens_test
