// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/remove_tree.h"

#include "support/temporary_folder.h"
#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace tessera::runtime::remove_tree_test {

namespace {

namespace fs = std::filesystem;

void touch(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "x";
}

} // namespace

TEST(RemoveTree, RemovesAllThatIsInAFolderAndNothingThatLinksLeadTo) {
  const TemporaryFolder folder;
  const fs::path tree = folder / "tree";
  touch(tree / "a" / "b" / "file");
  touch(tree / ".hidden");
  touch(folder / "kept" / "file");
  fs::create_directory_symlink(folder / "kept", tree / "link");
  fs::create_symlink(folder / "nowhere", tree / "a" / "dangling");
  remove_tree(tree);
  EXPECT_FALSE(fs::exists(tree));
  EXPECT_TRUE(fs::exists(folder / "kept" / "file"));
}

TEST(RemoveTree, RemovesFilesAndLinks) {
  const TemporaryFolder folder;
  touch(folder / "file");
  fs::create_symlink(folder / "file", folder / "link");
  remove_tree(folder / "link");
  EXPECT_TRUE(fs::exists(folder / "file"));
  remove_tree(folder / "file");
  EXPECT_FALSE(fs::exists(folder / "file"));
}

TEST(RemoveTree, IsDoneWhereThereIsNothing) {
  const TemporaryFolder folder;
  remove_tree(folder / "nothing");
  std::error_code code = std::make_error_code(std::errc::io_error);
  remove_tree(folder / "nothing", code);
  EXPECT_FALSE(code);
}

TEST(RemoveTree, NamesWhatStays) {
  const TemporaryFolder folder;
  touch(folder / "file");
  const fs::path inside = folder / "file" / "inside";
  std::error_code code;
  remove_tree(inside, code);
  EXPECT_EQ(code, std::errc::not_a_directory);
  try {
    remove_tree(inside);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what())
            .find("cannot remove '" + inside.string() + "'"),
        std::string::npos)
        << error.what();
  }
}

} // namespace tessera::runtime::remove_tree_test
