// SPDX-License-Identifier: Apache-2.0
// safetensors files and indices of them that are damaged or lie.

#include "zoo/hostile/folder.h"
#include "zoo/hostile/values.h"

#include <cstring>

namespace tessera::zoo::weights_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string file_of_header(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + data;
}

} // namespace

TEST_F(HostileFolders, HaveHeadersThatLie) {
  Hostile hostile("gpt2");
  const std::string file = hostile.original("model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const json header = json::parse(file.substr(8, length));
  const std::string data = file.substr(8 + length);
  std::vector<std::string> names;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      names.push_back(name);
    }
  }
  const std::vector<json> sizes = {
      0,
      1,
      -1,
      3,
      24,
      61,
      uint64_t{1} << 20,
      uint64_t{1} << 32,
      uint64_t{1} << 62,
      INT64_MAX,
      UINT64_MAX,
      0.5,
      "24",
      nullptr,
      json::array()};
  const std::vector<json> dtypes = {
      "F64",
      "F16",
      "BF16",
      "I64",
      "U8",
      "BOOL",
      "F8_E4M3",
      "I32",
      "",
      "f32",
      7,
      nullptr,
      json::object()};
  Numbers numbers(3);
  for (int i = 0; i < 600; ++i) {
    json changed = header;
    const std::string& name = numbers.of(names);
    json& entry = changed[name];
    switch (numbers.below(7)) {
      case 0:
        entry["shape"][numbers.below(entry["shape"].size())] =
            numbers.of(sizes);
        break;
      case 1:
        entry["shape"].push_back(numbers.of(sizes));
        break;
      case 2: // The product is that of the data modulo 2^64.
        entry["shape"] = {uint64_t{1} << 32, uint64_t{1} << 32, 24};
        break;
      case 3:
        entry["data_offsets"][numbers.below(2)] = numbers.of(sizes);
        break;
      case 4: // Two tensors over the same bytes.
        entry["data_offsets"] = header[numbers.of(names)]["data_offsets"];
        break;
      case 5:
        entry["dtype"] = numbers.of(dtypes);
        break;
      default:
        changed.erase(name);
        changed[numbers.of(names) + (numbers.below(2) == 0 ? "" : ".x")] =
            header[name];
    }
    write_text(
        hostile.path("model.safetensors"),
        file_of_header(changed.dump(), data));
    hostile.load(name + ": " + changed.value(name, json()).dump());
  }
  // A key that stands twice, lengths that are wrong, and ends that are missing.
  const std::string text = header.dump();
  const std::string twice = "{" + json(names[0]).dump() + ": " +
                            header[names[0]].dump() + ", " + text.substr(1);
  write_text(hostile.path("model.safetensors"), file_of_header(twice, data));
  hostile.load("a tensor twice");
  for (int i = 0; i < 300; ++i) {
    std::string damaged = file;
    if (numbers.below(2) == 0) {
      damaged.resize(numbers.below(damaged.size()));
    } else {
      damaged[numbers.below(8 + length)] =
          static_cast<char>(numbers.below(256));
    }
    write_text(hostile.path("model.safetensors"), damaged);
    hostile.load("damage " + std::to_string(i));
  }
  EXPECT_GT(hostile.refused(), 500);
}

TEST_F(HostileFolders, HaveAnIndexThatLies) {
  Hostile hostile("gpt2");
  const std::string file = hostile.original("model.safetensors");
  fs::rename(hostile.path("model.safetensors"), hostile.path("a.safetensors"));
  fs::create_directory(hostile.path("folder.safetensors"));
  write_text(hostile.path("empty.safetensors"), "");
  // One that a path out of the folder would reach.
  const fs::path outside =
      hostile.path("").parent_path().parent_path() / "outside.safetensors";
  write_text(outside, file);
  json right = {{"metadata", json::object()}, {"weight_map", json::object()}};
  const auto tensors =
      runtime::SafetensorsFile::open(hostile.path("a.safetensors"));
  for (const runtime::SafetensorsEntry& entry : tensors.entries()) {
    right["weight_map"][entry.name] = "a.safetensors";
  }
  const std::string name = tensors.entries().front().name;
  const auto load = [&](const json& index) {
    write_text(hostile.path("model.safetensors.index.json"), index.dump());
    hostile.load(index.dump().substr(0, 200));
  };
  load(right);
  EXPECT_EQ(hostile.loaded(), 1);
  for (const json& place : std::vector<json>{
           "b.safetensors",
           "",
           ".",
           "..",
           "../outside.safetensors",
           "./a.safetensors",
           "x/../a.safetensors",
           outside.string(),
           "folder.safetensors",
           "empty.safetensors",
           "config.json",
           "/dev/zero",
           std::string("a.safetensors\0x", 15),
           7,
           nullptr,
           json::array({"a.safetensors"}),
           json::object(),
           true}) {
    json wrong = right;
    wrong["weight_map"][name] = place;
    load(wrong);
  }
  json missing = right;
  missing["weight_map"].erase(name);
  load(missing);
  json more = right;
  more["weight_map"]["not.there"] = "a.safetensors";
  load(more);
  for (const json& map : std::vector<json>{
           json::object(), json::array(), nullptr, 7, "a.safetensors"}) {
    load({{"weight_map", map}});
    load(map);
  }
  EXPECT_EQ(hostile.loaded(), 1);
  fs::remove(outside);
}

} // namespace tessera::zoo::weights_test
