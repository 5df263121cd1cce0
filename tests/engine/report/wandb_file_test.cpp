// SPDX-License-Identifier: Apache-2.0
// Logs for Weights & Biases, read back by its format: fragments in blocks of 32
// KiB with checksums of zlib, and records. tests/fixture_makers/check_wandb.py
// reads them with the package itself.
#include "tessera/engine/report/wandb_file.h"

#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <map>

namespace tessera::engine::wandb_file_test {

namespace {

namespace fs = std::filesystem;
using Line = nlohmann::ordered_json;

/// Bit by bit, from the polynomial's definition.
uint32_t zlib_crc32(std::string_view data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? (crc >> 1) ^ 0xEDB88320 : crc >> 1;
    }
  }
  return ~crc;
}

/// The records of a log, its checksums checked.
std::vector<std::string> records_of(const std::string& file) {
  constexpr size_t kBlock = 32768;
  EXPECT_EQ(file.substr(0, 4), ":W&B");
  EXPECT_EQ(file.substr(4, 3), std::string("\xE1\xBE\0", 3));
  std::vector<std::string> records;
  std::string record;
  bool is_complete = true; // between records; a first part may be empty
  for (size_t at = 7; at < file.size();) {
    if (kBlock - at % kBlock < 7) {
      at += kBlock - at % kBlock; // padding
      continue;
    }
    uint32_t checksum = 0;
    uint16_t length = 0;
    std::memcpy(&checksum, &file[at], 4);
    std::memcpy(&length, &file[at + 4], 2);
    const int type = file[at + 6];
    EXPECT_LE(at % kBlock + 7 + length, kBlock);
    EXPECT_EQ(checksum, zlib_crc32(file.substr(at + 6, 1 + length)));
    EXPECT_EQ(type == 1 || type == 2, is_complete);
    is_complete = type == 1 || type == 4;
    record += file.substr(at + 7, length);
    if (is_complete) {
      records.push_back(std::move(record));
      record.clear();
    }
    at += 7 + length;
  }
  EXPECT_TRUE(is_complete);
  return records;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
}

using Fields = std::map<int, std::vector<std::string>>;

/// Field numbers and values; numbers in decimal.
Fields fields_of(std::string_view message) {
  Fields fields;
  while (!message.empty()) {
    const uint64_t key = take_varint(message);
    const int field = static_cast<int>(key >> 3);
    if ((key & 7) == 0) {
      fields[field].push_back(std::to_string(take_varint(message)));
    } else {
      EXPECT_EQ(key & 7, 2U);
      const uint64_t size = take_varint(message);
      fields[field].emplace_back(message.substr(0, size));
      message.remove_prefix(size);
    }
  }
  return fields;
}

/// ConfigItem, HistoryItem and SummaryItem.
std::map<std::string, std::string> items_of(
    const std::vector<std::string>& items) {
  std::map<std::string, std::string> values;
  for (const std::string& item : items) {
    Fields fields = fields_of(item);
    values[fields[1].at(0)] = fields[16].at(0);
  }
  return values;
}

/// The log of the only run.
fs::path log_in(const fs::path& folder) {
  std::vector<fs::path> runs{
      fs::directory_iterator(folder), fs::directory_iterator()};
  EXPECT_EQ(runs.size(), 1U);
  const std::string name = runs.at(0).filename().string();
  EXPECT_TRUE(name.starts_with("offline-run-"));
  return runs.at(0) / ("run-" + name.substr(name.rfind('-') + 1) + ".wandb");
}

} // namespace

TEST(WandbFileWriter, WritesARunItsHistoryItsSummaryAndItsEnd) {
  const TemporaryFolder folder;
  {
    WandbFileWriter writer(
        folder.path() / "wandb",
        "first",
        {{"optimizer", {{"lr", 0.5}}}, {"task", "examples"}},
        /*continues=*/false);
    writer.write(1, {{"train/loss", 0.25}});
    writer.write(3, {{"train/loss", 0.125}});
    writer.write(3, {{"heldout/loss", 2.0}}); // after the last step
    writer.finish();
  }
  const fs::path log = log_in(folder.path() / "wandb");
  const auto records = records_of(runtime::read_text_file(log));
  ASSERT_EQ(records.size(), 8U);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(fields_of(records[i])[1].at(0), std::to_string(i + 1));
  }
  EXPECT_EQ(fields_of(records[0]).count(21), 1U); // header
  Fields run = fields_of(fields_of(records[1])[17].at(0));
  EXPECT_EQ("run-" + run[1].at(0) + ".wandb", log.filename().string());
  EXPECT_EQ(run[8].at(0), "first");
  const auto config = items_of(fields_of(run[4].at(0))[1]);
  EXPECT_EQ(config.at("task"), "\"examples\"");
  EXPECT_EQ(config.at("optimizer"), R"({"lr":0.5})");
  Fields history = fields_of(fields_of(records[4])[2].at(0));
  EXPECT_EQ(fields_of(history[2].at(0))[1].at(0), "3");
  const auto items = items_of(history[1]);
  EXPECT_EQ(items.at("_step"), "3");
  EXPECT_EQ(items.at("train/loss"), "0.125");
  EXPECT_EQ(items.count("_timestamp"), 1U);
  const auto summary = items_of(fields_of(fields_of(records[6])[3].at(0))[1]);
  EXPECT_EQ(summary.at("heldout/loss"), "2.0");
  EXPECT_EQ(fields_of(records[7]).count(18), 1U); // exit
}

TEST(WandbFileWriter, DividesRecordsAtTheEndsOfBlocks) {
  const TemporaryFolder folder;
  const auto wandb = folder.path() / "wandb";
  {
    WandbFileWriter writer(
        wandb, "long", {{"text", std::string(100'000, 'x')}}, false);
    // Records of all lengths, so that some block has less room than a header.
    for (int64_t step = 1; step <= 400; ++step) {
      writer.write(
          step,
          {{std::string(static_cast<size_t>(step % 97), 'n'), 1.0 / step}});
    }
  }
  const auto records = records_of(runtime::read_text_file(log_in(wandb)));
  EXPECT_EQ(records.size(), 2U + 2 * 400);
  EXPECT_GT(records[1].size(), 100'000U);
}

TEST(WandbFileWriter, GoesOnUnderTheSameId) {
  const TemporaryFolder folder;
  const auto wandb = folder.path() / "wandb";
  { WandbFileWriter(wandb, "run", nullptr, false).write(1, {{"a", 1}}); }
  const fs::path log = log_in(wandb);
  { WandbFileWriter(wandb, "run", nullptr, true).write(1, {{"a", 2}}); }
  EXPECT_EQ(log_in(wandb), log);
  EXPECT_EQ(records_of(runtime::read_text_file(log)).size(), 4U);
}

} // namespace tessera::engine::wandb_file_test
