// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/hub_name.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>

namespace tessera::runtime {
namespace {

TEST(HubName, HasARepositoryARevisionAndAPath) {
  const HubName all = parse_hub_name("hf://org/name-1.5b@v1.0/some/file.json");
  EXPECT_FALSE(all.is_data_set);
  EXPECT_EQ(all.repository, "org/name-1.5b");
  EXPECT_EQ(all.revision, "v1.0");
  EXPECT_EQ(all.path, "some/file.json");
  const HubName data = parse_hub_name("hf://datasets/org/name/data/*.jsonl");
  EXPECT_TRUE(data.is_data_set);
  EXPECT_EQ(data.repository, "org/name");
  EXPECT_EQ(data.revision, "main");
  EXPECT_EQ(data.path, "data/*.jsonl");
  EXPECT_EQ(parse_hub_name("hf://gpt2").repository, "gpt2");
  EXPECT_EQ(parse_hub_name("hf://models/org/name/").repository, "org/name");
}

TEST(HubName, AnAtSignOfAPathIsNoRevision) {
  const HubName name = parse_hub_name("hf://org/name/texts/a@b.txt");
  EXPECT_EQ(name.revision, "main");
  EXPECT_EQ(name.path, "texts/a@b.txt");
}

TEST(HubName, RevisionsHaveSlashesInCode) {
  const HubName name = parse_hub_name("hf://org/name@refs%2Fpr%2F1");
  EXPECT_EQ(name.revision, "refs/pr/1");
  EXPECT_EQ(name.text(), "hf://org/name@refs%2Fpr%2F1");
}

TEST(HubName, TextIsReadAgainAsItself) {
  for (const char* text :
       {"hf://org/name",
        "hf://gpt2",
        "hf://org/name@v1/a/b.json",
        "hf://datasets/org/name/a"}) {
    EXPECT_EQ(parse_hub_name(text).text(), text);
  }
}

TEST(HubName, RefusesWhatIsNone) {
  for (const char* text :
       {"hf://",
        "hf:///name",
        "hf://org/../name",
        "hf://../name",
        "hf://org/na me",
        "hf://org/name@",
        "hf://org/name@../x",
        "hf://org/name/../../etc/passwd",
        "hf://org/name@main//etc/passwd",
        "hf://org/.hidden",
        "https://huggingface.co/org/name"}) {
    expect_error([&] { parse_hub_name(text); }, {text, "hf://org/name"});
  }
}

TEST(HubName, ModelsAreNamedWithoutTheScheme) {
  EXPECT_EQ(hub_name_of_model("org/name").value().repository, "org/name");
  for (const char* path :
       {"name",
        "./name",
        "../models/name",
        "/models/name",
        "a/b/c",
        "a/",
        "models/name.",
        "-a/b"}) {
    EXPECT_FALSE(hub_name_of_model(path)) << path;
  }
}

} // namespace
} // namespace tessera::runtime
