// SPDX-License-Identifier: Apache-2.0
// ZIP archives as zipfile.ZipFile of Python writes them, and damaged ones.
#include "tessera/runtime/io/zip_directory.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/expect_error.h"

namespace tessera::runtime::zip_directory_test {

namespace {

using namespace std::string_literals;

std::string number(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i, value >>= 8) {
    text += static_cast<char>(value & 0xff);
  }
  return text;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

struct Options {
  bool is_large = false; ///< sizes are in ZIP64 fields
  int method = 0;
  int flags = 0;
  std::string comment;
};

/// An archive of entries; local headers have extra fields that the directory
/// does not have.
std::string archive(
    const std::vector<std::pair<std::string, std::string>>& entries,
    const Options& options = {}) {
  std::string file;
  std::string directory;
  const uint64_t none = 0xffffffff;
  for (const auto& [name, data] : entries) {
    const uint64_t offset = file.size();
    const uint64_t size = data.size();
    const uint32_t crc = zip_crc(bytes_of(data));
    const std::string large =
        options.is_large ? number(1, 2) + number(24, 2) + number(size, 8) +
                               number(size, 8) + number(offset, 8)
                         : "";
    const auto shown = [&](uint64_t value) {
      return number(options.is_large ? none : value, 4);
    };
    const std::string padding = "FB"s + number(5, 2) + "ZZZZZ";
    const std::string sizes =
        number(crc, 4) + shown(size) + shown(size) + number(name.size(), 2);
    const std::string flags_and_method =
        number(20, 2) + number(options.flags, 2) + number(options.method, 2) +
        number(0, 4);
    file += "PK\3\4" + flags_and_method + sizes + number(padding.size(), 2) +
            name + padding + data;
    directory += "PK\1\2" + number(20, 2) + flags_and_method + sizes +
                 number(large.size(), 2) + number(0, 10) + shown(offset) +
                 name + large;
  }
  const uint64_t at = file.size();
  file += directory;
  if (options.is_large) {
    const uint64_t end = file.size();
    file += "PK\6\6" + number(44, 8) + number(45, 4) + number(0, 8) +
            number(entries.size(), 8) + number(entries.size(), 8) +
            number(directory.size(), 8) + number(at, 8);
    file += "PK\6\7" + number(0, 4) + number(end, 8) + number(1, 4);
  }
  const auto small = [&](uint64_t value, int size) {
    return number(options.is_large ? none : value, size);
  };
  return file + "PK\5\6" + number(0, 4) + small(entries.size(), 2) +
         small(entries.size(), 2) + small(directory.size(), 4) + small(at, 4) +
         number(options.comment.size(), 2) + options.comment;
}

std::string text_of(const ZipEntry* entry) {
  return {
      reinterpret_cast<const char*>(entry->data.data()), entry->data.size()};
}

void refuse(const std::string& file, std::initializer_list<const char*> parts) {
  expect_error([&] { ZipDirectory(bytes_of(file), "a.pt"); }, {"a.pt"});
  expect_error([&] { ZipDirectory(bytes_of(file), "a.pt"); }, parts);
}

const std::vector<std::pair<std::string, std::string>> kEntries = {
    {"a/data.pkl", "pickle"},
    {"a/data/0", "numbers"},
    {"a/data/1", ""}};

} // namespace

TEST(ZipDirectory, FindsEntries) {
  for (const bool is_large : {false, true}) {
    for (const char* comment : {"", "PK\5\6 a comment, not an end"}) {
      const std::string file =
          archive(kEntries, {.is_large = is_large, .comment = comment});
      EXPECT_TRUE(is_zip(bytes_of(file)));
      const ZipDirectory zip(bytes_of(file), "a.pt");
      EXPECT_EQ(zip.entries().size(), 3u);
      for (const auto& [name, data] : kEntries) {
        ASSERT_NE(zip.find(name), nullptr) << name;
        EXPECT_EQ(text_of(zip.find(name)), data);
        EXPECT_EQ(zip_crc(zip.find(name)->data), zip.find(name)->crc);
      }
      EXPECT_EQ(zip.find("a/data/2"), nullptr);
    }
  }
  EXPECT_FALSE(is_zip(bytes_of("PK\3")));
  EXPECT_EQ(zip_crc(bytes_of("123456789")), 0xcbf43926); // the check value
}

TEST(ZipDirectory, RefusesEveryTruncation) {
  for (const bool is_large : {false, true}) {
    const std::string file = archive(kEntries, {.is_large = is_large});
    for (size_t size = 0; size < file.size(); ++size) {
      refuse(file.substr(0, size), {"fetch it again"});
    }
  }
}

TEST(ZipDirectory, RefusesWhatIsNotStoredAsItIs) {
  for (const std::string& file :
       {archive(kEntries, {.method = 8}), archive(kEntries, {.flags = 1})}) {
    const ZipDirectory zip(bytes_of(file), "a.pt");
    EXPECT_TRUE(zip.contains("a/data.pkl"));
    expect_error(
        [&] { zip.find("a/data.pkl"); },
        {"a.pt: 'a/data.pkl'", "compressed or encrypted"});
  }
  refuse(
      archive({{"a/data/0", "x"}, {"a/data/0", "y"}}),
      {"has 'a/data/0' twice"});
}

TEST(ZipDirectory, RefusesPlacesOutsideOfTheFile) {
  const std::string file = archive({{"a", "data"}});
  const size_t entry = file.find("PK\1\2");
  const auto changed = [&](size_t at, uint64_t value, int bytes) {
    std::string other = file;
    other.replace(at, static_cast<size_t>(bytes), number(value, bytes));
    return other;
  };
  refuse(changed(entry + 42, 3, 4), {"'a'", "not where its directory says"});
  refuse(changed(entry + 42, 0x7fffffff, 4), {"ends too early"});
  std::string longer = changed(entry + 20, 0x7ffffff, 4);
  longer.replace(entry + 24, 4, number(0x7ffffff, 4));
  refuse(longer, {"'a'", "would be 134217727 bytes long"});
  refuse(changed(entry, 0, 4), {"entry 0", "malformed"});
  refuse(changed(entry + 28, 0xffff, 2), {"ends too early"});
}

} // namespace tessera::runtime::zip_directory_test
