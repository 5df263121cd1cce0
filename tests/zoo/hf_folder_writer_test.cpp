// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/hf_folder_writer.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>
#include <string>

namespace tessera {
namespace {

namespace fs = std::filesystem;

void save(const fs::path& folder, const std::string& weights) {
  HfFolderWriter writer(folder, {{"model_type", "any"}}, {});
  write_file_atomically(writer.weights_path(), weights);
  writer.commit();
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

} // namespace

TEST(HfFolderWriter, LeavesTheOldFolderUntilCommit) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "model";
  save(folder, "before");
  {
    HfFolderWriter writer(folder, {{"model_type", "other"}}, {});
    expect_error([&] { writer.commit(); }, {"model.safetensors"});
    EXPECT_EQ(read_text_file(folder / "model.safetensors"), "before");
  }
  EXPECT_EQ(names_in(temporary.path()), std::set<std::string>{"model"});
  save(folder, "after");
  EXPECT_EQ(read_text_file(folder / "model.safetensors"), "after");
  EXPECT_EQ(names_in(temporary.path()), std::set<std::string>{"model"});
}

TEST(HfFolderWriter, ReplacesOnlyFoldersOfItsOwnKind) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "model";
  fs::create_directory(folder);
  write_file_atomically(folder / "thesis.tex", "years of work");
  expect_error([&] { save(folder, "x"); }, {"thesis.tex", "would be lost"});
  expect_error([&] { save(folder / "thesis.tex", "x"); }, {"not a folder"});
  EXPECT_EQ(read_text_file(folder / "thesis.tex"), "years of work");

  // Parents are made, a trailing slash and a link do no harm.
  save(temporary / "new/deep/model/", "x");
  fs::create_directory_symlink("new/deep/model", temporary / "link");
  save(temporary / "link", "y");
  EXPECT_TRUE(fs::is_symlink(temporary / "link"));
  EXPECT_EQ(
      read_text_file(temporary / "new/deep/model/model.safetensors"), "y");
}

} // namespace tessera
