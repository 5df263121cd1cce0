// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/token_documents.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/random/mixed_bits.h"
#include "tessera/zoo/data/megatron_index.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kLlmCHeaderBytes = 1024;

/// One version of the files of llm.c (dev/data/data_common.py).
struct LlmCVersion {
  int32_t magic;
  int32_t version;
  TokenType type;
  int64_t begin_token; ///< before each document
};
constexpr std::array kLlmCVersions = {
    LlmCVersion{20240520, 1, TokenType::kUint16, 50256},
    LlmCVersion{20240801, 7, TokenType::kUint32, 128000},
};

/// The version of llm.c whose file this is; null: it is another file.
/// @throws tessera::Error on a version that is not known.
const LlmCVersion* llm_c_version(const fs::path& path, int64_t& tokens) {
  std::array<int32_t, 3> header{};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(header.data()), sizeof(header));
  if (!file.good()) {
    return nullptr;
  }
  for (const LlmCVersion& one : kLlmCVersions) {
    if (one.magic != header[0]) {
      continue;
    }
    // Otherwise the magic number is a pair of tokens.
    const bool is_header = header[1] >= 0 && header[1] < 100;
    TESSERA_CHECK(
        !is_header || header[1] == one.version,
        "'{}' is a token file of llm.c with the magic number {} and version {}; known is version {}: make it again with a current llm.c, or with `tessera tokenize`",
        path.string(),
        header[0],
        header[1],
        one.version);
    tokens = header[2];
    return is_header ? &one : nullptr;
  }
  return nullptr;
}

/// The .idx file of a data set of Megatron; empty if it is none.
fs::path megatron_index_of(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".idx") {
    return path;
  }
  if (extension == ".bin") {
    fs::path index = path;
    index.replace_extension(".idx");
    return is_megatron_index(index) ? index : fs::path();
  }
  const fs::path index = path.string() + ".idx";
  return !fs::exists(path) && fs::exists(index) ? index : fs::path();
}

/// @param begins_document whether the token is a document's first instead of
///     its last one.
std::vector<int64_t> document_begins(
    const TokenFile& file,
    int64_t token,
    bool begins_document) {
  std::vector<int64_t> begins{0};
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int64_t> tokens;
  for (int64_t first = 0; first < file.size(); first += kBlock) {
    tokens.resize(static_cast<size_t>(std::min(kBlock, file.size() - first)));
    file.read_into(first, tokens);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t begin =
          first + static_cast<int64_t>(i) + (begins_document ? 0 : 1);
      if (tokens[i] == token && begin != begins.back()) {
        begins.push_back(begin);
      }
    }
  }
  if (begins.back() != file.size()) {
    begins.push_back(file.size());
  }
  return begins;
}

} // namespace

struct TokenDocuments::Opened {
  TokenFile file;
  TokenFormat format;
  bool knows_documents;
  std::vector<int64_t> begins;
};

TokenDocuments::Opened TokenDocuments::opened(
    const fs::path& path,
    const TokenFileOptions& options) {
  if (const fs::path index = megatron_index_of(path); !index.empty()) {
    MegatronIndex read = read_megatron_index(index);
    return {
        TokenFile(
            token_files_of(path).front(),
            TokenLayout{read.type, 0, read.begins.back()}),
        TokenFormat::kMegatron,
        true,
        std::move(read.begins)};
  }
  int64_t count = 0;
  if (const LlmCVersion* version = llm_c_version(path, count)) {
    TESSERA_CHECK(
        count >= 0,
        "'{}': the number of tokens, the third number of its header, is {}: make the file again",
        path.string(),
        count);
    TokenFile file(path, TokenLayout{version->type, kLlmCHeaderBytes, count});
    auto begins = document_begins(
        file, options.end_token.value_or(version->begin_token), true);
    return {std::move(file), TokenFormat::kLlmC, true, std::move(begins)};
  }
  TokenFile file(path, options.type);
  std::vector<int64_t> begins{0, file.size()};
  if (options.end_token) {
    begins = document_begins(file, *options.end_token, false);
  }
  return {
      std::move(file),
      TokenFormat::kPlain,
      options.end_token.has_value(),
      std::move(begins)};
}

TokenDocuments::TokenDocuments(
    const fs::path& path,
    const TokenFileOptions& options)
    : TokenDocuments(opened(path, options)) {}

TokenDocuments::TokenDocuments(Opened opened)
    : file_(std::move(opened.file)),
      format_(opened.format),
      knows_documents_(opened.knows_documents),
      begins_(std::move(opened.begins)) {}

void TokenDocuments::read_into(
    int64_t document,
    int64_t begin,
    std::span<int64_t> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  TESSERA_CHECK(
      document >= 0 && document < size() && begin >= 0 &&
          begin <= length(document) && count <= length(document) - begin,
      "{} tokens from token {} of document {} are not in '{}', which has {} documents",
      count,
      begin,
      document,
      file_.path().string(),
      size());
  file_.read_into(this->begin(document) + begin, tokens);
}

at::Tensor TokenDocuments::read(int64_t document) const {
  TESSERA_CHECK(
      document >= 0 && document < size(),
      "document {} is not in '{}', which has {} documents",
      document,
      file_.path().string(),
      size());
  return file_.read(begin(document), length(document));
}

std::vector<fs::path> token_files_of(const fs::path& path) {
  const fs::path index = megatron_index_of(path);
  if (index.empty()) {
    return {path};
  }
  fs::path tokens = index;
  return {tokens.replace_extension(".bin"), index};
}

fs::path tokenizer_beside(const fs::path& path) {
  return token_files_of(path).front().replace_extension(".tokenizer");
}

bool is_held_out(int64_t document, double share) {
  // Not the seed of a run: what is held out is never trained on.
  constexpr uint64_t kSplitKey = 0x5b117;
  constexpr double kScale = 1.0 / (uint64_t{1} << 53);
  const uint64_t bits = runtime::split_mix(
      static_cast<uint64_t>(document) ^ runtime::split_mix(kSplitKey));
  return static_cast<double>(bits >> 11) * kScale < share;
}

} // namespace tessera::zoo
