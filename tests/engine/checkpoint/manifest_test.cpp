// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/manifest.h"
#include "support/paths.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"

#include <gtest/gtest.h>

namespace tessera::engine::manifest_test {

TEST(Manifest, ReadsWhatItWrites) {
  const TemporaryFolder folder;
  CheckpointManifest manifest;
  manifest.step = 12;
  manifest.engine = {
      {"learning_rate", 0.1},
      {"loss_scale",
       {{"scale", 2.0}, {"good_steps", 1}, {"skipped_steps", 0}}}};
  manifest.parameters["a.weight"] = {{2, 3}, {3, 1}, 11, {"b.weight"}, "lion"};
  SavedRank rank;
  rank.file = "rank-0.safetensors";
  rank.bytes = 123;
  const TensorSlice part{{{1, 0, 2}}, 1, 3};
  rank.tensors.push_back({"piece", "xxh3:0", "a.weight", "master", part});
  rank.tensors.push_back({"state/rng/cpu", "xxh3:1"});
  rank.states["rng"] = nullptr;
  manifest.ranks.push_back(rank);
  runtime::write_file_atomically(folder / "manifest.json", to_text(manifest));

  const CheckpointManifest read = read_manifest(folder.path());
  EXPECT_EQ(read.step, 12);
  EXPECT_EQ(read.engine.at("learning_rate"), 0.1);
  EXPECT_EQ(read.parameters.at("a.weight").steps, 11);
  EXPECT_EQ(read.parameters.at("a.weight").sizes[1], 3);
  EXPECT_EQ(read.parameters.at("a.weight").optimizer, "lion");
  ASSERT_EQ(read.ranks.size(), 1);
  EXPECT_EQ(read.ranks[0].bytes, 123);
  ASSERT_EQ(read.ranks[0].tensors.size(), 2);
  EXPECT_EQ(read.ranks[0].tensors[0].part, part);
  EXPECT_EQ(read.ranks[0].tensors[0].parameter, "a.weight");
  EXPECT_FALSE(read.ranks[0].tensors[1].part.has_value());

  manifest.ranks[0].tensors[0].part = {{{0, 0, 1}, {1, 0, 2}}, 0, 2};
  expect_error([&] { to_text(manifest); }, {"'a.weight'", "2 dimensions"});
}

TEST(Manifest, NamesThePlaceThatIsDamaged) {
  const TemporaryFolder folder;
  const std::string file =
      tests::source_dir() + "/tests/fuzz/seeds/manifest/checkpoint";
  const std::string right = runtime::read_text_file(file);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = right;
    text.replace(text.find(from), from.size(), to);
    runtime::write_file_atomically(folder / "manifest.json", text);
    return [&] { read_manifest(folder.path()); };
  };
  EXPECT_NO_THROW(changed("12", "13")());
  expect_error(
      changed("\"step\": 12", "\"step\": 1e300"),
      {"manifest.json: 'step' is 1e+300", "damaged"});
  expect_error(changed("\"step\"", "\"stop\""), {"'step'"});
  expect_error(
      changed("[2, 3]", "[2, -3]"),
      {"'parameters': 'a.weight': 'sizes'[1] is -3", "of at least 0"});
  expect_error(changed("[2, 3]", "[2]"), {"'strides' is [3,1]"});
  expect_error(
      changed("rank-0.safetensors", "../../etc/passwd"),
      {"'ranks'[0]: 'file' is \"../../etc/passwd\""});
  expect_error(changed("\"end\": 1", "\"end\": -1"), {"'part': 'end' is -1"});
  expect_error(changed("0.1", "\"fast\""), {"'learning_rate' is \"fast\""});
}

TEST(Manifest, FindsTheLatestCompleteCheckpoint) {
  const TemporaryFolder folder;
  for (const char* name :
       {"step-000002", "step-000010", "step-000011", ".step-000012.partial"}) {
    std::filesystem::create_directory(folder / name);
  }
  runtime::write_file_atomically(folder / "step-000002/manifest.json", "{}");
  runtime::write_file_atomically(folder / "step-000010/manifest.json", "{}");
  runtime::write_file_atomically(
      folder / ".step-000012.partial/manifest.json", "{}");
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000010");
  EXPECT_EQ(find_checkpoint(folder / "step-000002"), folder / "step-000002");
  EXPECT_TRUE(list_checkpoints(folder / "none").empty());
  // As people write it.
  EXPECT_EQ(find_checkpoint(folder / "step-2"), folder / "step-000002");
  expect_error(
      [&] { find_checkpoint(folder / "step-3"); },
      {"step-3' is not a checkpoint",
       "The folder next to it contains: step-000002, step-000010"});
  // Not complete: no manifest.
  expect_error(
      [&] { find_checkpoint(folder / "step-000011"); }, {"step-000010"});
}

} // namespace tessera::engine::manifest_test
