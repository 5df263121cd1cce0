// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/safetensors.h"
#include "support/paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace tessera::runtime::safetensors_test {

namespace {

std::span<const std::byte> bytes_of(const auto& values) {
  return std::as_bytes(std::span(values));
}

template <typename T>
std::vector<T> values_of(const SafetensorsEntry& entry) {
  std::vector<T> values(entry.data.size() / sizeof(T));
  std::memcpy(values.data(), entry.data.data(), entry.data.size());
  return values;
}

} // namespace

TEST(Safetensors, RoundTripsTensorsAndMetadata) {
  TemporaryFolder folder;
  const std::vector<float> weight{1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> scalar{42};
  const std::vector<uint8_t> mask{1, 0, 1};
  SafetensorsWriter writer(
      folder / "a.safetensors",
      {{"mask", SafetensorsDtype::kBool, {3}},
       {"weight", SafetensorsDtype::kF32, {2, 3}},
       {"empty", SafetensorsDtype::kBF16, {0, 7}},
       {"step", SafetensorsDtype::kI64, {}}},
      {{"format", "pt"}, {"note", "\"quoted\" \xc3\xa4"}});
  writer.write("step", bytes_of(scalar));
  writer.write("weight", bytes_of(weight));
  writer.write("mask", bytes_of(mask));
  writer.commit();

  const auto file = SafetensorsFile::open(folder / "a.safetensors");
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.metadata().size(), 2u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("note"), "\"quoted\" \xc3\xa4");
  EXPECT_EQ(file.at("weight").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.at("weight").dtype, SafetensorsDtype::kF32);
  EXPECT_EQ(values_of<float>(file.at("weight")), weight);
  EXPECT_TRUE(file.at("step").shape.empty());
  EXPECT_EQ(values_of<int64_t>(file.at("step")), scalar);
  EXPECT_EQ(values_of<uint8_t>(file.at("mask")), mask);
  EXPECT_EQ(file.at("empty").shape, (std::vector<int64_t>{0, 7}));
  EXPECT_TRUE(file.at("empty").data.empty());
  EXPECT_TRUE(file.contains("mask"));
  EXPECT_FALSE(file.contains("mas"));
}

TEST(Safetensors, AlignsEachTensorToItsElement) {
  TemporaryFolder folder;
  std::vector<SafetensorsSpec> specs;
  const std::vector<std::byte> zeros(64);
  for (const char* name : {"BOOL", "BF16", "F32", "F64", "F8_E4M3", "U8"}) {
    specs.push_back({name, *safetensors_dtype(name), {3}});
  }
  SafetensorsWriter writer(folder / "a", specs);
  for (const SafetensorsSpec& spec : specs) {
    writer.write(spec.name, std::span(zeros).first(3 * size_of(spec.dtype)));
  }
  writer.commit();
  const auto file = SafetensorsFile::open(folder / "a");
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto address = reinterpret_cast<uintptr_t>(entry.data.data());
    EXPECT_EQ(address % size_of(entry.dtype), 0u) << entry.name;
  }
}

TEST(Safetensors, SameContentGivesSameBytes) {
  TemporaryFolder folder;
  const std::vector<SafetensorsSpec> specs{
      {"b", SafetensorsDtype::kI32, {1}},
      {"a", SafetensorsDtype::kI32, {1}},
      {"c", SafetensorsDtype::kU8, {1}}};
  const std::vector<uint32_t> a{0x04030201};
  const std::vector<uint32_t> b{0x08070605};
  const std::vector<uint8_t> c{9};

  SafetensorsWriter first(folder / "1", specs, {{"k", "v"}});
  first.write("a", bytes_of(a));
  first.write("b", bytes_of(b));
  first.write("c", bytes_of(c));
  first.commit();
  auto reversed = specs;
  std::reverse(reversed.begin(), reversed.end());
  SafetensorsWriter second(folder / "2", reversed, {{"k", "v"}});
  second.write("c", bytes_of(c));
  second.write("b", bytes_of(b));
  second.write("a", bytes_of(a));
  second.commit();

  // Length, header padded with spaces to a multiple of eight, then the data.
  std::string header =
      R"({"__metadata__":{"k":"v"},)"
      R"("a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
      R"("b":{"dtype":"I32","shape":[1],"data_offsets":[4,8]},)"
      R"("c":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string expected(8, '\0');
  expected[0] = static_cast<char>(header.size());
  expected += header + "\x01\x02\x03\x04\x05\x06\x07\x08\x09";
  EXPECT_EQ(read_text_file(folder / "1"), expected);
  EXPECT_EQ(read_text_file(folder / "2"), expected);
}

TEST(Safetensors, WritesAndReadsAFileWithoutTensors) {
  TemporaryFolder folder;
  SafetensorsWriter(folder / "a", {}).commit();
  const auto file = SafetensorsFile::open(folder / "a");
  EXPECT_TRUE(file.entries().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, ReadsWhatTheReferencePackageWrote) {
  // Made by make_safetensors.py beside it.
  const auto file = SafetensorsFile::open(
      std::filesystem::path(tests::source_dir()) / "tests/runtime/fixtures" /
      "reference.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "np");
  EXPECT_EQ(
      values_of<float>(file.at("matrix")),
      (std::vector<float>{0, 1.5, 3, 4.5, 6, 7.5}));
  EXPECT_EQ(file.at("matrix").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(values_of<int64_t>(file.at("scalar")), std::vector<int64_t>{-7});
  EXPECT_TRUE(file.at("scalar").shape.empty());
  EXPECT_EQ(
      values_of<uint8_t>(file.at("flags")), (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(file.at("flags").dtype, SafetensorsDtype::kBool);
  EXPECT_EQ(file.at("nothing").shape, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(
      values_of<uint16_t>(file.at("half")),
      (std::vector<uint16_t>{0x3c00, 0xc000})); // 1, -2
}

TEST(Safetensors, EveryDtypeKeepsItsName) {
  for (int i = 0; i <= static_cast<int>(SafetensorsDtype::kF64); ++i) {
    const auto dtype = static_cast<SafetensorsDtype>(i);
    EXPECT_EQ(safetensors_dtype(name_of(dtype)), dtype);
    EXPECT_GT(size_of(dtype), 0u);
  }
  EXPECT_FALSE(safetensors_dtype("f32").has_value());
}

TEST(Safetensors, MissingTensorNamesTheNearest) {
  TemporaryFolder folder;
  SafetensorsWriter(
      folder / "a", {{"encoder.layer.0.weight", SafetensorsDtype::kU8, {0}}})
      .commit();
  const auto file = SafetensorsFile::open(folder / "a");
  expect_error(
      [&] { file.at("encoder.layers.0.weight"); },
      {"encoder.layers.0.weight", "nearest", "'encoder.layer.0.weight'"});
  expect_error([&] { file.at("x"); }, {"no tensor 'x'", "right file"});
}

TEST(Safetensors, MovedFileKeepsItsData) {
  TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a", {{"x", SafetensorsDtype::kU8, {2}}});
  writer.write("x", bytes_of(std::vector<uint8_t>{1, 2}));
  writer.commit();
  auto first = SafetensorsFile::open(folder / "a");
  SafetensorsFile second = std::move(first);
  auto third = SafetensorsFile::open(folder / "a");
  third = std::move(second);
  EXPECT_EQ(values_of<uint8_t>(third.at("x")), (std::vector<uint8_t>{1, 2}));
}

TEST(SafetensorsWriter, LeavesNothingBehindWithoutCommit) {
  TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "a", {{"x", SafetensorsDtype::kU8, {1}}});
    EXPECT_EQ(folder.count(), 1u); // Only the temporary file.
    EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  }
  EXPECT_EQ(folder.count(), 0u);
}

TEST(SafetensorsWriter, NewFileReplacesTheOldOneOnlyAtCommit) {
  TemporaryFolder folder;
  write_file_atomically(folder / "a", "old");
  SafetensorsWriter writer(folder / "a", {});
  EXPECT_EQ(read_text_file(folder / "a"), "old");
  writer.commit();
  EXPECT_NO_THROW(SafetensorsFile::open(folder / "a"));
  EXPECT_EQ(folder.count(), 1u);
}

TEST(SafetensorsWriter, RefusesWrongUse) {
  TemporaryFolder folder;
  const std::vector<uint8_t> two{1, 2};
  SafetensorsWriter writer(folder / "a", {{"x", SafetensorsDtype::kU8, {2}}});
  expect_error(
      [&] { writer.write("y", bytes_of(two)); }, {"'y'", "not declared"});
  expect_error(
      [&] { writer.write("x", bytes_of(two).first(1)); },
      {"'x'", "got 1 bytes", "need 2"});
  expect_error([&] { writer.commit(); }, {"'x'", "never written"});
  writer.write("x", bytes_of(two));
  expect_error(
      [&] { writer.write("x", bytes_of(two)); }, {"'x'", "written twice"});
  writer.commit();
  expect_error([&] { writer.commit(); }, {"second time"});

  using Specs = std::vector<SafetensorsSpec>;
  const auto refuse = [&](Specs specs, std::initializer_list<const char*> why) {
    expect_error([&] { SafetensorsWriter(folder / "b", specs); }, why);
  };
  const auto u8 = SafetensorsDtype::kU8;
  refuse({{"x", u8, {1}}, {"x", u8, {2}}}, {"'x'", "twice"});
  refuse({{"x", u8, {-1}}}, {"'x'", "-1"});
  refuse({{"x", u8, {INT64_MAX, 2}}}, {"'x'", "64 bits"});
  refuse({{"x", u8, {INT64_MAX}}, {"y", u8, {1}}}, {"'y'", "64 bits"});
  refuse({{"__metadata__", u8, {1}}}, {"__metadata__", "rename"});
  refuse({{"\xff", u8, {1}}}, {"UTF-8"});
  expect_error(
      [&] { SafetensorsWriter(folder / "no" / "b", {}); },
      {"no/b", "No such file"});
  EXPECT_EQ(folder.count(), 1u);
}

} // namespace tessera::runtime::safetensors_test
