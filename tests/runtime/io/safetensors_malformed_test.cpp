// SPDX-License-Identifier: Apache-2.0
// Files that are not what they say: each is refused with a message that names
// the place, and none reads outside the file.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/safetensors.h"

namespace tessera::runtime::safetensors_malformed_test {

namespace {

std::string file_bytes(uint64_t length, const std::string& rest) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>(length >> (8 * i) & 0xff);
  }
  return bytes + rest;
}

std::string file_bytes(const std::string& header, size_t data_bytes) {
  return file_bytes(header.size(), header + std::string(data_bytes, 'd'));
}

class SafetensorsMalformed : public ::testing::Test {
 protected:
  void refuse(
      const std::string& content,
      std::initializer_list<const char*> parts) {
    SCOPED_TRACE(content.substr(0, 200));
    write_file_atomically(path_, content);
    expect_error([&] { SafetensorsFile::open(path_); }, {"bad.safetensors"});
    expect_error([&] { SafetensorsFile::open(path_); }, parts);
  }

  // Refuses a header with eight bytes of data behind it.
  void refuse_header(
      const std::string& header,
      std::initializer_list<const char*> parts) {
    refuse(file_bytes(header, 8), parts);
  }

  void accept(const std::string& content) {
    SCOPED_TRACE(content.substr(0, 200));
    write_file_atomically(path_, content);
    EXPECT_NO_THROW(SafetensorsFile::open(path_));
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "bad.safetensors";
};

const char* const kGood =
    R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

} // namespace

TEST_F(SafetensorsMalformed, PathThatIsNoFile) {
  expect_error(
      [&] { SafetensorsFile::open(folder_ / "absent"); },
      {"absent", "No such file", "check the path"});
  expect_error([&] { SafetensorsFile::open(folder_.path()); }, {"name a file"});
}

TEST_F(SafetensorsMalformed, PrefixAndLength) {
  accept(file_bytes(kGood, 8));
  accept(file_bytes(std::string(kGood) + "   ", 8));
  refuse("", {"0 bytes", "download or write it again"});
  refuse("1234567", {"7 bytes"});
  refuse(file_bytes(0, ""), {"'{'"});
  refuse(file_bytes(9, "{}"), {"9 bytes long", "only 2"});
  refuse(file_bytes(100'000'001, "{}"), {"100000001", "100000000"});
  refuse(file_bytes(UINT64_MAX, "{}"), {"18446744073709551615"});
}

TEST_F(SafetensorsMalformed, HeaderThatIsNoObject) {
  refuse_header("[1,2]", {"starts with \"[\""});
  refuse_header(" {}", {"starts with \" \""});
  refuse_header("\xff{}", {"instead of '{'"});
  refuse_header("{\"a\":", {"header:1:", "not valid JSON"});
  refuse_header("{\"a\": 1} x", {"header:1:10", "not valid JSON"});
  refuse_header(std::string("{}\0", 3), {"not valid JSON"});
  refuse_header("{\"\xff\": 1}", {"not valid JSON"});
  refuse_header(R"({"t":{"shape":[1e999]}})", {"1e999"});
  refuse_header(
      "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}",
      {"nested"});
}

TEST_F(SafetensorsMalformed, DuplicateKeys) {
  refuse_header(
      R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      {"\"t\"", "twice"});
  refuse_header(
      R"({"t":{"dtype":"U8","dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      {"\"dtype\"", "twice"});
  refuse_header(R"({"__metadata__":{"a":"1","a":"2"}})", {"\"a\"", "twice"});
}

TEST_F(SafetensorsMalformed, TensorFields) {
  refuse_header(R"({"t":3})", {"'t'", "described by 3"});
  refuse_header(
      R"({"t":{"shape":[2],"data_offsets":[0,8]}})", {"'t'", "no 'dtype'"});
  refuse_header(
      R"({"t":{"dtype":"F32","data_offsets":[0,8]}})", {"'t'", "no 'shape'"});
  refuse_header(
      R"({"t":{"dtype":"F32","shape":[2]}})", {"'t'", "no 'data_offsets'"});
  refuse_header(
      R"({"t":{"dtype":1,"shape":[2],"data_offsets":[0,8]}})",
      {"'t'", "dtype is 1"});
  refuse_header(
      R"({"t":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})",
      {"'t'", "\"F31\"", "not supported", "convert"});
}

TEST_F(SafetensorsMalformed, Shapes) {
  const auto refuse_shape = [&](const std::string& shape,
                                std::initializer_list<const char*> parts) {
    refuse_header(
        R"({"t":{"dtype":"F32","shape":)" + shape +
            R"(,"data_offsets":[0,8]}})",
        parts);
  };
  refuse_shape("2", {"'t'", "shape is 2"});
  refuse_shape("[2.0]", {"'t'", "contains 2.0"});
  refuse_shape("[-2]", {"'t'", "contains -2"});
  refuse_shape("[\"2\"]", {"'t'", "contains \"2\""});
  refuse_shape("[9223372036854775808]", {"'t'", "9223372036854775808"});
  refuse_shape("[99999999999999999999]", {"'t'", "not a size"});
  refuse_shape("[4294967296,4294967296]", {"'t'", "64 bits"});
  // Times four bytes this wraps to 8 modulo 2^64.
  refuse_shape("[4611686018427387906]", {"'t'", "64 bits"});
  refuse_shape("[0,4294967296,4294967296]", {"'t'", "64 bits"});
  refuse_shape("[3]", {"'t'", "needs 12", "hold 8"});
  refuse_shape("[]", {"'t'", "needs 4", "hold 8"});
  refuse_shape("[0]", {"'t'", "needs 0", "hold 8"});
}

TEST_F(SafetensorsMalformed, Offsets) {
  const auto refuse_offsets = [&](const std::string& offsets,
                                  std::initializer_list<const char*> parts) {
    refuse_header(
        R"({"t":{"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}}",
        parts);
  };
  refuse_offsets("8", {"'t'", "data_offsets are 8"});
  refuse_offsets("[0]", {"'t'", "[0]", "pair"});
  refuse_offsets("[0,4,8]", {"'t'", "[0,4,8]", "pair"});
  refuse_offsets("[0.0,8]", {"'t'", "[0.0,8]", "pair"});
  refuse_offsets("[-8,0]", {"'t'", "[-8,0]", "pair"});
  refuse_offsets("[0,\"8\"]", {"'t'", "pair"});
  refuse_offsets("[8,0]", {"'t'", "backwards"});
  refuse_offsets("[4,12]", {"'t'", "end beyond the file's 8"});
  refuse_offsets(
      "[18446744073709551608,18446744073709551615]", {"'t'", "end beyond"});
}

TEST_F(SafetensorsMalformed, TensorsThatDoNotTileTheData) {
  const auto two = [](int a0, int a1, int b0, int b1) {
    const auto tensor = [](int begin, int end) {
      return R"({"dtype":"U8","shape":[)" + std::to_string(end - begin) +
             R"(],"data_offsets":[)" + std::to_string(begin) + "," +
             std::to_string(end) + "]}";
    };
    return "{\"a\":" + tensor(a0, a1) + ",\"b\":" + tensor(b0, b1) + "}";
  };
  accept(file_bytes(two(0, 4, 4, 8), 8));
  accept(file_bytes(two(4, 8, 0, 4), 8));
  accept(file_bytes(two(0, 8, 8, 8), 8));
  accept(file_bytes(two(0, 0, 0, 8), 8));
  refuse_header(two(0, 5, 4, 8), {"'b'", "byte 4", "ends at 5"});
  refuse_header(two(0, 8, 0, 8), {"'b'", "byte 0", "ends at 8"});
  refuse_header(two(0, 8, 3, 3), {"'b'", "byte 3", "ends at 8"});
  refuse_header(two(0, 3, 4, 8), {"'b'", "nothing fills", "3"});
  refuse_header(two(1, 4, 4, 8), {"'a'", "nothing fills", "0"});
  refuse_header(two(0, 4, 4, 7), {"end at byte 7", "has 8"});
  refuse_header("{}", {"end at byte 0", "has 8"});
  refuse(file_bytes(kGood, 7), {"'t'", "end beyond the file's 7"});
  refuse(file_bytes(kGood, 9), {"end at byte 8", "has 9"});
}

TEST_F(SafetensorsMalformed, Metadata) {
  refuse_header(R"({"__metadata__":[]})", {"__metadata__", "[]"});
  refuse_header(
      R"({"__metadata__":{"epoch":3}})",
      {"__metadata__", "'epoch'", "3", "not a string"});
}

// Every mutation of a valid file either opens, with all data inside the file,
// or is refused with an Error. The seed is fixed: a failure repeats.
TEST_F(SafetensorsMalformed, SurvivesThousandsOfMutations) {
  SafetensorsWriter writer(
      path_,
      {{"a", SafetensorsDtype::kF32, {2, 3}},
       {"b.weight", SafetensorsDtype::kI64, {}},
       {"c", SafetensorsDtype::kBool, {5}},
       {"d", SafetensorsDtype::kF16, {0, 4}}},
      {{"format", "pt"}});
  const std::vector<std::byte> zeros(24);
  writer.write("a", zeros);
  writer.write("b.weight", std::span(zeros).first(8));
  writer.write("c", std::span(zeros).first(5));
  writer.commit();
  const std::string valid = read_text_file(path_);
  const size_t header_end = valid.size() - (24 + 8 + 5);
  const char* const tokens[] = {
      "[",
      "]",
      "{",
      "}",
      ",",
      ":",
      "\"",
      "-",
      "0",
      "9",
      "1e9",
      "null",
      "true",
      "18446744073709551615",
      "9223372036854775807",
      "F32",
      "U8",
      "\"a\":",
      "\\u0000",
      "\xff",
      " "};

  std::mt19937_64 random(20240229);
  const auto below = [&](size_t bound) { return random() % bound; };
  int opened = 0;
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = valid;
    const size_t edits = below(2) == 0 ? 1 : 1 + below(3);
    for (size_t edit = 0; edit < edits && !bytes.empty(); ++edit) {
      // Most edits hit the header, where the decisions are; the data is short.
      const size_t at =
          below(3) > 0
              ? below(std::min(header_end, bytes.size()))
              : bytes.size() - 1 - below(std::min<size_t>(bytes.size(), 37));
      switch (below(6)) {
        case 0:
          bytes[at] = static_cast<char>(below(256));
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 2:
          bytes.resize(at);
          break;
        case 3:
          bytes.erase(at, 1 + below(8));
          break;
        case 4:
          bytes.replace(at, 1 + below(4), tokens[below(std::size(tokens))]);
          break;
        default:
          bytes.insert(at, bytes.substr(below(bytes.size()), below(32)));
          break;
      }
      // Half of the time the length is right again, so that the JSON behind
      // it gets its share.
      if (below(2) == 0 && bytes.size() > 45) {
        bytes.replace(0, 8, file_bytes(bytes.size() - 45, ""));
      }
    }
    {
      // Plain writes: thousands of fsyncs would take minutes.
      std::ofstream out(path_, std::ios::binary | std::ios::trunc);
      out << bytes;
    }
    try {
      const auto file = SafetensorsFile::open(path_);
      ++opened;
      size_t total = 0;
      unsigned sum = 0;
      for (const SafetensorsEntry& entry : file.entries()) {
        total += entry.data.size();
        for (const std::byte byte : entry.data) {
          sum += std::to_integer<unsigned>(byte); // Touches every page.
        }
      }
      EXPECT_LE(total, bytes.size());
      EXPECT_LE(sum, 255 * bytes.size());
    } catch (const Error& error) {
      ++refused;
      EXPECT_NE(
          std::string(error.what()).find("bad.safetensors"), std::string::npos)
          << error.what();
    }
  }
  // The loop is worth something only if both ends are reached.
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 1000);
}

} // namespace tessera::runtime::safetensors_malformed_test
