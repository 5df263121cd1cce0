// SPDX-License-Identifier: Apache-2.0
// Token files: what is none, and tokens outside of a vocabulary.
#include "tessera/zoo/data/token_file.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::zoo::token_file_test {

namespace {

template <typename Token>
void write(
    const std::filesystem::path& path,
    const std::vector<Token>& tokens) {
  std::ofstream(path, std::ios::binary)
      .write(
          reinterpret_cast<const char*>(tokens.data()),
          static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
}

} // namespace

TEST(TokenFile, RefusesOtherFormatsWithAConversion) {
  const TemporaryFolder folder;
  const auto path = folder / "train.bin";
  const auto refused = [&](const std::string& content,
                           std::initializer_list<const char*> parts) {
    std::ofstream(path, std::ios::binary) << content;
    const auto open = [&] { TokenFile(path, TokenType::kUint16); };
    expect_error(open, {"train.bin", "not a token file", "uint16"});
    expect_error(open, parts);
  };
  const std::string zeros(120, '\0');
  std::string text;
  while (text.size() < 70000) { // a character is cut where the sample ends
    text += "Grüße, 世界 and a line of text.\n";
  }
  std::ofstream(path) << text;
  expect_error(
      [&] { TokenFile(path, TokenType::kUint16); },
      {"train.bin' is text, not a token file",
       "tessera tokenize --model FOLDER --input",
       "data.train="});
  // Too short to be known by its content.
  std::ofstream(folder / "short.jsonl") << "{}";
  expect_error(
      [&] { TokenFile(folder / "short.jsonl", TokenType::kUint16); },
      {"short.jsonl' is text", "tessera tokenize"});
  refused("\x93NUMPY" + zeros, {"a NumPy array", "numpy.load", "tofile"});
  refused("\x1f\x8b" + zeros, {"gzip", "gunzip --keep"});
  refused(
      std::string("\x88\xdc\x34\x01\x01\0\0\0", 8) + zeros,
      {"llm.c", "tail -c +1025"});
  refused(
      std::string("\x40\0\0\0\0\0\0\0{\"a\"", 12) + zeros,
      {"a safetensors file", "load_file"});
}

TEST(TokenFile, TakesTokensThatPartlyLookLikeText) {
  const TemporaryFolder folder;
  const auto path = folder / "tokens.bin";
  std::vector<uint16_t> tokens(1000, 0x4141);
  tokens[900] = 7;
  write(path, tokens);
  EXPECT_EQ(TokenFile(path, TokenType::kUint16).size(), 1000);
}

TEST(TokenFile, FindsTheFirstTokenOutsideAVocabulary) {
  const TemporaryFolder folder;
  const auto path = folder / "tokens.bin";
  constexpr int64_t kSize = 200'000;
  // At the borders of the blocks that are searched, and as the last one.
  for (const int64_t position : {0L, 65535L, 65536L, 131072L, kSize - 1}) {
    std::vector<uint16_t> tokens(kSize, 40000);
    tokens[static_cast<size_t>(position)] = 50257;
    write(path, tokens);
    const TokenFile file(path, TokenType::kUint16);
    EXPECT_EQ(file.first_outside(0, kSize, 50257), position);
    EXPECT_EQ(file.first_outside(0, kSize, 50258), std::nullopt);
    EXPECT_EQ(file.first_outside(0, position, 50257), std::nullopt);
    expect_error(
        [&] { file.fail_outside(position, 50257); },
        {path.c_str(),
         ("token " + std::to_string(position)).c_str(),
         "is 50257",
         "has 50257 tokens",
         "data.token_type"});
  }
  std::vector<int32_t> tokens(100, 5);
  tokens[70] = -3;
  write(path, tokens);
  const TokenFile file(path, TokenType::kInt32);
  EXPECT_EQ(file.first_outside(0, 100, 6), 70);
  EXPECT_EQ(file.first_outside(71, 29, 6), std::nullopt);
  EXPECT_EQ(file.first_outside(0, 100, 5), 0);
}

} // namespace tessera::zoo::token_file_test
