// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace tessera::runtime::atomic_file_test {

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

} // namespace

TEST(AtomicFile, ContentAppearsAtCommit) {
  TemporaryFolder folder;
  write_file_atomically(folder / "a", "old");
  AtomicFile file(folder / "a");
  file.write_at(4, bytes_of("late"));
  file.write_at(0, bytes_of("soon"));
  EXPECT_EQ(read_text_file(folder / "a"), "old");
  file.commit();
  EXPECT_EQ(read_text_file(folder / "a"), "soonlate");
  EXPECT_EQ(folder.count(), 1u);
  expect_error([&] { file.commit(); }, {"a' a second time"});
}

TEST(AtomicFile, ReservedBytesAreZero) {
  TemporaryFolder folder;
  AtomicFile file(folder / "a");
  file.reserve(5);
  file.write_at(1, bytes_of("x"));
  file.commit();
  EXPECT_EQ(read_text_file(folder / "a"), std::string("\0x\0\0\0", 5));
}

// Large ones go past the page cache, their ends do not.
TEST(AtomicFile, WritesOfAnySizeAndPlaceMakeOneFile) {
  TemporaryFolder folder;
  std::mt19937_64 random(5);
  std::string expected;
  std::vector<std::pair<size_t, size_t>> parts; // offset, bytes
  for (const size_t base : {size_t{1}, size_t{4096}, size_t{1} << 20}) {
    for (int i = 0; i < 6; ++i) {
      const size_t bytes = 3 * base + random() % (4 * base) - 1;
      parts.emplace_back(expected.size(), bytes);
      for (size_t k = 0; k < bytes; ++k) {
        expected += static_cast<char>(random());
      }
    }
  }
  // One of several buffers, at a place and an address that are aligned.
  parts.emplace_back((expected.size() + 4095) / 4096 * 4096, 20 << 20);
  expected.resize(parts.back().first);
  for (size_t k = 0; k < parts.back().second; ++k) {
    expected += static_cast<char>(k / 4096 + k);
  }
  std::shuffle(parts.begin(), parts.end(), random);
  for (const bool reserves : {false, true}) {
    AtomicFile file(folder / "a");
    if (reserves) {
      file.reserve(expected.size());
    }
    for (const auto& [offset, bytes] : parts) {
      file.write_at(
          offset, bytes_of(std::string_view(expected).substr(offset, bytes)));
    }
    file.commit();
    EXPECT_TRUE(read_text_file(folder / "a") == expected) << reserves;
  }
}

TEST(AtomicFile, AbandonedFileIsRemoved) {
  TemporaryFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write_at(0, bytes_of("x"));
    AtomicFile moved = std::move(file);
    EXPECT_EQ(folder.count(), 1u);
  }
  EXPECT_EQ(folder.count(), 0u);
}

TEST(AtomicFile, TwoWritersOfOneFileDoNotMeet) {
  TemporaryFolder folder;
  AtomicFile first(folder / "a");
  AtomicFile second(folder / "a");
  first.write_at(0, bytes_of("first"));
  second.write_at(0, bytes_of("second"));
  second.commit();
  first.commit();
  EXPECT_EQ(read_text_file(folder / "a"), "first");
}

TEST(AtomicFile, ErrorsNameTheFileAndTheReason) {
  TemporaryFolder folder;
  expect_error(
      [&] { AtomicFile(folder / "no" / "a"); },
      {"no/a.tmp", "No such file", "check the path"});
  expect_error([&] { AtomicFile(folder.path() / ""); }, {"names no file"});
  // A folder in the way is found at commit, and stays.
  std::filesystem::create_directory(folder / "taken");
  expect_error(
      [&] { write_file_atomically(folder / "taken", "x"); },
      {"taken'", "name a file, not a folder"});
  EXPECT_EQ(folder.count(), 1u);
}

TEST(ReadTextFile, ReadsAllBytes) {
  TemporaryFolder folder;
  const std::string content("a\0b\r\n\xff", 6);
  write_file_atomically(folder / "a", content);
  EXPECT_EQ(read_text_file(folder / "a"), content);
  write_file_atomically(folder / "empty", "");
  EXPECT_EQ(read_text_file(folder / "empty"), "");
}

TEST(AtomicFile, FollowsLinks) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "sub");
  write_file_atomically(folder / "sub/file", "old");
  std::filesystem::create_symlink("sub/file", folder / "link");
  std::filesystem::create_symlink(folder / "link", folder / "second");
  write_file_atomically(folder / "second", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "second"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_text_file(folder / "sub/file"), "new");
  // A link whose file does not exist yet.
  std::filesystem::create_symlink("sub/later", folder / "third");
  write_file_atomically(folder / "third", "made");
  EXPECT_EQ(read_text_file(folder / "sub/later"), "made");
}

TEST(ReadTextFile, RefusesWhatIsNoFile) {
  TemporaryFolder folder;
  expect_error(
      [&] { read_text_file(folder / "absent"); },
      {"absent'", "No such file", "check the path"});
  expect_error([&] { read_text_file(folder.path()); }, {"not a regular file"});
  // A pipe without a writer must not block.
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_error([&] { read_text_file(pipe); }, {"not a regular file"});
}

} // namespace tessera::runtime::atomic_file_test
