// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/atomic_folder.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

namespace tessera::runtime::atomic_folder_test {
namespace {

namespace fs = std::filesystem;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

void write(const AtomicFolder& folder, const std::string& text) {
  write_file_atomically(folder.temporary() / "file", text);
}

bool is_file(const std::string& name) {
  return name == "file";
}

} // namespace

TEST(AtomicFolder, IsSeenWhenItIsCommitted) {
  const TemporaryFolder in;
  AtomicFolder folder(in / "deep" / "model");
  EXPECT_EQ(folder.temporary(), AtomicFolder::temporary_of(folder.path()));
  write(folder, "new");
  EXPECT_FALSE(fs::exists(in / "deep" / "model"));
  folder.commit();
  EXPECT_EQ(read_text_file(in / "deep" / "model" / "file"), "new");
  EXPECT_EQ(names_in(in / "deep"), std::set<std::string>{"model"});
}

TEST(AtomicFolder, ReplacesAnotherOneAsAWhole) {
  const TemporaryFolder in;
  fs::create_directories(in / "model");
  write_file_atomically(in / "model" / "old", "old");
  {
    AtomicFolder folder(in / "model");
    write(folder, "never");
  } // not committed
  EXPECT_EQ(names_in(in / "model"), std::set<std::string>{"old"});
  AtomicFolder folder(in / "model");
  write(folder, "new");
  folder.commit();
  EXPECT_EQ(names_in(in / "model"), std::set<std::string>{"file"});
  EXPECT_EQ(names_in(in.path()), std::set<std::string>{"model"});
}

TEST(AtomicFolder, RemovesWhatAnEarlierProcessLeft) {
  const TemporaryFolder in;
  const fs::path left = AtomicFolder::temporary_of(in / "model");
  fs::create_directories(left / "inner");
  AtomicFolder folder(in / "model");
  EXPECT_TRUE(fs::is_empty(folder.temporary()));
}

TEST(AtomicFolder, LosesNothingOfOthers) {
  const TemporaryFolder in;
  fs::create_directories(in / "model");
  write_file_atomically(in / "model" / "notes", "mine");
  expect_error(
      [&] { AtomicFolder(in / "model", is_file); },
      {"notes", "would be lost", "choose another folder"});
  fs::remove(in / "model" / "notes");
  AtomicFolder folder(in / "model", is_file);
  write(folder, "new");
  write_file_atomically(in / "model" / "notes", "mine"); // meanwhile
  expect_error([&] { folder.commit(); }, {"notes", "would be lost"});
  EXPECT_EQ(read_text_file(in / "model" / "notes"), "mine");
  expect_error(
      [&] { AtomicFolder(in / "model" / "notes"); }, {"is not a folder"});
}

TEST(AtomicFolder, AFileInPlaceOfAFolderAboveIsNamed) {
  const TemporaryFolder in;
  write_file_atomically(in / "model", "a file");
  for (const char* below : {"step-1", "more/step-1"}) {
    expect_error(
        [&] { AtomicFolder(in / "model" / below); },
        {"cannot be written", "model\" is a file; choose a folder"});
  }
  EXPECT_EQ(read_text_file(in / "model"), "a file");
}

TEST(AtomicFolder, ALinkToNothingIsNamed) {
  const TemporaryFolder in;
  fs::create_directory_symlink("absent", in / "link");
  expect_error(
      [&] { AtomicFolder(in / "link" / "model"); },
      {"link\" is a link to \"absent\", which does not exist"});
  fs::create_directory(in / "absent");
  AtomicFolder folder(in / "link" / "model");
  write(folder, "new");
  folder.commit();
  EXPECT_EQ(read_text_file(in / "absent" / "model" / "file"), "new");
}

TEST(AtomicFolder, IsFilledByOneProcessAtATime) {
  const TemporaryFolder in;
  AtomicFolder folder(in / "model");
  write(folder, "new");
  expect_error(
      [&] { AtomicFolder(in / "model"); },
      {"another process is writing the folder", "choose another"});
  folder.commit();
  EXPECT_EQ(read_text_file(in / "model" / "file"), "new");
  AtomicFolder(in / "model"); // the lock went with the folder
}

} // namespace tessera::runtime::atomic_folder_test
