// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/megatron_index.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <torch/types.h>

#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace tessera::zoo {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kIndexMagic = "MMIDIDX\0\0"sv;
constexpr uint64_t kIndexVersion = 1;
constexpr int64_t kIndexHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr const char* kRemake =
    "copy it again, or make it again, e.g. with "
    "`tessera tokenize`";

struct TypeCode {
  uint8_t code;
  TokenType type;
};
/// 6 and 7 are of floating point, in one order or the other.
constexpr std::array kTypeCodes = {
    TypeCode{1, TokenType::kUint8},
    TypeCode{2, TokenType::kInt8},
    TypeCode{3, TokenType::kInt16},
    TypeCode{4, TokenType::kInt32},
    TypeCode{5, TokenType::kInt64},
    TypeCode{8, TokenType::kUint16},
};

/// A part of the index, which is not aligned.
template <typename Value>
class IndexArray {
 public:
  explicit IndexArray(const uint8_t* bytes) : bytes_(bytes) {}

  Value operator[](int64_t i) const {
    Value value;
    std::memcpy(
        &value,
        bytes_ + i * static_cast<int64_t>(sizeof(Value)),
        sizeof(Value));
    return value;
  }

 private:
  const uint8_t* bytes_;
};

TokenType type_of_code(const std::filesystem::path& path, uint8_t code) {
  for (const TypeCode& one : kTypeCodes) {
    if (one.code == code) {
      return one.type;
    }
  }
  TESSERA_FAIL(
      "'{}': byte 17, the type of tokens, is {}{}; token ids are integers, of type 1 to 5 or 8: make the file again as uint16 or int32",
      path.string(),
      static_cast<int>(code),
      code == 6 || code == 7 ? ", floating point" : "");
}

struct IndexHeader {
  TokenType type = TokenType::kUint16;
  int64_t sequences = 0;
  int64_t boundaries = 0; ///< documents + 1
};

/// @param bytes of the whole file, at least a header.
IndexHeader index_header(
    const std::filesystem::path& path,
    const uint8_t* data,
    int64_t bytes) {
  const auto version = IndexArray<uint64_t>(data + 9)[0];
  TESSERA_CHECK(
      version == kIndexVersion,
      "'{}': its version, at byte 9, is {}; only version 1 of Megatron's index is known: {}",
      path.string(),
      version,
      kRemake);
  const TokenType type = type_of_code(path, data[17]);
  const auto sequences = IndexArray<uint64_t>(data + 18)[0];
  const auto boundaries = IndexArray<uint64_t>(data + 26)[0];
  const auto most = static_cast<uint64_t>(bytes);
  const uint64_t needed = sequences > most || boundaries > most
                              ? UINT64_MAX
                              : static_cast<uint64_t>(kIndexHeaderBytes) +
                                    12 * sequences + 8 * boundaries;
  TESSERA_CHECK(
      needed != most - sequences,
      "'{}' has a mode for each sequence, as multimodal data have, which is not supported: give a file of texts",
      path.string());
  TESSERA_CHECK(
      needed == most,
      "'{}' has {} bytes, which are not those of the {} sequences and {} documents that bytes 18 and 26 say: {}",
      path.string(),
      bytes,
      sequences,
      static_cast<int64_t>(boundaries) - 1,
      kRemake);
  TESSERA_CHECK(
      boundaries >= 1,
      "'{}': the number of document boundaries, at byte 26, is 0; it is at least 1: {}",
      path.string(),
      kRemake);
  return {
      type, static_cast<int64_t>(sequences), static_cast<int64_t>(boundaries)};
}

template <typename Value>
void append_bytes(std::string& bytes, Value value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

} // namespace

bool is_megatron_index(const std::filesystem::path& path) {
  std::string start(kIndexMagic.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  return file.good() && start == kIndexMagic;
}

MegatronIndex read_megatron_index(const std::filesystem::path& path) {
  std::error_code code;
  const auto bytes =
      static_cast<int64_t>(std::filesystem::file_size(path, code));
  TESSERA_CHECK(!code, "cannot read '{}': {}", path.string(), code.message());
  TESSERA_CHECK(
      is_megatron_index(path),
      "'{}' does not begin with MMIDIDX, so it is not the index of a Megatron data set; give the .bin file of one that has an index, or a plain token file",
      path.string());
  TESSERA_CHECK(
      bytes >= kIndexHeaderBytes,
      "'{}' has {} bytes, fewer than the {} of its header: {}",
      path.string(),
      bytes,
      kIndexHeaderBytes,
      kRemake);
  const at::Tensor mapped =
      torch::from_file(path.string(), /*shared=*/false, bytes, torch::kUInt8);
  const auto* data = mapped.const_data_ptr<uint8_t>();
  const IndexHeader header = index_header(path, data, bytes);
  const IndexArray<int32_t> lengths(data + kIndexHeaderBytes);
  const IndexArray<int64_t> pointers(
      data + kIndexHeaderBytes + 4 * header.sequences);
  const IndexArray<int64_t> documents(
      data + kIndexHeaderBytes + 12 * header.sequences);
  const int64_t width = bytes_of(header.type);
  MegatronIndex index{header.type, {}};
  index.begins.reserve(static_cast<size_t>(header.boundaries));
  int64_t sequence = 0;
  int64_t end = 0; // of the sequences so far, in tokens
  for (int64_t i = 0; i < header.boundaries; ++i) {
    const int64_t next = documents[i];
    TESSERA_CHECK(
        next >= sequence && next <= header.sequences && (i > 0 || next == 0),
        "'{}': document {} begins at sequence {}, which is not within {} .. {}: {}",
        path.string(),
        i,
        next,
        sequence,
        i > 0 ? header.sequences : 0,
        kRemake);
    for (; sequence < next; ++sequence) {
      TESSERA_CHECK(
          lengths[sequence] >= 0 && pointers[sequence] == end * width,
          "'{}': sequence {} has {} tokens from byte {}; sequences follow each other, so that it begins at byte {}: {}",
          path.string(),
          sequence,
          lengths[sequence],
          pointers[sequence],
          end * width,
          kRemake);
      end += lengths[sequence];
    }
    index.begins.push_back(end);
  }
  TESSERA_CHECK(
      sequence == header.sequences,
      "'{}': the last document ends at sequence {}, but there are {}: {}",
      path.string(),
      sequence,
      header.sequences,
      kRemake);
  return index;
}

void write_megatron_index(
    const std::filesystem::path& path,
    TokenType type,
    std::span<const int32_t> lengths) {
  const int64_t width = bytes_of(type);
  uint8_t code = 0;
  for (const TypeCode& one : kTypeCodes) {
    code = one.type == type ? one.code : code;
  }
  TESSERA_CHECK(
      code != 0, "Megatron's format has no tokens of type {}", name_of(type));
  runtime::AtomicFile file(path);
  uint64_t written = 0;
  std::string bytes(kIndexMagic);
  const auto flush = [&](size_t least) {
    if (bytes.size() >= least) {
      file.write_at(written, std::as_bytes(std::span(bytes)));
      written += bytes.size();
      bytes.clear();
    }
  };
  constexpr size_t kBlock = 1 << 20;
  append_bytes(bytes, kIndexVersion);
  append_bytes(bytes, code);
  append_bytes(bytes, static_cast<uint64_t>(lengths.size()));
  append_bytes(bytes, static_cast<uint64_t>(lengths.size() + 1));
  for (const int32_t length : lengths) {
    append_bytes(bytes, length);
    flush(kBlock);
  }
  int64_t pointer = 0;
  for (const int32_t length : lengths) {
    append_bytes(bytes, pointer);
    pointer += length * width;
    flush(kBlock);
  }
  for (size_t i = 0; i <= lengths.size(); ++i) {
    append_bytes(bytes, static_cast<int64_t>(i));
    flush(kBlock);
  }
  flush(0);
  file.commit();
}

} // namespace tessera::zoo
