// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/rows/data_format.h"

#include "tessera/runtime/core/format.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

namespace tessera::text {

namespace {

struct Magic {
  std::string_view bytes;
  DataFormat format;
};

using namespace std::string_view_literals;

constexpr std::array kMagics = {
    Magic{"\x93NUMPY"sv, DataFormat::kNumpy},
    // 20240520, the version 1, and padding up to 256 int32
    Magic{"\x88\xdc\x34\x01\x01\x00\x00\x00"sv, DataFormat::kLlmC},
    Magic{"\x1f\x8b"sv, DataFormat::kGzip},
    Magic{"\x28\xb5\x2f\xfd"sv, DataFormat::kZstandard},
    Magic{"PK\x03\x04"sv, DataFormat::kZip},
    Magic{"PAR1"sv, DataFormat::kParquet},
    Magic{"ARROW1"sv, DataFormat::kArrow},
    Magic{"\x89HDF"sv, DataFormat::kHdf5},
};

/// Whether bytes are UTF-8 without control characters. A character that is cut
/// off at the end counts.
bool is_text(std::string_view bytes) {
  constexpr size_t kLongestCharacter = 4;
  const auto size = static_cast<int32_t>(bytes.size());
  for (int32_t at = 0; at < size;) {
    const int32_t begin = at;
    UChar32 character = 0;
    U8_NEXT(bytes.data(), at, size, character);
    const bool is_control =
        (character >= 0 && character < 0x20 && character != '\t' &&
         character != '\n' && character != '\r' && character != '\f') ||
        character == 0x7f;
    if (is_control ||
        (character < 0 &&
         bytes.size() - static_cast<size_t>(begin) >= kLongestCharacter)) {
      return false;
    }
  }
  return true;
}

} // namespace

DataFormat data_format_of(const std::filesystem::path& path) {
  constexpr size_t kSample = 65536;
  constexpr size_t kLeastText = 64;
  std::string start(kSample, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), kSample);
  start.resize(
      static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  for (const Magic& magic : kMagics) {
    if (start.starts_with(magic.bytes)) {
      return magic.format;
    }
  }
  // The length of the header, below 16 MiB, and the header, a JSON object.
  if (start.size() > 9 && start.substr(3, 7) == "\0\0\0\0\0{\""sv) {
    return DataFormat::kSafetensors;
  }
  return start.size() >= kLeastText && is_text(start) ? DataFormat::kText
                                                      : DataFormat::kUnknown;
}

bool is_text_file(const std::filesystem::path& path) {
  const std::string suffix = path.extension().string();
  for (const char* one :
       {".txt", ".json", ".jsonl", ".ndjson", ".csv", ".tsv"}) {
    if (suffix == one) {
      return true;
    }
  }
  return data_format_of(path) == DataFormat::kText;
}

const char* name_of(DataFormat format) {
  switch (format) {
    case DataFormat::kText:
      return "text";
    case DataFormat::kNumpy:
      return "a NumPy array";
    case DataFormat::kLlmC:
      return "a token file of llm.c, which has a header";
    case DataFormat::kSafetensors:
      return "a safetensors file";
    case DataFormat::kGzip:
      return "compressed with gzip";
    case DataFormat::kZstandard:
      return "compressed with zstd";
    case DataFormat::kZip:
      return "a zip archive";
    case DataFormat::kParquet:
      return "a Parquet file";
    case DataFormat::kArrow:
      return "an Arrow file";
    case DataFormat::kHdf5:
      return "an HDF5 file";
    case DataFormat::kUnknown:
      break;
  }
  return "of an unknown format";
}

std::string shell_word(const std::filesystem::path& path) {
  const std::string text = path.string();
  if (text.find_first_not_of(
          "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
          "_-+=:,./@%") == std::string::npos) {
    return text;
  }
  std::string word = "'";
  for (const char c : text) {
    word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return word + "'";
}

std::string unpack_command(
    DataFormat format,
    const std::filesystem::path& path) {
  const char* const program = format == DataFormat::kGzip ? "gunzip --keep"
                              : format == DataFormat::kZstandard ? "unzstd"
                              : format == DataFormat::kZip       ? "unzip"
                                                                 : nullptr;
  return program == nullptr ? ""
                            : formatted("{} {}", program, shell_word(path));
}

} // namespace tessera::text
