// SPDX-License-Identifier: Apache-2.0
// Documents of tokens in the formats of Megatron-LM, nanoGPT and llm.c, and
// files of them that are damaged.
#include "tessera/zoo/data/token_documents.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/data/megatron_index.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::zoo::token_documents_test {

namespace {

namespace fs = std::filesystem;
using Documents = std::vector<std::vector<int64_t>>;

fs::path fixture(const std::string& name) {
  return fs::path(tests::source_dir()) / "tests/zoo/fixtures/token_documents" /
         name;
}

Documents expected() {
  return nlohmann::json::parse(
             runtime::read_text_file(fixture("documents.json")))
      .get<Documents>();
}

Documents documents_of(const TokenDocuments& data) {
  Documents documents;
  for (int64_t i = 0; i < data.size(); ++i) {
    const at::Tensor tokens = data.read(i);
    const auto* begin = tokens.const_data_ptr<int64_t>();
    documents.emplace_back(begin, begin + tokens.numel());
  }
  return documents;
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

template <typename Value>
std::string with(std::string bytes, size_t at, Value value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

} // namespace

TEST(TokenDocuments, ReadsWhatMegatronWrites) {
  for (const char* name :
       {"uint8", "int8", "int16", "int32", "int64", "uint16", "pairs"}) {
    for (const char* suffix : {"", ".bin", ".idx"}) {
      const TokenDocuments data(fixture(std::string(name) + suffix));
      EXPECT_EQ(documents_of(data), expected()) << name << suffix;
      EXPECT_EQ(data.format(), TokenFormat::kMegatron);
      EXPECT_TRUE(data.knows_documents());
    }
  }
}

TEST(TokenDocuments, WritesTheIndexThatMegatronWrites) {
  const TemporaryFolder folder;
  std::vector<int32_t> lengths;
  for (const auto& document : expected()) {
    lengths.push_back(static_cast<int32_t>(document.size()));
  }
  for (const auto type :
       {TokenType::kUint8,
        TokenType::kInt8,
        TokenType::kInt16,
        TokenType::kUint16,
        TokenType::kInt32,
        TokenType::kInt64}) {
    const fs::path path = folder / "written.idx";
    write_megatron_index(path, type, lengths);
    EXPECT_EQ(
        runtime::read_text_file(path),
        runtime::read_text_file(fixture(name_of(type) + std::string(".idx"))))
        << name_of(type);
  }
  expect_error(
      [&] {
        write_megatron_index(folder / "x.idx", TokenType::kUint32, lengths);
      },
      {"uint32"});
}

TEST(TokenDocuments, EndAtATokenWithoutAnIndex) {
  Documents documents = expected();
  Documents joined(1);
  for (auto& document : documents) {
    document.push_back(50256);
    joined[0].insert(joined[0].end(), document.begin(), document.end());
  }
  EXPECT_EQ(
      documents_of(TokenDocuments(fixture("plain.bin"), {.end_token = 50256})),
      documents);
  const TokenDocuments full(fixture("plain.bin"));
  EXPECT_EQ(documents_of(full), joined);
  EXPECT_FALSE(full.knows_documents());
  EXPECT_EQ(full.format(), TokenFormat::kPlain);
  // The last one need not be ended.
  const TemporaryFolder folder;
  std::string bytes = runtime::read_text_file(fixture("plain.bin"));
  bytes.resize(bytes.size() - 2);
  write_bytes(folder / "open.bin", bytes);
  documents.back().pop_back();
  EXPECT_EQ(
      documents_of(TokenDocuments(folder / "open.bin", {.end_token = 50256})),
      documents);
}

TEST(TokenDocuments, ReadsWhatLlmCWrites) {
  for (const auto& [name, begin] :
       {std::pair{"gpt2.bin", 50256}, {"llama3.bin", 128000}}) {
    Documents documents = expected();
    for (auto& document : documents) {
      document.insert(document.begin(), begin);
    }
    const TokenDocuments data(fixture(name));
    EXPECT_EQ(documents_of(data), documents);
    EXPECT_EQ(data.format(), TokenFormat::kLlmC);
  }
  const TokenDocuments other(fixture("gpt2.bin"), {.end_token = 9});
  EXPECT_EQ(other.size(), 3);
  const std::string good = runtime::read_text_file(fixture("gpt2.bin"));
  const TemporaryFolder folder;
  const fs::path path = folder / "x.bin";
  const auto refused = [&](const std::string& bytes,
                           std::initializer_list<const char*> parts) {
    write_bytes(path, bytes);
    expect_error([&] { TokenDocuments{path}; }, parts);
    expect_error([&] { TokenDocuments{path}; }, {path.c_str()});
  };
  refused(good.substr(0, good.size() - 1), {"truncated"});
  refused(good + "x", {"too long"});
  refused(with(good, 4, int32_t{2}), {"version 2", "known is version 1"});
  refused(with(good, 8, int32_t{-1}), {"third number", "-1"});
}

TEST(TokenDocuments, ReadPartsOfDocuments) {
  const TokenDocuments data(fixture("uint16"));
  std::vector<int64_t> tokens(3);
  data.read_into(2, 2, tokens);
  EXPECT_EQ(tokens, (std::vector<int64_t>{3, 4, 100}));
  for (const auto& [document, begin] :
       {std::pair<int64_t, int64_t>{2, 4}, {2, -1}, {-1, 0}, {5, 0}}) {
    expect_error(
        [&] { data.read_into(document, begin, tokens); },
        {"uint16.bin", "3 tokens", "5 documents"});
  }
  expect_error([&] { data.read(5); }, {"document 5", "5 documents"});
}

TEST(TokenDocuments, NameWhatIsWrongInAnIndex) {
  const TemporaryFolder folder;
  const fs::path idx = folder / "x.idx";
  const std::string good = runtime::read_text_file(fixture("pairs.idx"));
  fs::copy_file(fixture("pairs.bin"), folder / "x.bin");
  const auto refused = [&](const std::string& bytes,
                           std::initializer_list<const char*> parts) {
    write_bytes(idx, bytes);
    expect_error([&] { TokenDocuments{folder / "x"}; }, parts);
    expect_error([&] { TokenDocuments{folder / "x"}; }, {idx.c_str()});
  };
  write_bytes(idx, good);
  EXPECT_EQ(documents_of(TokenDocuments(folder / "x")), expected());
  refused(good.substr(0, 20), {"20 bytes", "header"});
  refused(good.substr(0, good.size() - 8), {"9 sequences", "5 documents"});
  refused(good + std::string(9, '\0'), {"multimodal"});
  refused(with(good, 0, 'X'), {"MMIDIDX"});
  refused(with(good, 9, uint64_t{2}), {"version", "byte 9", "is 2"});
  refused(with(good, 17, uint8_t{7}), {"byte 17", "floating point"});
  refused(with(good, 17, uint8_t{0}), {"byte 17", "is 0"});
  refused(with(good, 18, UINT64_MAX), {"bytes 18"});
  refused(with(good, 26, uint64_t{1} << 61), {"bytes 18 and 26"});
  refused(with(good, 34, int32_t{-1}), {"sequence 0 has -1 tokens"});
  refused(with(good, 38, int32_t{100}), {"sequence 2", "begins at byte"});
  const size_t documents = 34 + 12 * 9;
  refused(with(good, documents, int64_t{1}), {"document 0", "sequence 1"});
  refused(with(good, documents + 8, int64_t{10}), {"document 1", "0 .. 9"});
  refused(with(good, documents + 16, int64_t{1}), {"document 2", "2 .. 9"});
  refused(
      with(good, documents + 40, int64_t{8}), {"sequence 8", "there are 9"});
  write_bytes(idx, good);
  for (const char* text : {"", "abc"}) {
    write_bytes(folder / "x.bin", text);
    expect_error([&] { TokenDocuments{folder / "x"}; }, {"x.bin", "truncated"});
  }
  fs::remove(folder / "x.bin");
  expect_error([&] { TokenDocuments{folder / "x"}; }, {"x.bin", "cannot read"});
}

TEST(TokenDocuments, AreHeldOutInTheShareThatIsAsked) {
  constexpr int64_t kDocuments = 100'000;
  for (const double share : {0.0, 0.01, 0.5, 1.0}) {
    int64_t held_out = 0;
    for (int64_t i = 0; i < kDocuments; ++i) {
      held_out += is_held_out(i, share) ? 1 : 0;
      // A larger part contains a smaller one.
      EXPECT_TRUE(!is_held_out(i, share / 2) || is_held_out(i, share));
    }
    // Five standard deviations of a binomial distribution.
    EXPECT_NEAR(
        static_cast<double>(held_out),
        share * kDocuments,
        5 * std::sqrt(share * (1 - share) * kDocuments));
  }
}

} // namespace tessera::zoo::token_documents_test
