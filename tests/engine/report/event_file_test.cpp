// SPDX-License-Identifier: Apache-2.0
// Event files, read back as TensorBoard reads them.
#include "tessera/engine/report/event_file.h"

#include "support/temporary_folder.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>

namespace tessera::engine::event_file_test {

namespace {

namespace fs = std::filesystem;

/// Bit by bit, from the polynomial's definition.
uint32_t crc32c(std::string_view data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78 : crc >> 1;
    }
  }
  return ~crc;
}

uint32_t masked(std::string_view data) {
  return std::rotr(crc32c(data), 15) + 0xA282EAD8;
}

template <typename T>
T take(std::string_view& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

/// The events of a file, their checksums checked.
std::vector<std::string> events_of(const fs::path& path) {
  const std::string file = runtime::read_text_file(path);
  std::string_view rest(file);
  std::vector<std::string> events;
  while (!rest.empty()) {
    const std::string_view head = rest.substr(0, 8);
    const auto length = take<uint64_t>(rest);
    EXPECT_EQ(take<uint32_t>(rest), masked(head));
    const std::string_view event = rest.substr(0, length);
    rest.remove_prefix(length);
    EXPECT_EQ(take<uint32_t>(rest), masked(event));
    events.emplace_back(event);
  }
  return events;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<uint8_t>(bytes);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
}

/// Field numbers and their raw values, of one message.
std::map<int, std::vector<std::string>> fields_of(std::string_view message) {
  std::map<int, std::vector<std::string>> fields;
  while (!message.empty()) {
    const uint64_t key = take_varint(message);
    size_t size = 0;
    if ((key & 7) == 0) {
      fields[static_cast<int>(key >> 3)].push_back(
          std::to_string(take_varint(message)));
      continue;
    }
    size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : take_varint(message);
    fields[static_cast<int>(key >> 3)].emplace_back(message.substr(0, size));
    message.remove_prefix(size);
  }
  return fields;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

} // namespace

TEST(EventFile, HoldsScalarsByTagAndStep) {
  ASSERT_EQ(crc32c("123456789"), 0xE3069283); // the check value of CRC-32C
  const TemporaryFolder folder;
  {
    EventFileWriter writer(folder.path());
    writer.write(300, {{"loss", 0.5}, {"lr", 1e-3}});
  }
  const auto files = files_in(folder.path());
  ASSERT_EQ(files.size(), 1U);
  EXPECT_TRUE(files[0].filename().string().starts_with("events.out.tfevents."));
  const auto events = events_of(files[0]);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(fields_of(events[0])[3].at(0), "brain.Event:2");
  auto event = fields_of(events[1]);
  EXPECT_EQ(event[2].at(0), "300");
  const auto values = fields_of(event[5].at(0))[1];
  ASSERT_EQ(values.size(), 2U);
  auto loss = fields_of(values[0]);
  EXPECT_EQ(loss[1].at(0), "loss");
  std::string_view number(loss[2].at(0));
  EXPECT_EQ(take<float>(number), 0.5F);
  EXPECT_EQ(fields_of(values[1])[1].at(0), "lr");
}

TEST(EventFile, AResumedRunHidesTheStepsThatAreDoneAgain) {
  const TemporaryFolder folder;
  { const EventFileWriter first(folder.path()); }
  { const EventFileWriter resumed(folder.path(), 7); }
  const auto files = files_in(folder.path());
  ASSERT_EQ(files.size(), 2U);
  const auto events = events_of(files[1]);
  ASSERT_EQ(events.size(), 2U);
  auto start = fields_of(events[1]);
  EXPECT_EQ(start[2].at(0), "8");
  EXPECT_EQ(fields_of(start[7].at(0))[1].at(0), "1"); // SessionLog.START
}

TEST(EventFile, ANewRunRemovesTheFilesOfAnEarlierOne) {
  const TemporaryFolder folder;
  { const EventFileWriter first(folder.path()); }
  { const EventFileWriter second(folder.path()); }
  EXPECT_EQ(files_in(folder.path()).size(), 1U);
}

TEST(EventFile, NamesAFolderThatIsNotThere) {
  try {
    const EventFileWriter writer("/nowhere/at/all", 3);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("/nowhere/at/all"), std::string::npos);
  }
}

} // namespace tessera::engine::event_file_test
