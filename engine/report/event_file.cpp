// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/event_file.h"

#include "tessera/engine/report/crc32.h"
#include "tessera/engine/report/proto_message.h"

#include <bit>
#include <chrono>
#include <string>
#include <string_view>

namespace tessera::engine {

namespace {

constexpr std::string_view kEventPrefix = "events.out.tfevents.";
constexpr std::string_view kSuffix = ".tessera";

/// As TFRecords require it: rotated and offset, so that checksums of data that
/// contains checksums are not degenerate.
uint32_t masked_crc(std::string_view data) {
  return std::rotr(crc32<kCrc32C>(data), 15) + 0xA282EAD8;
}

double wall_seconds() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// An Event with its wall_time (1) and step (2).
ProtoMessage event_of(int64_t step) {
  ProtoMessage event;
  event.add_double(1, wall_seconds());
  event.add_varint(2, static_cast<uint64_t>(step));
  return event;
}

void remove_earlier_files(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kEventPrefix) && name.ends_with(kSuffix)) {
      std::filesystem::remove(entry.path());
    }
  }
}

} // namespace

EventFileWriter::EventFileWriter(
    const std::filesystem::path& folder,
    int64_t resumed_step) {
  if (resumed_step == 0) {
    remove_earlier_files(folder);
  }
  // TensorBoard reads the files of a folder in the order of their names.
  for (auto number = static_cast<int64_t>(wall_seconds());
       !file_ || !file_->is_open();
       ++number) {
    file_.emplace(
        folder / (std::string(kEventPrefix) + std::to_string(number) +
                  std::string(kSuffix)),
        "the event file",
        AppendedFile::Mode::kCreate);
  }
  ProtoMessage version = event_of(0);
  version.add_bytes(3, "brain.Event:2");
  write_record(version.bytes());
  if (resumed_step > 0) {
    ProtoMessage session; // SessionLog
    session.add_varint(1, 1); // status = START
    ProtoMessage start = event_of(resumed_step + 1);
    start.add_message(7, session);
    write_record(start.bytes());
  }
}

void EventFileWriter::write(int64_t step, const Scalars& scalars) {
  ProtoMessage summary;
  for (const auto& [tag, number] : scalars) {
    ProtoMessage value;
    value.add_bytes(1, tag);
    value.add_float(2, static_cast<float>(number));
    summary.add_message(1, value);
  }
  ProtoMessage event = event_of(step);
  event.add_message(5, summary);
  write_record(event.bytes());
}

void EventFileWriter::write_record(const std::string& event) {
  std::string record;
  append_little_endian(record, static_cast<uint64_t>(event.size()));
  append_little_endian(record, masked_crc(record));
  record += event;
  append_little_endian(record, masked_crc(event));
  file_->append(record);
}

} // namespace tessera::engine
